"""Products of one row with large weights on a CPU, in pieces.

OpenBLAS multiplies a small matrix as it lies and copies a large one into panels first, which for
a single row doubles the time: it reads the weights at 4 GB/s in one piece and at 10 in pieces of
some hundred thousand numbers (measured with 0.3.x, AVX-512, from memory).  More rows gain nothing.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding

PIECE = 600_000  # numbers of the weight that one call takes
_ENOUGH = 900_000  # below that, one call is as quick


class Pieces:
    """A weight [n, k] by pieces of its rows."""

    def __init__(self, weight: mx.array) -> None:
        num_outer, num_inner = weight.shape
        count = max(1, PIECE // num_inner)
        self._inner = num_inner
        self._weights = [weight[at : at + count] for at in range(0, num_outer, count)]
        self._pieces = [piece.T for piece in self._weights]

    def times(self, x: mx.array) -> mx.array:
        """Return x @ weight.T for x with one row."""
        return mx.concatenate([x @ piece for piece in self._pieces], axis=-1)

    def times_column(self, column: mx.array) -> mx.array:
        """Return weight @ column [k, 1]."""
        return mx.concatenate([piece @ column for piece in self._weights])

    def suits(self, x: mx.array) -> bool:
        return x.size == self._inner


def pieces_of(weight: mx.array) -> Pieces | None:
    """Return the pieces of a weight that gains by them, None for others."""
    if weight.ndim != 2 or weight.dtype != mx.float32 or weight.size < _ENOUGH:
        return None
    return Pieces(weight)


def cut_heads(model: Any) -> None:
    """Let embeddings that are heads as well multiply one row in pieces."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if type(module) is Embedding and (pieces := pieces_of(module.weight)) is not None:
            setattr(module, "as_linear", _Head(module, pieces))  # noqa: B010 - it is a method


class _Head:
    """Stands in for an embedding's `as_linear`."""

    def __init__(self, embedding: Any, pieces: Pieces) -> None:
        self._transposed = embedding.weight.T
        self._pieces = pieces

    def __call__(self, x: mx.array) -> mx.array:
        return self._pieces.times(x) if self._pieces.suits(x) else x @ self._transposed
