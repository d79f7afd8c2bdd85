"""Loading a model folder through mlx-lm, in the precision that runs well here.

MLX's CPU build multiplies float32 with BLAS and everything else with scalar loops, 15 to 60
times slower, so there "auto" casts (and dequantises) to float32.  Elsewhere a model runs as
it was stored.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from mlx.utils import tree_map
from msgspec import Struct

from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils

DType = Literal["auto", "native", "float32", "bfloat16", "float16"]
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class LoadedModel(Struct, frozen=True):
    """A model in memory.

    `compiles` says whether mx.compile works here.  `notes` say what was decided on the way:
    setting, value, why.
    """

    model: Any
    config: dict[str, Any]
    num_bytes: int
    compiles: bool
    notes: tuple[tuple[str, str, str], ...]


def on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)


def on_cuda() -> bool:
    return not on_cpu() and mx.cuda.is_available()


def load(folder: Path, dtype: DType = "auto", *, exact: bool = False) -> LoadedModel:
    """Load and evaluate the weights of `folder`.  Called on the engine's thread.

    `exact` keeps quantised weights where "auto" would expand them for speed alone.  Raises
    what mlx-lm raises for a folder that it cannot read.
    """
    model, config = mlx_lm_utils().load_model(folder, lazy=True)
    return settled(model, dtype, exact=exact, config=config)


def settled(
    model: Any, dtype: DType, *, exact: bool, config: dict[str, Any] | None = None
) -> LoadedModel:
    """Bring a model's weights into the precision that runs well here, and evaluate them."""
    notes = [_compile_note()]
    wanted = dtype if dtype != "auto" else ("float32" if on_cpu() else "native")
    if wanted != "native":
        notes.append(_cast(model, wanted, "asked for" if dtype != "auto" else "cpu"))
    elif dtype == "auto" and not exact and on_cuda():
        notes.append(_expanded(model))
    else:
        notes.append(("weights", "native", "as stored"))
    # What a module hides as well, frequencies of rotations say: left lazy, it could be computed on
    # this thread alone.
    mx.eval([leaf for leaf in _leaves(model) if isinstance(leaf, mx.array)])
    num_bytes = sum(
        array.nbytes for array in _leaves(model.parameters()) if isinstance(array, mx.array)
    )
    return LoadedModel(model, config or {}, num_bytes, notes[0][1] == "on", tuple(notes))


def expansion_fits(expanded_bytes: int, memory_bytes: int | None) -> bool:
    """Return whether weights may take `expanded_bytes`: half of the memory stays for the rest."""
    return memory_bytes is not None and 2 * expanded_bytes <= memory_bytes


def _expanded(model: Any) -> tuple[str, str, str]:
    """Expand quantised layers where memory allows: MLX's CUDA build multiplies them slowly.

    Measured on an H200, an 8B model in 4 bits with 32 rows: a tenth of bfloat16's speed.
    """
    layers = [m for m in model.modules() if hasattr(m, "scales") and hasattr(m, "bits")]
    if not layers:
        return ("weights", "native", "as stored")
    half = 2 * sum(layer.weight.size * 32 // layer.bits for layer in layers)
    have = device_memory()
    if not expansion_fits(half, have):
        room = f"{have / 2**30:.0f} GiB" if have else "unknown"
        return (
            "weights",
            "native",
            f"quantised; expanded they need {half / 2**30:.1f} GiB, "
            f"more than half of the device's memory ({room})",
        )
    mlx_lm_utils().dequantize_model(model)
    return (
        "weights",
        "expanded",
        "stored quantised, which MLX's CUDA build multiplies slowly; --dtype native keeps them",
    )


def device_memory() -> int | None:
    """Return the device's memory in bytes, None where MLX does not tell."""
    info = mx.device_info()
    found = info.get("memory_size") or info.get("total_memory")
    return int(found) if found else None


def _compile_note() -> tuple[str, str, str]:
    """Switch mx.compile off where MLX would need a C++ compiler that is not there."""
    if not on_cpu() or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++"):
        return ("compile", "on", "mx.compile fuses element-wise operations")
    mx.disable_compile()
    return ("compile", "off", "MLX's CPU build compiles with a C++ compiler, and none is installed")


def _cast(model: Any, wanted: str, why: str) -> tuple[str, str, str]:
    target = _DTYPES[wanted]
    quantised = _dequantise(model, target)
    found = {
        str(p.dtype).removeprefix("mlx.core.")
        for p in _leaves(model.parameters())
        if isinstance(p, mx.array) and mx.issubdtype(p.dtype, mx.floating)
    }

    def cast(path: str, value: mx.array) -> mx.array:
        if not mx.issubdtype(value.dtype, mx.floating) or not allowed(path):
            return value
        return value.astype(target)

    allowed = getattr(model, "cast_predicate", lambda _path: True)
    _map_named(model, cast)
    was = ", ".join((["quantised"] if quantised else []) + sorted(found - {wanted})) or wanted
    reason = {
        "cpu": f"stored as {was}; MLX's CPU build is fast in float32 only",
        "asked for": f"stored as {was}; --dtype {wanted}",
    }[why]
    return ("weights", wanted, reason)


def _dequantise(model: Any, target: mx.Dtype) -> bool:
    """Replace quantised layers by plain ones with the same weights; say whether there were."""
    changed = mlx_lm_utils().dequantize_model
    has_quantised = any(hasattr(m, "scales") and hasattr(m, "bits") for m in model.modules())
    if has_quantised:
        _widen_scales(model)
        changed(model)
    return has_quantised


def _widen_scales(model: Any) -> None:
    """Expand in float32: half-precision scales lose a step of every weight on the way."""
    for module in model.modules():
        if hasattr(module, "scales") and getattr(module, "mode", "affine") == "affine":
            module.scales = module.scales.astype(mx.float32)
            if getattr(module, "biases", None) is not None:
                module.biases = module.biases.astype(mx.float32)


def _map_named(model: Any, change: Any) -> None:
    def walk(prefix: str, node: Any) -> Any:
        if isinstance(node, dict):
            return {k: walk(f"{prefix}.{k}" if prefix else k, v) for k, v in node.items()}
        if isinstance(node, list):
            return [walk(f"{prefix}.{i}", v) for i, v in enumerate(node)]
        return change(prefix, node) if isinstance(node, mx.array) else node

    model.update(walk("", model.parameters()))


def _leaves(tree: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, tree)
    return found
