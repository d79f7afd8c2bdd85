"""`mlxbun cache`: lists, checks, carries and purges the state that an SSD cache's folder keeps."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mlxbun.adapters.cli.models import size, table
from mlxbun.adapters.cli.progress import ShownProgress
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.cache_folder import CacheFolder, Kept
from mlxbun.application.options import Option, UsageError, did_you_mean, read
from mlxbun.application.settings import MODEL_OPTIONS, NOT_YET
from mlxbun.domain.blocks import StoreFailed

SHORT = 12  # hex digits of an identity that a table shows
CACHE_OPTIONS = tuple(option for option in MODEL_OPTIONS if option.name == "ssd_cache")
CACHE_OWN = (
    Option("identity", ("--identity",), "text",
           "whose state to export or purge, as ls names it; its first digits will do", "Cache"),
    Option("all", ("--all",), "switch", "purge all state in the folder", "Cache"),
    Option("yes", ("--yes", "-y"), "switch", "purge without asking", "Cache"),
    Option("json", ("--json",), "switch", "print JSON (ls, stat, verify)", "Output"),
)  # fmt: skip
_GOES_WITH = {
    "identity": ("export", "purge"),
    "all": ("purge",),
    "yes": ("purge",),
    "json": ("ls", "stat", "verify"),
}


class Described(Struct, frozen=True):
    """What an identity is made of: see `domain/checkpoint.py`."""

    arithmetic: str
    files: dict[str, str]
    scheme: str


class Line(Struct, frozen=True):
    """What is kept of one identity.  `of` is what the state depends on; `last_used` is in
    seconds since 1970.
    """

    identity: str
    num_blocks: int
    num_bytes: int
    last_used: float | None
    of: Described | str | None


class Stat(Struct, frozen=True):
    folder: str
    identities: int
    blocks: int
    bytes: int
    bytes_written_today: int
    bytes_free: int


class Checked(Struct, frozen=True):
    files_well: int
    files_damaged: Mapping[str, str]
    blocks_forgotten: int


class _Call(Struct, frozen=True):
    """What was asked: the folder, the file of export and import, and the flags."""

    folder: Path
    file: Path | None
    own: Mapping[str, Any]
    wiring: Wiring

    @property
    def as_json(self) -> bool:
        return bool(self.own.get("json"))

    @contextmanager
    def opened(self) -> Generator[CacheFolder]:
        """Own the folder.  Raises StoreFailed where there is none, or somebody else has it."""
        if not self.folder.is_dir():
            raise StoreFailed(f"there is no folder {self.folder}")
        store = self.wiring.open_cache_folder(self.folder)
        try:
            yield store
        finally:
            store.close()


def cache(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Do one action on a folder; return 1 also where what was looked at is damaged."""
    said = read((*CACHE_OWN, *CACHE_OPTIONS), argv, environ, NOT_YET)
    action, *words = said.positionals or ("",)
    if action not in _ACTIONS:
        names = ", ".join(_ACTIONS)
        what = f"unknown action {action}" + did_you_mean(action, _ACTIONS) if action else "do what?"
        raise UsageError(f"{what}  mlxbun cache takes one of {names}")
    for name, actions in _GOES_WITH.items():
        if name in said.values and action not in actions:
            raise UsageError(f"--{name} goes with {' and '.join(actions)}, not with {action}")
    if len(words) != (action in ("export", "import")):
        needs = "FILE" if action in ("export", "import") else "nothing more"
        raise UsageError(f"cache {action} takes {needs}, but got {' '.join(words) or 'none'}")
    folder = said.values.get("ssd_cache")
    if folder is None:
        raise UsageError("which folder?  --ssd-cache DIR, or MLX_BUN_SSD_CACHE")
    file = Path(words[0]).expanduser() if words else None
    return _ACTIONS[action](_Call(Path(folder).expanduser(), file, said.values, wiring))


def _ls(call: _Call) -> int:
    with call.opened() as store:
        lines = [_line(kept) for kept in store.identities()]
    if call.as_json:
        _print_json(lines)
    elif lines:
        head = ("IDENTITY", "BLOCKS", "SIZE", "USED", "OF")
        now = time.time()
        rows = [
            (x.identity[:SHORT], str(x.num_blocks), size(x.num_bytes), _age(x, now), _of(x))
            for x in lines
        ]
        print("\n".join(table([head, *rows])))
    else:
        print(f"nothing is kept in {call.folder}", file=sys.stderr)
    return 0


