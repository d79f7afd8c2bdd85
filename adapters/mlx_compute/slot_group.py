"""A group of slots: rows of like length that share their columns and one write column.

Every layer has keys and values [slots, heads, columns, dim].  A row owns a slot; its prompt is
copied into the first columns when it joins, and each step writes one column for all rows, the
same one.  So a row's tokens may stand in any columns: attention does not mind their order,
since position is in the keys already, and `valid` [slots, columns] says which are its own.

`SlotCache` and `GroupedSlotCache` show one layer of one or several groups to the model's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np

from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_attention import attend
from mlxbun.adapters.mlx_compute.slot_plan import Shape
from mlxbun.domain.sampling import RequestId

State = tuple[mx.array, list[mx.array], list[mx.array]]  # valid, keys and values by layer
Like = Sequence[tuple[tuple[int, ...], tuple[int, ...], mx.Dtype]]  # shapes by layer, and dtype


class SlotGroup:
    """Rows by slot, and their state.  `state` is None while a step owns it."""

    def __init__(self, shape: Shape, like: Like) -> None:
        """Make empty slots; `like` has the shapes of a key and a value in every layer."""
        self.rows: list[RequestId | None] = [None] * shape.slots
        self.lengths = np.zeros(shape.slots, dtype=np.int32)  # tokens that each row holds
        self.column = shape.column  # where the next step writes
        self.columns = shape.columns
        slots, columns = shape.slots, shape.columns
        self.state: State | None = (
            mx.zeros((slots, columns), mx.bool_),
            [mx.zeros((slots, k[1], columns, k[3]), dtype) for k, _, dtype in like],
            [mx.zeros((slots, v[1], columns, v[3]), dtype) for _, v, dtype in like],
        )

    @property
    def taken(self) -> list[int]:
        """The slots that have a row."""
        return [slot for slot, row in enumerate(self.rows) if row is not None]

    @property
    def shape(self) -> Shape:
        taken = self.taken
        longest = max((int(self.lengths[slot]) for slot in taken), default=0)
        return Shape(len(taken), len(self.rows), longest, self.column, self.columns)

    def num_bytes(self) -> int:
        if self.state is None:
            return 0
        valid, keys, values = self.state
        return valid.nbytes + sum(array.nbytes for array in (*keys, *values))

    def fill(self, slot: int, row: RequestId, caches: Sequence[Any]) -> None:
        """Copy a row's prompt from its caches into an empty slot, in place."""
        assert self.state is not None
        valid, keys, values = self.state
        length = int(caches[0].offset)
        self.rows[slot], self.lengths[slot] = row, length
        own = (mx.arange(self.columns) < length)[None]
        valid = mx.slice_update(valid, own, mx.array([slot]), axes=(0,))
        if length:
            start = mx.array([slot, 0])
            for layer, cache in enumerate(caches):
                new = cache.keys[:, :, :length], cache.values[:, :, :length]
                keys[layer] = mx.slice_update(keys[layer], new[0], start, axes=(0, 2))
                values[layer] = mx.slice_update(values[layer], new[1], start, axes=(0, 2))
        self.state = valid, keys, values

    def fit(self, shape: Shape) -> None:
        """Take the slots and columns of `shape`; rows keep their slots unless those change."""
        assert self.state is not None
        places = list(range(len(self.rows)))
        if shape.slots != len(self.rows):
            taken = self.taken
            places = [*taken, *[-1] * (shape.slots - len(taken))]
            self.rows = [self.rows[slot] if slot >= 0 else None for slot in places]
            sources = [max(slot, 0) for slot in places]
            if shape.columns >= self.columns:
                index = mx.array(sources)
                valid, keys, values = self.state
                self.state = valid[index], [k[index] for k in keys], [v[index] for v in values]
            lengths = self.lengths[sources]
        else:
            sources, lengths = places, self.lengths
        if shape.columns < self.columns:
            self.state = self.packed(sources, shape.columns)
        elif shape.columns > self.columns:
            self.state = _longer(self.state, shape.columns - self.columns)
        self.lengths = lengths
        self.column, self.columns = shape.column, shape.columns

    def packed(self, slots: Sequence[int], columns: int) -> State:
        """Return the state of `slots` in `columns` columns: each row's own first, in order."""
        assert self.state is not None
        valid, keys, values = self.state
        index = mx.array(list(slots))
        width = min(columns, self.columns)
        column = mx.arange(self.columns)
        order = mx.argsort(mx.where(valid[index], column, column + self.columns), axis=1)[:, :width]

        def gathered(array: mx.array) -> mx.array:
            return mx.contiguous(array.swapaxes(1, 2)[index[:, None], order].swapaxes(1, 2))

        lengths = mx.array(self.lengths[list(slots)])[:, None]
        state = (
            mx.arange(width)[None] < lengths,
            [gathered(k) for k in keys],
            [gathered(v) for v in values],
        )
        return _longer(state, columns - width) if columns > width else state


def merged(
    groups: Sequence[SlotGroup], kept: Sequence[tuple[int, int]], shape: Shape, like: Like
) -> SlotGroup:
    """Return a new group with the rows at `kept` (group, slot), and empty slots after them."""
    new = SlotGroup(shape, like)
    states = list[State]()
    slot = 0
    for number, group in enumerate(groups):
        slots = [theirs for of, theirs in kept if of == number]
        if not slots:
            continue
        states.append(group.packed(slots, shape.columns))
        for theirs in slots:
            new.rows[slot], new.lengths[slot] = group.rows[theirs], group.lengths[theirs]
            slot += 1
    if not states:
        return new
    if shape.slots > slot:
        empty = Shape(0, shape.slots - slot, 0, 0, shape.columns)
        state = SlotGroup(empty, like).state
        assert state is not None
        states.append(state)
    new.state = (
        mx.concatenate([valid for valid, _, _ in states]),
        [mx.concatenate(list(layer)) for layer in zip(*(k for _, k, _ in states), strict=True)],
        [mx.concatenate(list(layer)) for layer in zip(*(v for _, _, v in states), strict=True)],
    )
    return new


def _longer(state: State, more: int) -> State:
    """Return the state with `more` empty columns after it."""

    def longer(array: mx.array) -> mx.array:
        slots, heads, _, dim = array.shape
        return mx.concatenate([array, mx.zeros((slots, heads, more, dim), array.dtype)], axis=2)

    valid, keys, values = state
    return (
        mx.concatenate([valid, mx.zeros((len(valid), more), mx.bool_)], axis=1),
        [longer(k) for k in keys],
        [longer(v) for v in values],
    )


class SlotCache:
    """One layer of one group, as model code sees it while a step is traced."""

    def __init__(
        self,
        keys: mx.array,
        values: mx.array,
        offset: mx.array,
        column: mx.array,
        mask: mx.array,
    ) -> None:
        self.keys, self.values = keys, values
        self.offset = offset  # [slots]: each row's position
        self._column = column
        self.mask = mask  # [slots, 1, 1, columns]

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

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        if N != 1 or window_size is not None:
            raise UnsuitableModel(f"it asks for a mask of {N} tokens and window {window_size}")
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

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        if N != 1 or window_size is not None:
            raise UnsuitableModel(f"it asks for a mask of {N} tokens and window {window_size}")
        return None
