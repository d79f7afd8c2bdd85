"""What a layer keeps in slots, by the class of the cache that mlx-lm gives it for one row.

*Plain* keys and values stand in the columns of their group (`slot_group`).  Those of a *window*
stand in a ring of columns, which all rows of the group write at the same place: the token before
stands left of it, and what is oldest is overwritten.  *Arrays*, of layers that sum up what they
have seen, have no columns; a step replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_cache import ArraysView, SlotCache

Arrays = list[mx.array]  # of one layer, by slot


class Place(Struct, frozen=True):
    """Where a step writes in a group, and which of its columns each slot may see, as arrays."""

    offset: mx.array  # [slots]
    column: mx.array  # [1]
    mask: mx.array  # [slots, 1, 1, columns]
    ring: mx.array | None = None  # [1]
    ring_mask: mx.array | None = None  # [slots, 1, 1, columns of the ring]


class Order(Struct, frozen=True):
    """How slots are copied: `index` [n] of them; `columns` [n, width] of theirs, in this order.

    `ring` is the column of the ring that would be written next, `to` the one that will be.
    """

    index: mx.array
    columns: mx.array
    ring: int
    to: int


class SlotLayer(Protocol):
    """One layer's part in slots.  `columns` are a group's; a ring has at most its window."""

    cell: int  # bytes of a column
    window: int | None
    attends: bool  # whether groups may go one by one

    def empty(self, slots: int, columns: int) -> Arrays: ...

    def filled(self, arrays: Arrays, slot: int, cache: Any, ring: int) -> Arrays:
        """Copy a row's cache into a slot, in place."""
        ...

    def packed(self, arrays: Arrays, order: Order, columns: int) -> Arrays:
        """Copy slots into `columns` columns."""
        ...

    def longer(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        """Copy all slots into more columns; a ring that grows is written at `to` next."""
        ...

    def seen(self, arrays: Arrays, place: Place) -> Any:
        """Return the layer as model code sees it while a step is traced."""
        ...

    def kept(self, seen: Any) -> Arrays:
        """Return what the step left in what model code saw."""
        ...

    def restore(self, arrays: Arrays, length: int, cache: Any) -> None:
        """Give an empty cache of mlx-lm's what one packed slot of `length` tokens has."""
        ...


class PlainLayer:
    """mlx-lm's KVCache: keys and values [slots, heads, columns, dim]."""

    window: int | None = None
    attends = True

    def __init__(self, cache: Any) -> None:
        """`cache` has processed a token."""
        self._like = [(a.shape[1], a.shape[3], a.dtype) for a in (cache.keys, cache.values)]
        self.cell = sum(heads * dim * dtype.size for heads, dim, dtype in self._like)

    def empty(self, slots: int, columns: int) -> Arrays:
        return [mx.zeros((slots, heads, columns, dim), t) for heads, dim, t in self._like]

    def filled(self, arrays: Arrays, slot: int, cache: Any, ring: int) -> Arrays:
        length = int(cache.offset)
        if not length:
            return arrays
        start = mx.array([slot, 0])
        return [
            mx.slice_update(array, new[:, :, :length], start, axes=(0, 2))
            for array, new in zip(arrays, (cache.keys, cache.values), strict=True)
        ]

    def packed(self, arrays: Arrays, order: Order, columns: int) -> Arrays:
        places = order.index[:, None], order.columns
        gathered = [mx.contiguous(a.swapaxes(1, 2)[places].swapaxes(1, 2)) for a in arrays]
        return self.longer(gathered, columns, 0, 0)

    def longer(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        return [_padded(array, columns - array.shape[2]) for array in arrays]

    def seen(self, arrays: Arrays, place: Place) -> Any:
        keys, values = arrays
        return SlotCache(keys, values, place.offset, place.column, place.mask)

    def kept(self, seen: Any) -> Arrays:
        return [seen.keys, seen.values]

    def restore(self, arrays: Arrays, length: int, cache: Any) -> None:
        cache.state = (*(array[:, :, :length] for array in arrays), length)


class WindowLayer(PlainLayer):
    """mlx-lm's RotatingKVCache: a ring of as many columns as the window, or as the group."""

    def __init__(self, cache: Any) -> None:
        if cache.keep:
            raise UnsuitableModel(f"a window keeps its first {cache.keep} tokens")
        super().__init__(cache)
        self.window = self._size = int(cache.max_size)

    def empty(self, slots: int, columns: int) -> Arrays:
        return super().empty(slots, min(self._size, columns))

    def filled(self, arrays: Arrays, slot: int, cache: Any, ring: int) -> Arrays:
        if not cache.offset:
            return arrays
        # mlx-lm has no public word for it: the tokens of the row's own ring, the newest last
        ordered = [cache._temporal_order(of_row) for of_row in (cache.keys, cache.values)]
        num_columns = arrays[0].shape[2]
        count = min(ordered[0].shape[2], num_columns)
        first = (ring - count) % num_columns
        head = min(count, num_columns - first)  # what stands before the ring's end
        found: Arrays = []
        for array, new in zip(arrays, ordered, strict=True):
            new = new[:, :, -count:]
            array = mx.slice_update(array, new[:, :, :head], mx.array([slot, first]), axes=(0, 2))
            if head < count:
                array = mx.slice_update(array, new[:, :, head:], mx.array([slot, 0]), axes=(0, 2))
            found.append(array)
        return found

    def packed(self, arrays: Arrays, order: Order, columns: int) -> Arrays:
        rows = [array[order.index] for array in arrays]
        return self._turned(rows, columns, order.ring, order.to)

    def longer(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        if min(self._size, columns) == arrays[0].shape[2]:
            return arrays
        return self._turned(arrays, columns, ring, to)

    def seen(self, arrays: Arrays, place: Place) -> Any:
        assert place.ring is not None and place.ring_mask is not None
        keys, values = arrays
        return SlotCache(keys, values, place.offset, place.ring, place.ring_mask, self._size)

    def restore(self, arrays: Arrays, length: int, cache: Any) -> None:
        count = min(length, self._size)
        newest = [array[:, :, array.shape[2] - count :] for array in arrays]
        cache.state = (*newest, length, 0, self._size, count)

    def _turned(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        """Return rings for `columns` that are written at `to` next.

        A column that is older than the ring before was gets what nobody sees.
        """
        size, columns = arrays[0].shape[2], min(self._size, columns)
        ages = [min((to - 1 - column) % columns, size - 1) for column in range(columns)]
        order = mx.array([(ring - 1 - age) % size for age in ages])
        return [array[:, :, order] for array in arrays]


class ArraysLayer:
    """mlx-lm's ArraysCache: arrays [slots, ...] that a step replaces."""

    cell = 0
    window: int | None = None
    attends = False

    def __init__(self, cache: Any) -> None:
        if any(array is None for array in cache.cache):
            raise UnsuitableModel("it leaves some of its state empty")
        self._like = [(array.shape[1:], array.dtype) for array in cache.cache]

    def empty(self, slots: int, columns: int) -> Arrays:
        return [mx.zeros((slots, *shape), dtype) for shape, dtype in self._like]

    def filled(self, arrays: Arrays, slot: int, cache: Any, ring: int) -> Arrays:
        new = self.empty(1, 0) if cache.empty() else cache.cache
        start = mx.array([slot])
        return [
            mx.slice_update(array, row.astype(array.dtype), start, axes=(0,))
            for array, row in zip(arrays, new, strict=True)
        ]

    def packed(self, arrays: Arrays, order: Order, columns: int) -> Arrays:
        return [array[order.index] for array in arrays]

    def longer(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        return arrays

    def seen(self, arrays: Arrays, place: Place) -> Any:
        return ArraysView(arrays)

    def kept(self, seen: Any) -> Arrays:
        return list(seen.cache)

    def restore(self, arrays: Arrays, length: int, cache: Any) -> None:
        cache.cache = list(arrays)


class SeveralLayer:
    """mlx-lm's CacheList: several in one layer."""

    attends = False

    def __init__(self, layers: Sequence[SlotLayer]) -> None:
        self._layers = layers
        self.cell = sum(layer.cell for layer in layers)
        self.window = next((layer.window for layer in layers if layer.window), None)
        self._counts = [len(layer.empty(1, 1)) for layer in layers]

    def empty(self, slots: int, columns: int) -> Arrays:
        return [array for layer in self._layers for array in layer.empty(slots, columns)]

    def filled(self, arrays: Arrays, slot: int, cache: Any, ring: int) -> Arrays:
        each = zip(self._layers, self._apart(arrays), cache.caches, strict=True)
        return [a for layer, own, part in each for a in layer.filled(own, slot, part, ring)]

    def packed(self, arrays: Arrays, order: Order, columns: int) -> Arrays:
        each = zip(self._layers, self._apart(arrays), strict=True)
        return [a for layer, own in each for a in layer.packed(own, order, columns)]

    def longer(self, arrays: Arrays, columns: int, ring: int, to: int) -> Arrays:
        each = zip(self._layers, self._apart(arrays), strict=True)
        return [a for layer, own in each for a in layer.longer(own, columns, ring, to)]

    def seen(self, arrays: Arrays, place: Place) -> Any:
        each = zip(self._layers, self._apart(arrays), strict=True)
        return [layer.seen(own, place) for layer, own in each]

    def kept(self, seen: Any) -> Arrays:
        each = zip(self._layers, seen, strict=True)
        return [array for layer, part in each for array in layer.kept(part)]

    def restore(self, arrays: Arrays, length: int, cache: Any) -> None:
        for layer, own, part in zip(self._layers, self._apart(arrays), cache.caches, strict=True):
            layer.restore(own, length, part)

    def _apart(self, arrays: Arrays) -> list[Arrays]:
        left = iter(arrays)
        return [[next(left) for _ in range(count)] for count in self._counts]


_KINDS: dict[str, type[PlainLayer] | type[ArraysLayer]] = {
    "KVCache": PlainLayer,
    "RotatingKVCache": WindowLayer,
    "ArraysCache": ArraysLayer,
}


def layer_of(cache: Any) -> SlotLayer:
    """Return what slots have for a layer whose cache has processed a token.

    Raises UnsuitableModel for a class that is not known.
    """
    name = type(cache).__name__
    if name == "CacheList":
        return SeveralLayer([layer_of(part) for part in cache.caches])
    if name not in _KINDS:
        raise UnsuitableModel(f"it keeps {name}")
    return _KINDS[name](cache)


def _padded(array: mx.array, more: int) -> mx.array:
    """Return [slots, heads, columns, dim] with empty columns after it."""
    if not more:
        return array
    slots, heads, _, dim = array.shape
    return mx.concatenate([array, mx.zeros((slots, heads, more, dim), array.dtype)], axis=2)
