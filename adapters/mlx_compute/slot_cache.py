"""A layer's slots as model code sees them while a step is traced: see `slot_layers`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel, check_mask
from mlxbun.adapters.mlx_compute.slot_attention import attend, attend_grouped


class SlotCache:
    """One layer of one group, as model code sees it while a step is traced."""

    def __init__(
        self,
        keys: mx.array,
        values: mx.array,
        offset: mx.array,
        column: mx.array,
        mask: mx.array,
        window: int | None = None,
    ) -> None:
        self.keys, self.values = keys, values
        self.offset = offset  # [slots]: each row's position
        self._column = column
        self.mask = mask  # [slots, 1, 1, columns]
        self.window = window  # tokens, of a layer that sees no more

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self._column, axes=(2,))
        self.values = mx.slice_update(self.values, values, self._column, axes=(2,))
        self.offset = self.offset + 1
        return self.keys, self.values

    def attend(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        scale: float,
        mask: mx.array | None,
        sinks: mx.array | None,
    ) -> mx.array:
        """Attend as `slot_attention` does where the model asks for just that, else as MLX."""
        if keys is self.keys and values is self.values and mask is self.mask:
            return attend(queries, keys, values, self.mask, scale, sinks)
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )

    def attend_grouped(self, queries: mx.array, scale: float) -> mx.array:
        """Return attention of queries [slots, key heads, each, dim]: see `slot_attention`."""
        return attend_grouped(queries, self.keys, self.values, self.mask, scale)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        check_mask(N, window_size, self.window)
        return self.mask


class GroupedSlotCache:
    """One layer of several groups.  Model code hands its queries to `attend`."""

    def __init__(self, groups: Sequence[SlotCache], offset: mx.array) -> None:
        self.offset = offset  # [slots]: each row's position
        self._groups = groups
        self._new: tuple[mx.array, mx.array] | None = None
        self._ends = list(accumulate(len(group.keys) for group in groups))[:-1]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the new column of every group; what is returned is for `attend` to ignore."""
        of_groups = mx.split(keys, self._ends), mx.split(values, self._ends)
        for group, k, v in zip(self._groups, *of_groups, strict=True):
            group.update_and_fetch(k, v)
        self.offset = self.offset + 1
        self._new = keys, values
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
        if mask is not None:
            raise UnsuitableModel("its attention has a mask of its own")
        if self._new is None or keys is not self._new[0] or values is not self._new[1]:
            raise UnsuitableModel("it attends to other keys than those it keeps")
        of_groups = mx.split(queries, self._ends)
        attended = [
            attend(q, group.keys, group.values, group.mask, scale, sinks)
            for group, q in zip(self._groups, of_groups, strict=True)
        ]
        return mx.concatenate(attended)

    def attend_grouped(self, queries: mx.array, scale: float) -> mx.array:
        each = zip(self._groups, mx.split(queries, self._ends), strict=True)
        return mx.concatenate([group.attend_grouped(q, scale) for group, q in each])

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        check_mask(N, window_size, self._groups[0].window)
        return None


class ArraysView:
    """One layer's arrays [slots, ...], as model code sees them while a step is traced."""

    lengths, left_padding = None, None

    def __init__(self, arrays: Sequence[mx.array]) -> None:
        self.cache = list(arrays)

    def __getitem__(self, index: int) -> mx.array:
        return self.cache[index]

    def __setitem__(self, index: int, array: mx.array) -> None:
        self.cache[index] = array

    def make_mask(self, N: int) -> None:
        check_mask(N, None)

    def advance(self, N: int) -> None:
        """Nothing here counts tokens."""
