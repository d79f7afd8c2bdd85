"""Random models of the bench: the shapes that they say, and the same weights everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxbun.adapters.bench import random_models
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils

SUMS = """
import json, sys
import mlx_lm.generate
from mlx.utils import tree_flatten
from mlxbun.adapters.bench import random_models
model = random_models.make(random_models.SHAPES[sys.argv[1]])
print(json.dumps({name: w.sum().item() for name, w in tree_flatten(model.parameters())}))
"""


def make(name: str) -> Any:
    mlx_lm_utils()
    return random_models.make(random_models.SHAPES[name])


def weights_of(model: Any) -> dict[str, Any]:
    flat: Any = tree_flatten(model.parameters())
    return dict(flat)


def sums(model: Any) -> dict[str, float]:
    return {name: weight.sum().item() for name, weight in weights_of(model).items()}


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen3-tiny-4bit"])
def test_another_process_makes_the_same_weights(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SUMS, name], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == sums(make(name))


def test_weights_are_normal_and_norms_are_one() -> None:
    weights = weights_of(make("qwen3-tiny"))
    norms = [weight for name, weight in weights.items() if "norm" in name]
    assert norms and all((weight == 1).all().item() for weight in norms)
    embedding = weights["model.embed_tokens.weight"]
    assert embedding.std().item() == pytest.approx(random_models.SCALE, rel=0.02)
    assert abs(embedding.mean().item()) < 1e-4
    assert "lm_head.weight" not in weights  # tied
    first, second = (weights[f"model.layers.{i}.mlp.up_proj.weight"] for i in range(2))
    assert not (first == second).any().item()


def test_quantised_weights_have_the_bits_that_were_asked_for() -> None:
    model = make("qwen3-tiny-4bit")
    assert model.lm_head.bits == 4 and model.lm_head.group_size == random_models.GROUP_SIZE
    assert model.model.layers[0].mlp.up_proj.weight.dtype == mx.uint32


def test_bfloat16_is_what_the_large_ones_are_stored_in() -> None:
    large = {shape.dtype for name, shape in random_models.SHAPES.items() if "tiny" not in name}
    assert large == {"bfloat16"}
    small = random_models.Shape(64, 1, 64, 2, 1, 32, True, vocab_size=64)
    mlx_lm_utils()
    found = {weight.dtype for weight in weights_of(random_models.make(small)).values()}
    assert found == {mx.bfloat16}


@pytest.mark.parametrize(
    ("name", "millions"), [("random:qwen3-0.6b", 596), ("random:qwen3-8b", 8191)]
)
def test_shapes_are_as_large_as_their_names_say(name: str, millions: int) -> None:
    shape = random_models.shape_of(name)
    width = shape.num_heads * shape.head_dim
    attention = 2 * shape.hidden_size * (width + shape.num_kv_heads * shape.head_dim)
    layer = attention + 3 * shape.hidden_size * shape.intermediate_size
    outer = shape.vocab_size * shape.hidden_size * (1 if shape.tied else 2)
    assert (outer + layer * shape.num_layers) / 1e6 == pytest.approx(millions, abs=1)


def test_a_shape_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(random_models.UnknownShape, match="random:qwen3-9b.*random:qwen3-8b"):
        random_models.shape_of("random:qwen3-9b")