def _stat(call: _Call) -> int:
    with call.opened() as store:
        kept = store.identities()
        stat = Stat(
            str(call.folder),
            len(kept),
            sum(one.num_blocks for one in kept),
            store.num_bytes(),
            store.bytes_written_today,
            shutil.disk_usage(call.folder).free,
        )
    if call.as_json:
        _print_json(stat)
        return 0
    rows = (
        ("folder", stat.folder),
        ("identities", str(stat.identities)),
        ("blocks", str(stat.blocks)),
        ("size", size(stat.bytes)),
        ("written today", f"{size(stat.bytes_written_today)} (since midnight UTC)"),
        ("free", size(stat.bytes_free)),
    )
    print("\n".join(table(rows)))
    return 0


def _verify(call: _Call) -> int:
    with call.opened() as store, ShownProgress() as progress:
        found = store.verify_all(lambda done, total: progress("verifying", done, total))
    checked = Checked(found.num_good, found.damaged, found.num_forgotten)
    if call.as_json:
        _print_json(checked)
    else:
        for content, why in checked.files_damaged.items():
            print(f"damaged: {content[:SHORT]}: {why}")
        damaged, forgotten = len(checked.files_damaged), checked.blocks_forgotten
        print(
            f"{checked.files_well} files are well, {damaged} damaged, {forgotten} blocks forgotten"
        )
    return 1 if checked.files_damaged else 0


def _export(call: _Call) -> int:
    assert call.file is not None, "it was asked for"
    if call.file.exists():
        raise StoreFailed(f"{call.file} exists already")
    with call.opened() as store:
        kept = _chosen(store.identities(), call.own.get("identity"))
        num_bytes = store.export(kept.namespace, call.file)
    print(f"{call.file}: {size(num_bytes)}, {kept.num_blocks} blocks of {kept.namespace[:SHORT]}")
    return 0


def _import(call: _Call) -> int:
    assert call.file is not None, "it was asked for"
    if not call.file.is_file():  # before a folder is made for it
        raise StoreFailed(f"there is no file {call.file}")
    call.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with call.opened() as store:
        done = store.import_(call.file)
    print(f"{done.num_blocks} blocks are new here, {size(done.bytes_written)} written")
    return 0


def _purge(call: _Call) -> int:
    everything, wanted = bool(call.own.get("all")), call.own.get("identity")
    if everything == (wanted is not None):
        raise UsageError("purge what?  --all, or --identity ID (mlxbun cache ls lists them)")
    with call.opened() as store:
        found = store.identities()
        chosen = found if everything else [_chosen(found, wanted)]
        num_blocks = sum(one.num_blocks for one in chosen)
        whose = "everything" if everything else f"the state of {chosen[0].namespace[:SHORT]}"
        what = f"{whose} in {call.folder}: {num_blocks} blocks"
        if not call.own.get("yes") and not _agreed(what):
            print("nothing was purged", file=sys.stderr)
            return 1
        before = store.num_bytes()
        num_blocks = store.purge(None if everything else chosen[0].namespace)
        freed = before - store.num_bytes()
    print(f"{num_blocks} blocks purged, {size(freed)} freed")
    return 0


_ACTIONS: Mapping[str, Callable[[_Call], int]] = {
    "ls": _ls,
    "stat": _stat,
    "verify": _verify,
    "export": _export,
    "import": _import,
    "purge": _purge,
}


def _agreed(what: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f"purge asks before it forgets {what}.  Without a terminal, say --yes")
    print(f"Forget {what}?  [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _chosen(found: Sequence[Kept], wanted: str | None) -> Kept:
    """Return the one that `wanted` begins, or the only one.  Raises UsageError."""
    fit = [one for one in found if one.namespace.startswith((wanted or "").lower())]
    if len(fit) == 1:
        return fit[0]
    names = ", ".join(one.namespace[:SHORT] for one in (fit or found)) or "none"
    if wanted is None:
        raise UsageError(f"whose state?  --identity ID, which is one of {names}")
    much = "is no identity here" if not fit else "may be more than one"
    raise UsageError(f"{wanted} {much}: {names}")


def _line(kept: Kept) -> Line:
    of = _described(kept.description) if kept.description is not None else None
    return Line(kept.namespace, kept.num_blocks, kept.num_bytes, kept.last_used, of)


def _described(text: str) -> Described | str:
    """Return what an identity is made of; somebody else's words are left as they are."""
    try:
        return msgspec.json.decode(text, type=Described)
    except msgspec.DecodeError:
        return text


def _of(line: Line) -> str:
    """Return what state depends on, in few words: the weights' digest, and the arithmetic."""
    if not isinstance(line.of, Described):
        return line.of or ""
    weights = [d for name, d in line.of.files.items() if name.endswith(".safetensors")]
    more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
    named = f"weights {weights[0][:SHORT]}{more}; " if weights else ""
    return named + line.of.arithmetic.rstrip(", ")


def _age(line: Line, now: float) -> str:
    if line.last_used is None:
        return "never"
    seconds = max(0.0, now - line.last_used)
    for unit, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())
