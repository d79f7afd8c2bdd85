"""Finds the models that benchmarks run on, and makes what they need of them."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DEMO = "demo"
OUTER_TENSORS = ("model.embed_tokens.weight", "lm_head.weight")


class ModelNotFound(LookupError):
    """No model of that name; the message says what names there are."""


def find_model(name: str) -> Path:
    """Return the folder of `name`: a folder, the demo model, or a tiny one (tiny-llama, ...).

    Tiny models are made by the tests' own maker, so they need a checkout.  Raises ModelNotFound.
    """
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder.resolve()
    if name == DEMO:
        return _demo()
    if name.startswith("tiny-"):
        return _tiny(name)
    raise ModelNotFound(f"{name} is no model folder, nor {DEMO}, nor tiny-NAME")


def endless_copy(folder: Path, out: Path) -> Path:
    """Write a copy of a small float32 model that never ends its text; return `out`.

    The rows of its special tokens in embedding and head are zero, so their logits are 0, which
    is never the greatest.  Neither server then needs a logit bias, which would cost one more.
    """
    out.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
    special = special_ids(folder)
    files: Any = importlib.import_module("safetensors.numpy")  # its types are half unknown
    tensors: dict[str, npt.NDArray[np.float32]] = files.load_file(folder / "model.safetensors")
    for name in OUTER_TENSORS:
        if name in tensors:
            tensors[name] = tensors[name].copy()
            tensors[name][special] = 0
    files.save_file(tensors, out / "model.safetensors", metadata={"format": "mlx"})
    return out


def special_ids(folder: Path) -> list[int]:
    """Return the ids of the tokens that were added to the model's vocabulary."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    return sorted(token["id"] for token in tokenizer["added_tokens"])


def end_ids(folder: Path) -> tuple[int, ...]:
    """Return the ids that end the model's text, by its generation_config.json and config.json."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return tuple(sorted(found))


def _demo() -> Path:
    """Get the demo model by the command that users get it by; it prints the folder last."""
    asked = [str(Path(sys.executable).with_name("mlxbun")), "get", DEMO]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip().splitlines()[-1])


def _tiny(name: str) -> Path:
    maker = Path("tests/models/tiny.py")
    if not maker.is_file():
        raise ModelNotFound(f"{name} is made by {maker}: run from a checkout's root")
    out = Path(tempfile.gettempdir()) / "mlxbun-bench-models"
    done = subprocess.run(
        [sys.executable, str(maker), name, "--out", str(out)], capture_output=True, text=True
    )
    if done.returncode:
        raise ModelNotFound(f"{name} could not be made: {done.stderr.strip()[-300:]}")
    return out / name
