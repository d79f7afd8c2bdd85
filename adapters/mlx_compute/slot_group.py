"""A group of slots: rows of like length that share their columns and one write column.

A row owns a slot; its prompt is copied into the first columns when it joins, and each step writes
one column for all rows, the same one.  So a row's tokens may stand in any columns: attention does
not mind their order, since position is in the keys already, and `valid` [slots, columns] says which
are its own.  What each layer has there is `slot_layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.cut_layers import parts
from mlxbun.adapters.mlx_compute.slot_layers import Arrays, Order, SlotLayer
from mlxbun.adapters.mlx_compute.slot_plan import Shape
from mlxbun.domain.sampling import RequestId

State = tuple[mx.array, list[Arrays]]  # valid; arrays by layer


class SlotGroup:
    """Rows by slot, and their state.  `state` is None while a step owns it."""

    def __init__(self, shape: Shape, layers: Sequence[SlotLayer]) -> None:
        """Make empty slots."""
        self._layers = layers
        self._window = next((layer.window for layer in layers if layer.window), None)
        self.rows: list[RequestId | None] = [None] * shape.slots
        self._starts = [0] * shape.slots  # each row's position 0, were its columns side by side
        self._starts_array: mx.array | None = None
        self.column = shape.column  # where the next step writes
        self.columns = shape.columns
        self.ring = self._ring_for(shape)  # where it writes in the rings of windows
        self.state: State | None = (
            mx.zeros((shape.slots, shape.columns), mx.bool_),
            [layer.empty(shape.slots, shape.columns) for layer in layers],
        )

    @property
    def taken(self) -> list[int]:
        """The slots that have a row."""
        return [slot for slot, row in enumerate(self.rows) if row is not None]

    @property
    def starts(self) -> mx.array:
        """What a row's position is behind the column that is written: [slots].

        The same from step to step, so that nothing is counted or sent for each row.
        """
        if self._starts_array is None:
            self._starts_array = mx.array(self._starts)
            mx.eval(self._starts_array)
        return self._starts_array

    @property
    def shape(self) -> Shape:
        taken = self.taken
        longest = max((self.length(slot) for slot in taken), default=0)
        return Shape(len(taken), len(self.rows), longest, self.column, self.columns)

    @property
    def ring_columns(self) -> int | None:
        """Columns of a window's ring, None where no layer has one."""
        return min(self._window, self.columns) if self._window else None

    def length(self, slot: int) -> int:
        """Return how many tokens the row in a slot holds."""
        return self.column - self._starts[slot]

    def num_bytes(self) -> int:
        if self.state is None:
            return 0
        valid, layers = self.state
        return valid.nbytes + sum(array.nbytes for arrays in layers for array in arrays)

    def step(self) -> None:
        """Note that a step wrote a column."""
        self.column += 1
        if size := self.ring_columns:
            self.ring = (self.ring + 1) % size

    def fill(self, slot: int, row: RequestId, caches: Sequence[Any]) -> None:
        """Copy a row's prompt from its caches into an empty slot, in place."""
        assert self.state is not None
        valid, arrays = self.state
        length = tokens_of(caches)
        self._take(slot, row, length)
        own = (mx.arange(self.columns) < length)[None]
        valid = mx.slice_update(valid, own, mx.array([slot]), axes=(0,))
        each = zip(self._layers, arrays, caches, strict=True)
        self.state = valid, [layer.filled(a, slot, cache, self.ring) for layer, a, cache in each]

    def fit(self, shape: Shape) -> None:
        """Take the slots and columns of `shape`; rows keep their slots unless those change."""
        assert self.state is not None
        places, size, to = list(range(len(self.rows))), self.ring_columns, self._ring_for(shape)
        lengths = {row: self.length(slot) for slot, row in enumerate(self.rows) if row is not None}
        if shape.slots != len(self.rows):
            taken = self.taken
            places = [*taken, *[-1] * (shape.slots - len(taken))]
            self.rows = [self.rows[slot] if slot >= 0 else None for slot in places]
            sources = [max(slot, 0) for slot in places]
            if shape.columns >= self.columns:
                index = mx.array(sources)
                valid, layers = self.state
                self.state = valid[index], [[a[index] for a in arrays] for arrays in layers]
        else:
            sources = places
        if shape.columns < self.columns:
            self.state = self.packed(sources, shape.columns, to)
        elif shape.columns > self.columns:
            self.state = self._longer(self.state, shape.columns, to)
        shrunk = shape.columns < self.columns
        self.column, self.columns = shape.column, shape.columns
        self._starts = [0 if row is None else shape.column - lengths[row] for row in self.rows]
        self._starts_array = None
        if shrunk or self.ring_columns != size:
            self.ring = to

    def packed(self, slots: Sequence[int], columns: int, to: int) -> State:
        """Return the state of `slots` in `columns` columns: each row's own first, in order.

        A ring is written at `to` next.
        """
        assert self.state is not None
        valid, layers = self.state
        index = mx.array(list(slots))
        width = min(columns, self.columns)
        column = mx.arange(self.columns)
        places = mx.argsort(mx.where(valid[index], column, column + self.columns), axis=1)
        order = Order(index, places[:, :width], self.ring, to)
        lengths = mx.array([self.length(slot) for slot in slots])[:, None]
        each = zip(self._layers, layers, strict=True)
        return (
            mx.arange(columns)[None] < mx.minimum(lengths, width),
            [layer.packed(arrays, order, columns) for layer, arrays in each],
        )

    def _take(self, slot: int, row: RequestId, length: int) -> None:
        self.rows[slot], self._starts[slot] = row, self.column - length
        self._starts_array = None

    def _ring_for(self, shape: Shape) -> int:
        """Return where to write next in rings that are laid anew.

        A row alone has its tokens at their positions, modulo the ring, whatever came before: so an
        answer that is resumed sums in the same order as one that was never cut.
        """
        return shape.longest % min(self._window, shape.columns) if self._window else 0

    def _longer(self, state: State, columns: int, to: int) -> State:
        """Return the state with empty columns after it, `columns` in all."""
        valid, layers = state
        more = mx.zeros((len(valid), columns - self.columns), mx.bool_)
        each = zip(self._layers, layers, strict=True)
        return (
            mx.concatenate([valid, more], axis=1),
            [layer.longer(arrays, columns, self.ring, to) for layer, arrays in each],
        )


