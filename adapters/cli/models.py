"""`mlxbun get` and `mlxbun ls`: fetches models, lists those that are here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from mlxbun.adapters.cli.progress import ShownProgress
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.model_store import LocalModel
from mlxbun.application.options import Option, UsageError
from mlxbun.application.settings import MODEL_OPTIONS, parse_with

_SHARED = tuple(option for option in MODEL_OPTIONS if option.name == "cache")
GET_OPTIONS = (
    *(option for option in MODEL_OPTIONS if option.name == "dtype"),
    *_SHARED,
)
GET_OWN = (
    Option("revision", ("--revision",), "text", "branch, tag or commit on Hugging Face", "Model"),
)
LS_OPTIONS = _SHARED
LS_OWN = (Option("json", ("--json",), "switch", "print JSON", "Output"),)


def get(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Fetch one model, with progress on stderr and its folder on stdout."""
    settings, own = parse_with(GET_OPTIONS, GET_OWN, argv, environ)
    if settings.sources.get("model") != "flag":
        raise UsageError("which model?  mlxbun get demo, or mlxbun get org/repo")
    with ShownProgress() as progress:
        store = wiring.model_store(settings)
        model = store.get(settings.model, own.get("revision"), progress)
    print(f"{model.name}: {size(model.num_bytes)}, {model.weights}", file=sys.stderr)
    print(model.path)
    return 0


def ls(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """List the models of this machine."""
    settings, own = parse_with(LS_OPTIONS, LS_OWN, argv, environ)
    models = wiring.model_store(settings).models()
    if own.get("json"):
        print(msgspec.json.encode(models).decode())
    elif models:
        print("\n".join(table([("MODEL", "TYPE", "WEIGHTS", "SIZE"), *map(_row, models)])))
    else:
        print("no models here.  mlxbun get demo fetches a small one", file=sys.stderr)
    return 0


def _row(model: LocalModel) -> tuple[str, str, str, str]:
    return model.name, model.model_type, model.weights, size(model.num_bytes)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines whose columns line up."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def size(num_bytes: int) -> str:
    """Return a size as people say it, in powers of ten as disks are sold."""
    if num_bytes >= 10**9:
        return f"{num_bytes / 10**9:.1f} GB"
    return f"{num_bytes / 10**6:.0f} MB" if num_bytes >= 10**6 else f"{num_bytes / 10**3:.0f} kB"
