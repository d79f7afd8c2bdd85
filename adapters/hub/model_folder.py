"""What a folder with a model says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from mlxbun.application.model_store import LocalModel

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


def why_unusable(folder: Path) -> str | None:
    """Return what is wrong with `folder` as a model, after "the folder"; None if nothing is."""
    if not (folder / CONFIG).is_file():
        return f"has no {CONFIG}"
    try:
        _read(folder / CONFIG)
        if (folder / INDEX).is_file():
            files = set(_read(folder / INDEX).get("weight_map", {}).values())
            if missing := sorted(name for name in files if not (folder / name).is_file()):
                return f"lacks {missing[0]}" + (" and others" if len(missing) > 1 else "")
    except msgspec.DecodeError as error:
        return f"has a broken description ({error})"
    if not any(folder.glob("model*.safetensors")):
        return "has no model*.safetensors"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        return "has no tokenizer"
    return None


def describe(name: str, folder: Path) -> LocalModel:
    """Return the model in `folder`, which must be usable."""
    config = _read(folder / CONFIG)
    quantised = config.get("quantization") or config.get("quantization_config")
    bits = cast("dict[str, Any]", quantised).get("bits") if isinstance(quantised, dict) else None
    dtype = config.get("dtype") or config.get("torch_dtype") or "?"
    return LocalModel(
        name=name,
        path=str(folder),
        model_type=str(config.get("model_type", "?")),
        weights=f"{bits}-bit" if bits else str(dtype),
        num_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )


def _read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
