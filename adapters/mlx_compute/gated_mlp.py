"""Gated MLPs on a CPU: weights times columns, and an activation that the compiler makes vectors of.

MLX's CPU build computes a sigmoid one number at a time, which for a small model is an eighth of a
decode step and a third of a prompt.  And OpenBLAS multiplies weights by columns of tokens faster
than rows of tokens by weights, 10 to 20 % where there are few; that way the gate and the rest lie
apart in memory too, each without gaps.

Model code stays as it is: an MLP that is found to compute `down(activation(gate(x)) * up(x))` is
replaced by one that does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.linear import Linear

from mlxbun.adapters.mlx_compute.one_row_products import Pieces, pieces_of
from mlxbun.adapters.mlx_compute.quick_exp import quick_sigmoid

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_TOLERANCE = 1e-5  # of the largest number of an output
_PROBES = 4
_FEW = 1024  # numbers: MLX's sigmoid is one operation, ours are nine, each of them quick


def _silu(gate: mx.array) -> mx.array:
    return gate * _sigmoid(gate)


def _gelu(gate: mx.array) -> mx.array:
    """Return GELU by its tanh approximation, which is a sigmoid of a cubic."""
    cubic = gate * (1.0 + 0.044715 * gate * gate)
    return gate * _sigmoid(2.0 * math.sqrt(2.0 / math.pi) * cubic)


def _sigmoid(x: mx.array) -> mx.array:
    return mx.sigmoid(x) if x.size <= _FEW else quick_sigmoid(x)


Activation = Callable[[mx.array], mx.array]
_ACTIVATIONS: tuple[Activation, ...] = (_silu, _gelu)


class GatedMlp:
    """The MLP of three plain projections.

    `both` [2 * inner, k] are gate's and up's weights stacked, `down` [k, inner] is the third's.
    """

    def __init__(self, mlp: Any, activation: Activation) -> None:
        self.both = mx.concatenate([mlp.gate_proj.weight, mlp.up_proj.weight])
        mx.eval(self.both)
        self.down = mlp.down_proj.weight
        self._num_inner = len(mlp.gate_proj.weight)
        self._pieces = pieces_of(self.both), pieces_of(self.down)
        self._gated = mx.compile(lambda gate, up: activation(gate) * up)

    def __call__(self, x: mx.array) -> mx.array:
        """Return the MLP's output for x [..., k], same shape."""
        columns = x.reshape(-1, x.shape[-1]).T
        pieces = self._pieces if columns.shape[1] == 1 else (None, None)
        both = _times(self.both, pieces[0], columns)
        gated = self._gated(both[: self._num_inner], both[self._num_inner :])
        return _times(self.down, pieces[1], gated).T.reshape(x.shape)


def quicken_mlps(model: Any) -> int:
    """Replace the gated MLPs of `model` whose activation is known; return how many.

    One of each kind is tried on random numbers beside the model's own.
    """
    known: dict[tuple[Any, ...], Activation | None] = {}
    count = 0
    for module in list(model.modules()):
        for name, mlp in list(module.items()):
            if _is_plain(mlp):
                kind = _kind(mlp)
                if kind not in known:
                    known[kind] = _activation_of(mlp)
                if (activation := known[kind]) is not None:
                    setattr(module, name, GatedMlp(mlp, activation))
                    count += 1
    return count


def _times(weight: mx.array, pieces: Pieces | None, columns: mx.array) -> mx.array:
    return weight @ columns if pieces is None else pieces.times_column(columns)


def _is_plain(mlp: Any) -> bool:
    """Return whether a module has the three projections alone, without biases, in float32."""
    if not isinstance(mlp, dict) or sorted(mlp) != sorted(_PROJECTIONS):
        return False
    return all(
        type(linear) is Linear and "bias" not in linear and linear.weight.dtype == mx.float32
        for linear in mlp.values()
    )


def _kind(mlp: Any) -> tuple[Any, ...]:
    """Return what MLPs of one way of computing have in common."""
    settings = {key: value for key, value in vars(mlp).items() if not key.startswith("_")}
    return (type(mlp), repr(sorted(settings.items())))


def _activation_of(mlp: Any) -> Activation | None:
    width = mlp.gate_proj.weight.shape[1]
    x = 3.0 * mx.random.normal((_PROBES, width), key=mx.random.key(0))
    wanted = mlp(x)
    near = _TOLERANCE * mx.abs(wanted).max()
    for activation in _ACTIVATIONS:
        gated = activation(mlp.gate_proj(x)) * mlp.up_proj(x)
        if (mx.abs(mlp.down_proj(gated) - wanted).max() <= near).item():
            return activation
    return None
