"""Gated MLPs by columns: what mlx-lm's own compute, for those that are known and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers import activations as nn
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear

from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.gated_mlp import GatedMlp, quicken_mlps
from mlxbun.adapters.mlx_compute.quick_exp import quick_sigmoid
from models import tiny

WIDTH, INNER = 48, 112


class Mlp(Module):
    def __init__(
        self, activation: Callable[[mx.array], mx.array], *, bias: bool = False, inner: int = INNER
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate_proj: Any = Linear(WIDTH, inner, bias=bias)
        self.up_proj: Any = Linear(WIDTH, inner, bias=bias)
        self.down_proj: Any = Linear(inner, WIDTH, bias=bias)
        self._activation = activation

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layers(Module):
    def __init__(self, *mlps: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.layers = [Holder(mlp) for mlp in mlps]


class Holder(Module):
    def __init__(self, mlp: Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mlp = mlp


def test_a_sigmoid_is_within_four_ten_millionths() -> None:
    x = np.linspace(-87, 100, 200_001).astype(np.float32)
    got = np.array(mx.compile(quick_sigmoid)(mx.array(x))).astype(np.float64)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=4e-7)


def test_a_sigmoid_of_what_is_far_is_nothing_or_all() -> None:
    got = np.array(quick_sigmoid(mx.array([-1e30, -500.0, 500.0, 1e30])))
    np.testing.assert_allclose(got, [0, 0, 1, 1], atol=1e-37)


@pytest.mark.parametrize("activation", [nn.silu, nn.gelu_approx])
@pytest.mark.parametrize("shape", [(1, 1), (8, 1), (1, 70), (3, 5)])
@pytest.mark.parametrize("inner", [INNER, 20_000])  # the second multiplies one row in pieces
def test_a_known_mlp_is_computed_alike(
    activation: Callable[[mx.array], mx.array], shape: tuple[int, int], inner: int
) -> None:
    mlp = Mlp(activation, inner=inner)
    model = Layers(mlp)
    assert quicken_mlps(model) == 1
    mine: Any = model.layers[0].mlp
    assert isinstance(mine, GatedMlp)
    x = 4 * mx.random.normal((*shape, WIDTH), key=mx.random.key(3))
    want, got = np.array(mlp(x)), np.array(mx.compile(mine)(x))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=2e-6 * np.abs(want).max() + 1e-6)


@pytest.mark.parametrize(
    "mlp",
    [
        Mlp(nn.relu),
        Mlp(nn.gelu),  # the exact one
        Mlp(lambda x: x * mx.sigmoid(1.702 * x)),
        Mlp(nn.silu, bias=True),
    ],
    ids=["relu", "gelu", "quick gelu", "biases"],
)
def test_what_is_not_known_stays(mlp: Module) -> None:
    model = Layers(mlp)
    assert quicken_mlps(model) == 0
    assert model.layers[0].mlp is mlp


def test_layers_of_unlike_activations_are_told_apart() -> None:
    class Chosen(Mlp):
        def __init__(self, kind: str) -> None:
            super().__init__(nn.silu if kind == "silu" else nn.relu)
            self.kind = kind

    model = Layers(Chosen("relu"), Chosen("silu"))
    assert quicken_mlps(model) == 1
    assert isinstance(model.layers[1].mlp, GatedMlp)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_a_model_gives_the_same_logits(name: str, tiny_model: Callable[[str], Any]) -> None:
    model = loading.load(tiny_model(name), "native").model
    prompt = mx.array([[5, 9, 17, 4, 250]])
    before = np.array(model(prompt))
    quicken_mlps(model)
    np.testing.assert_allclose(np.array(model(prompt)), before, rtol=1e-5, atol=5e-5)


def test_every_layer_of_llama_is_quickened(tiny_model: Callable[[str], Any]) -> None:
    model = loading.load(tiny_model("tiny-llama"), "native").model
    assert quicken_mlps(model) == len(model.layers)
