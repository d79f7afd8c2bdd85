"""Random models of known shapes, made in memory: what a speed depends on, without a download.

The same name gives the same weights in every process on the same backend.  mlx-lm has no
types, so it is reached by name; who calls has imported it, in whichever way it wants it.
"""

from __future__ import annotations

import importlib
from typing import Any

from msgspec import Struct

PREFIX = "random:"
SEED = 20
SCALE = 0.02  # the standard deviation of a weight
GROUP_SIZE = 64


class Shape(Struct, frozen=True):
    """A Qwen3 model's sizes.  `bits` 0 means that its weights are not quantised."""

    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    tied: bool
    vocab_size: int = 151_936
    bits: int = 0
    dtype: str = "bfloat16"


# Source: config.json of Qwen/Qwen3-0.6B and Qwen/Qwen3-8B.
_8B = (4096, 36, 12_288, 32, 8, 128, False)
SHAPES = {
    "qwen3-0.6b": Shape(1024, 28, 3072, 16, 8, 128, True),
    "qwen3-8b": Shape(*_8B),
    "qwen3-8b-4bit": Shape(*_8B, bits=4),
    # For trials on a CPU, where MLX is fast in float32 only.
    "qwen3-tiny": Shape(256, 3, 512, 8, 2, 64, True, vocab_size=1024, dtype="float32"),
    "qwen3-tiny-4bit": Shape(256, 3, 512, 8, 2, 64, False, 1024, bits=4, dtype="float32"),
}


class UnknownShape(LookupError):
    """No random model of that name; the message says what names there are."""


def is_random(name: str) -> bool:
    return name.startswith(PREFIX)


def shape_of(name: str) -> Shape:
    """Return the shape that `random:SHAPE` names.  Raises UnknownShape."""
    shape = SHAPES.get(name.removeprefix(PREFIX))
    if shape is None:
        raise UnknownShape(f"{name} is none of {', '.join(PREFIX + known for known in SHAPES)}")
    return shape


def config_of(shape: Shape) -> dict[str, object]:
    """Return what config.json of a model of this shape would say."""
    return {
        "model_type": "qwen3",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tied,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 40_960,
    }


def make(shape: Shape) -> Any:
    """Return an mlx-lm model of `shape` with evaluated weights, on the calling thread."""
    mx: Any = importlib.import_module("mlx.core")
    nn: Any = importlib.import_module("mlx.nn")
    trees: Any = importlib.import_module("mlx.utils")
    qwen3: Any = importlib.import_module("mlx_lm.models.qwen3")
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config_of(shape)))
    dtype = getattr(mx, shape.dtype)
    named = sorted(trees.tree_flatten(model.parameters()))
    keys = mx.random.split(mx.random.key(SEED), len(named))
    weights: list[tuple[str, Any]] = []
    for (name, old), key in zip(named, keys, strict=True):
        if old.ndim == 1:  # the scale of a norm
            new = mx.ones(old.shape, dtype=dtype)
        else:
            new = mx.random.normal(old.shape, scale=SCALE, key=key).astype(dtype)
        mx.eval(new)  # one by one: the float32 numbers of all of them would not fit
        weights.append((name, new))
    model.update(trees.tree_unflatten(weights))
    del weights, named
    if shape.bits:
        nn.quantize(model, group_size=GROUP_SIZE, bits=shape.bits)
    model.eval()
    mx.eval(model.parameters())
    mx.clear_cache()
    return model
