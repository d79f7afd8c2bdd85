"""Joined projections: the same numbers by fewer products, and nothing held twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten

from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.joint_projections import Joint, Part, join_projections
from models import tiny

PROMPT = [[5, 9, 17, 4, 250]]


def loaded(name: str, tiny_model: Callable[[str], Any]) -> Any:
    return loading.load(tiny_model(name), "native").model


@pytest.mark.parametrize("name", tiny.NAMES)
def test_a_model_gives_the_same_logits_when_its_projections_are_joined(
    name: str, tiny_model: Callable[[str], Any]
) -> None:
    model = loaded(name, tiny_model)
    before = np.array(model(mx.array(PROMPT)))
    join_projections(model)
    np.testing.assert_allclose(np.array(model(mx.array(PROMPT))), before, rtol=1e-5, atol=1e-5)


def test_a_layer_of_llama_saves_three_products(tiny_model: Callable[[str], Any]) -> None:
    model = loaded("tiny-llama", tiny_model)
    assert join_projections(model) == 3 * len(model.layers)


def test_joining_twice_finds_nothing_left(tiny_model: Callable[[str], Any]) -> None:
    model = loaded("tiny-llama", tiny_model)
    join_projections(model)
    assert join_projections(model) == 0


def test_weights_are_not_held_twice(tiny_model: Callable[[str], Any]) -> None:
    model = loaded("tiny-llama", tiny_model)
    mx.clear_cache()
    before = mx.get_active_memory()
    join_projections(model)
    mx.clear_cache()
    assert mx.get_active_memory() <= before * 1.02


def test_parts_answer_for_the_input_that_they_get_whatever_was_asked_before() -> None:
    linears = [Linear(8, 4, bias=True), Linear(8, 6, bias=True)]
    joint = Joint(linears)
    first, second = Part(joint, 0), Part(joint, 1)
    one, two = mx.random.normal((3, 8)), mx.random.normal((3, 8))
    for part, linear, x in (
        (first, linears[0], one),
        (first, linears[0], two),
        (second, linears[1], one),
        (second, linears[1], one),
        (first, linears[0], one),
    ):
        np.testing.assert_allclose(np.array(part(x)), np.array(linear(x)), rtol=1e-5, atol=1e-6)


def test_quantised_projections_join_without_a_changed_bit() -> None:
    linears = [Linear(64, n, bias=False).to_quantized(32, 4) for n in (32, 16, 16)]
    x = mx.random.normal((2, 64))
    joint = Joint(linears)
    for index, linear in enumerate(linears):
        assert mx.array_equal(Part(joint, index)(x), linear(x)).item()


@pytest.mark.parametrize(
    "linears",
    [
        (Linear(8, 4, bias=True), Linear(8, 4, bias=False)),
        (Linear(8, 4), Linear(16, 4)),
        (Linear(64, 32), Linear(64, 32).to_quantized(32, 4)),
        (Linear(64, 32).to_quantized(32, 4), Linear(64, 32).to_quantized(32, 8)),
    ],
    ids=["one has a bias", "other inputs", "one is quantised", "other bits"],
)
def test_projections_that_differ_in_kind_stay_apart(linears: tuple[Any, Any]) -> None:
    mlp: Any = Module()  # type: ignore[no-untyped-call]
    mlp.gate_proj, mlp.up_proj = linears
    assert join_projections(mlp) == 0
    assert mlp.gate_proj is linears[0]


def test_a_joined_model_says_what_it_was_given_to_the_tracer_too(
    tiny_model: Callable[[str], Any],
) -> None:
    """A compiled function calls the parts with tracers; nothing of them stays behind."""
    model = loaded("tiny-llama", tiny_model)
    want = np.array(model(mx.array(PROMPT)))
    join_projections(model)
    compiled = mx.compile(lambda ids: model(ids))
    for _ in range(2):
        np.testing.assert_allclose(np.array(compiled(mx.array(PROMPT))), want, rtol=1e-4, atol=1e-5)
    assert len(tree_flatten(model.parameters())) > 0
