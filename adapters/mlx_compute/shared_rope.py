"""Rotary positions for a decode step on a CPU: one table a step instead of two a layer.

MLX's CPU build has no rotary kernel.  It computes the angles, their cosines and their sines anew
for every query and key of every layer, some nine operations each time, and on a small model
operations are what a step costs.  All layers rotate by the same angles, so here they are computed
once, and a rotation is one fused operation.  Prompts go MLX's own way.
"""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx.nn.layers.positional_encoding import RoPE


class RotaryTable:
    """Cosines and signed sines of the rows' positions, kept for the positions asked about last."""

    def __init__(self, dims: int, base: float, scale: float) -> None:
        half = dims // 2
        exponents = mx.arange(0, -half, -1, dtype=mx.float32) * (math.log(base) / half)
        self._frequencies = mx.exp(exponents)
        self._signs = mx.array([[-1.0], [1.0]])
        mx.eval(self._frequencies, self._signs)  # here, and not in the trace of a step
        self._scale = scale
        self._of: mx.array | None = None
        self._table: tuple[mx.array, mx.array] | None = None

    def at(self, offset: mx.array) -> tuple[mx.array, mx.array]:
        """Return [rows, 1, 1, 1, half] and [rows, 1, 1, 2, half] for offsets [rows]."""
        if self._table is None or self._of is not offset:
            angles = (offset * self._scale)[:, None] * self._frequencies
            cosines, sines = mx.cos(angles), mx.sin(angles)
            signed = sines[:, None, None, None, :] * self._signs
            self._of, self._table = offset, (cosines[:, None, None, None, :], signed)
        return self._table


class SharedRope:
    """A layer's rotary module, with a table that it shares with others of its kind."""

    def __init__(self, rope: Any, table: RotaryTable) -> None:
        self._rope = rope
        self._table = table
        self._dims = rope.dims

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotate x [rows, heads, tokens, dim] by its positions."""
        one_each = isinstance(offset, mx.array) and offset.ndim == 1 and x.shape[2] == 1
        if not one_each or x.dtype != mx.float32 or x.shape[-1] != self._dims:
            rotated: mx.array = self._rope(x, offset=offset)
            return rotated
        cosines, sines = self._table.at(offset)
        halves = x.reshape(*x.shape[:-1], 2, self._dims // 2)
        turned = halves * cosines + halves[..., ::-1, :] * sines
        return turned.reshape(x.shape)


def share_rotations(model: Any) -> int:
    """Let the rotary modules of `model` share tables; return how many do."""
    tables: dict[tuple[int, float, float], RotaryTable] = {}
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.items()):
            if type(child) is RoPE and not child.traditional:
                key = (child.dims, child.base, child.scale)
                if key not in tables:
                    tables[key] = RotaryTable(*key)
                setattr(module, name, SharedRope(child, tables[key]))
                count += 1
    return count
