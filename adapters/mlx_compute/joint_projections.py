"""Projections of the same input, multiplied as one.

A layer's query, key and value projections read one input, and so do a gated MLP's gate and up.
One product of their stacked weights is one operation where there were three or two.  Model code
stays as it is: its projection modules are replaced by parts, the first of which to be called
computes all, for the input that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedLinear

from mlxbun.adapters.mlx_compute import few_rows_matmul
from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.one_row_products import pieces_of

_FAMILIES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Joint:
    """Linear projections of one input with stacked weights, plain or quantised alike.

    An output is kept until its part asks for it, for the input that was asked about last.
    """

    def __init__(self, linears: Sequence[Any]) -> None:
        first = linears[0]

        def stacked(name: str) -> mx.array:
            array = mx.concatenate([linear[name] for linear in linears])
            mx.eval(array)
            return array

        def stacked_if_there(name: str) -> mx.array | None:
            return stacked(name) if first.get(name) is not None else None

        self.weight = stacked("weight")  # [n, k]
        self.transposed = self.weight.T  # made once: a step would make it anew each time
        self._scales, self._biases = stacked_if_there("scales"), stacked_if_there("biases")
        self.bias = stacked_if_there("bias")
        self._form = _form(first)
        sizes = [linear.weight.shape[0] for linear in linears]
        self._parts = few_rows_matmul.Parts(sizes)
        self._splits = list(accumulate(sizes))[:-1]
        plain_on_cpu = self._scales is None and on_cpu()
        self._pieces = pieces_of(self.weight) if plain_on_cpu else None
        self._input: mx.array | None = None
        self._outputs: dict[int, mx.array] = {}

    @property
    def num_parts(self) -> int:
        return len(self._parts.sizes)

    @property
    def is_quantised(self) -> bool:
        return self._scales is not None

    def part(self, index: int, x: mx.array) -> mx.array:
        """Return projection `index` of x [..., k]."""
        if x is not self._input or index not in self._outputs:
            self._input, self._outputs = x, dict(enumerate(self._computed(x)))
        out = self._outputs.pop(index)
        if not self._outputs:
            self._input = None
        return out

    def _computed(self, x: mx.array) -> list[mx.array]:
        weight, bias = self.weight, self.bias
        if self._scales is not None:
            out = mx.quantized_matmul(
                x, weight, self._scales, self._biases, transpose=True, **self._form
            )
            out = out if bias is None else out + bias
        elif few_rows_matmul.suits(x, weight):
            return few_rows_matmul.project(x, weight, bias, self._parts)
        elif self._pieces is not None and self._pieces.suits(x):
            out = self._pieces.times(x)
            out = out if bias is None else out + bias
        elif bias is not None:
            out = mx.addmm(bias, x, self.transposed)
        else:
            out = x @ self.transposed
        return list(mx.split(out, self._splits, axis=-1)) if self._splits else [out]


class Part:
    """One projection of a Joint, in the place of the module that it was."""

    def __init__(self, joint: Joint, index: int) -> None:
        self.joint = joint
        self._index = index

    def __call__(self, x: mx.array) -> mx.array:
        return self.joint.part(self._index, x)


def join_projections(model: Any, *, alone: Callable[[Any], bool] = lambda _linear: False) -> int:
    """Join what can be joined in every layer of `model`; return how many products that saves.

    A plain projection that `alone` says yes to becomes a Joint of one, for its kernel's sake.
    The model's own weights go, so nothing is held twice.
    """
    saved = 0
    for module in list(model.modules()):
        for family in _FAMILIES:
            linears = [module.get(name) for name in family]
            if _joinable(linears):
                joint = Joint(linears)
                for index, name in enumerate(family):
                    setattr(module, name, Part(joint, index))
                saved += len(family) - 1
        for name, child in list(module.items()):
            if type(child) is Linear and alone(child):
                setattr(module, name, Part(Joint([child]), 0))
    return saved


def _joinable(linears: Sequence[Any]) -> bool:
    """Return whether the projections have one kind, inner dimension and precision."""
    kinds = {type(linear) for linear in linears}
    if kinds != {Linear} and kinds != {QuantizedLinear}:
        return False
    shapes = {(linear.weight.shape[1:], linear.weight.dtype) for linear in linears}
    forms = {tuple(_form(linear).items()) for linear in linears}
    biased = {"bias" in linear for linear in linears}
    return len(shapes) == len(forms) == len(biased) == 1


def _form(linear: Any) -> dict[str, Any]:
    """Return how a projection is quantised, nothing for a plain one."""
    if type(linear) is not QuantizedLinear:
        return {}
    return {"group_size": linear.group_size, "bits": linear.bits, "mode": linear.mode}