def merged(
    groups: Sequence[SlotGroup],
    kept: Sequence[tuple[int, int]],
    shape: Shape,
    layers: Sequence[SlotLayer],
) -> SlotGroup:
    """Return a new group with the rows at `kept` (group, slot), and empty slots after them."""
    new = SlotGroup(shape, layers)
    states = list[State]()
    slot = 0
    for number, group in enumerate(groups):
        slots = [theirs for of, theirs in kept if of == number]
        if not slots:
            continue
        states.append(group.packed(slots, shape.columns, new.ring))
        for theirs in slots:
            row = group.rows[theirs]
            assert row is not None
            new._take(slot, row, group.length(theirs))
            slot += 1
    if not states:
        return new
    if shape.slots > slot:
        empty = Shape(0, shape.slots - slot, 0, 0, shape.columns)
        state = SlotGroup(empty, layers).state
        assert state is not None
        states.append(state)
    new.state = (
        mx.concatenate([valid for valid, _ in states]),
        [
            [mx.concatenate(list(same)) for same in zip(*arrays, strict=True)]
            for arrays in zip(*(arrays for _, arrays in states), strict=True)
        ],
    )
    return new


def tokens_of(caches: Sequence[Any]) -> int:
    """Return how many tokens a row's caches hold, 0 where no layer counts them."""
    return next((int(part.offset) for part in parts(caches) if hasattr(part, "offset")), 0)
