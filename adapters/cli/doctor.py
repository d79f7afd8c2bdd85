"""`mlxbun doctor`: says what is well on this machine, what is not, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from mlxbun.adapters.cli.models import size, table
from mlxbun.adapters.cli.preflight import AddressUnusable, check_address
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.diagnosis import Check
from mlxbun.application.model_store import ModelUnavailable
from mlxbun.application.options import Option
from mlxbun.application.settings import OPTIONS, Settings, parse_with

OWN = (Option("json", ("--json",), "switch", "print JSON", "Output"),)
LOW_DISK_BYTES = 2 * 10**9
MIN_PYTHON = (3, 11)
KNOWN_PLATFORMS = {("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64")}


def doctor(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Print the table; return 1 if anything fails."""
    settings, own = parse_with(OPTIONS, OWN, argv, environ)
    checks = [*local_checks(settings, wiring), *wiring.machine_checks(settings)]
    if own.get("json"):
        print(msgspec.json.encode(checks).decode())
    else:
        print("\n".join(render(checks)))
    return 1 if any(check.verdict == "fail" for check in checks) else 0


def render(checks: Sequence[Check]) -> list[str]:
    """Return the table's lines; what to do stands under what is not well."""
    lines = table([(check.verdict, check.name, check.found) for check in checks])
    shown: list[str] = []
    for check, line in zip(checks, lines, strict=True):
        shown.append(line)
        if check.todo:
            shown.append(f"      -> {check.todo}")
    return shown


def local_checks(settings: Settings, wiring: Wiring) -> Iterator[Check]:
    """Yield what this process can see by itself."""
    yield _python()
    yield _platform()
    yield Check("mlxbun", "ok", wiring.version)
    yield from _settings(settings)
    yield _disk(settings)
    yield _model(settings, wiring)
    yield _memory(settings, wiring)
    yield _address(settings)


def _python() -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < MIN_PYTHON:
        return Check("python", "fail", found, "make the environment with Python 3.11 or later")
    return Check("python", "ok", found)


def _platform() -> Check:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if (platform.system(), platform.machine()) not in KNOWN_PLATFORMS:
        return Check("platform", "warn", found, "MLX has no builds for it that we have seen work")
    return Check("platform", "ok", found)


def _settings(settings: Settings) -> Iterator[Check]:
    for name, note in settings.notes.items():
        yield Check("settings", "warn", f"{name}: {note}", "correct or unset the variable")


def _disk(settings: Settings) -> Check:
    folder = Path(settings.cache).expanduser()
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    found = f"{size(free)} free at {folder}"
    if not os.access(there, os.W_OK):
        return Check("disk", "warn", f"{there} cannot be written", "set MLX_BUN_CACHE")
    if free < LOW_DISK_BYTES:
        return Check("disk", "warn", found, "make room, or set MLX_BUN_CACHE and HF_HUB_CACHE")
    return Check("disk", "ok", found)


def _model(settings: Settings, wiring: Wiring) -> Check:
    store = wiring.model_store(settings)
    try:
        model = store.find(settings.model)
        num_here = len(store.models())
    except ModelUnavailable as error:
        return Check("model", "fail", str(error), "name another model, or mlxbun get one")
    if model is None:
        todo = f"mlxbun get {settings.model} (mlxbun serve does it too)"
        return Check("model", "warn", f"{settings.model} is not here ({num_here} are)", todo)
    found = f"{model.name}, {model.weights}, {size(model.num_bytes)} ({num_here} are here)"
    return Check("model", "ok", found)


def _memory(settings: Settings, wiring: Wiring) -> Check:
    num_bytes, word = memory()
    found = f"{size(num_bytes)} {word}"
    try:
        model = wiring.model_store(settings).find(settings.model)
    except ModelUnavailable:
        model = None  # another check says so
    if model is not None and model.num_bytes > num_bytes:
        todo = "close something, or serve a smaller model or one with fewer bits"
        return Check("memory", "warn", f"{found}, the model has {size(model.num_bytes)}", todo)
    return Check("memory", "ok", found)


def memory(meminfo: Path = Path("/proc/meminfo")) -> tuple[int, str]:
    """Return bytes of memory and what they are: available, or all where only that is known."""
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024, "available"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "in all"


def _address(settings: Settings) -> Check:
    where = settings.unix or f"{settings.host}:{settings.port}"
    try:
        check_address(settings)
    except AddressUnusable as error:
        return Check("address", "warn", f"{where}: {error}")
    return Check("address", "ok", f"{where} is free")
