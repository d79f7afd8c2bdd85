"""Paged keys and values as model code sees them, and the kernels that they need."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx

from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel, check_mask


class Kernels(Protocol):
    """What `paged_attention` offers; tests have a double that needs no GPU."""

    def unsupported(self, dim: int, dtype: mx.Dtype) -> str | None: ...

    def attend(
        self,
        queries: mx.array,
        new_keys: mx.array,
        new_values: mx.array,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        lengths: mx.array,
        scale: float,
    ) -> mx.array: ...

    def fill(
        self,
        new_keys: mx.array,
        new_values: mx.array,
        keys: mx.array,
        values: mx.array,
        pages: mx.array,
        length: int,
    ) -> mx.array: ...


class PagedCache:
    """One layer's pool, as model code sees it while a step is traced."""

    def __init__(
        self,
        kernels: Kernels,
        keys: mx.array,
        values: mx.array,
        table: mx.array,
        offset: mx.array,
    ) -> None:
        self._kernels = kernels
        self.keys, self.values = keys, values
        self.offset = offset  # [slots]: each row's position
        self._table = table
        self._lengths = offset
        self._new: tuple[mx.array, mx.array] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Hold the new token for `attend`, which puts it into the pool."""
        self._new = keys, values
        self.offset = self.offset + 1
        return keys, values

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float,
        mask: mx.array | None,
        sinks: mx.array | None,
    ) -> mx.array:
        if mask is not None or sinks is not None:
            raise UnsuitableModel("its attention has a mask or sinks of its own")
        if self._new is None or keys is not self._new[0] or values is not self._new[1]:
            raise UnsuitableModel("it attends to other keys than those it keeps")
        return self._kernels.attend(
            queries, *self._new, self.keys, self.values, self._table, self._lengths, scale
        )

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        check_mask(N, window_size)
        return None
