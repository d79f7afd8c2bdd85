"""Which rows share a group of slots, and how many slots and columns a group has.

Counts in, counts out; no arrays.  A group's price is what a step pays for it, in bytes a layer:
its slots times its columns, live or not, and a fixed sum for the operations of one more group.
Few groups are preferred: the next one must save a fifth of the price.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mlxbun.adapters.mlx_compute.row_states import SLOTS, bucket

SLACK = 1.25  # fewer groups may cost this much more than more of them
REGROUP = 1.5  # groups that cost this much more than the best are made anew


class Prices(Struct, frozen=True):
    """What a step pays, in bytes a layer.

    `cell`: one column of one slot, keys and values.  `group`: the bytes that are read in the
    time that a group's own operations take.  `first_class`: rows that need no more columns than
    this are of one length.
    """

    cell: int
    group: int
    first_class: int = 256

    def of(self, shapes: Iterable[Shape]) -> int:
        """Return what a step pays for groups of these shapes."""
        return sum(shape.slots * shape.columns * self.cell + self.group for shape in shapes)


class Shape(Struct, frozen=True):
    """A group in numbers.  `longest` is its longest row's tokens, `column` the next to write."""

    rows: int
    slots: int
    longest: int
    column: int
    columns: int


def columns_for(needed: int) -> int:
    """Return a capacity: a sixteenth of slack at most, and at least 64 columns."""
    step = max(64, 1 << max(needed.bit_length() - 5, 0))
    return -(-needed // step) * step


def length_class(needed: int, first_class: int) -> int:
    """Return the power of two from `first_class` up that holds `needed` columns."""
    return max(first_class, 1 << (needed - 1).bit_length())


def opened(num_rows: int, longest: int) -> Shape:
    """Return the shape of a new group."""
    return Shape(num_rows, bucket(num_rows), longest, longest, columns_for(longest + 1))


def joined(shape: Shape, num_rows: int, longest: int) -> Shape:
    """Return a group's shape once `num_rows` more are in it."""
    rows = shape.rows + num_rows
    column = max(shape.column, longest)
    return Shape(
        rows,
        shape.slots if rows <= shape.slots else bucket(rows),
        max(shape.longest, longest),
        column,
        shape.columns if column < shape.columns else columns_for(column + 1),
    )


def tidied(shape: Shape) -> Shape:
    """Return the shape that a group should have after rows left it.

    Slots are given back where half would do, columns where less than half (and 256 more) are
    of use.
    """
    slots, column, columns = bucket(shape.rows), shape.column, shape.columns
    if 2 * slots > shape.slots:
        slots = shape.slots
    if column > 2 * shape.longest + 256:
        column, columns = shape.longest, columns_for(shape.longest + 1)
    return Shape(shape.rows, slots, shape.longest, column, columns)


def runs(lengths: Sequence[int], prices: Prices) -> list[list[int]]:
    """Divide rows among as few groups as come near the least price; return indices.

    Classes of length are merged with their neighbours, the cheapest merger first.  Rows that
    would leave many slots of a group empty then get one of their own.
    """
    by_class = dict[int, list[int]]()
    for index, length in enumerate(lengths):
        by_class.setdefault(length_class(length + 1, prices.first_class), []).append(index)

    def cost(groups: Sequence[Sequence[int]]) -> int:
        return _price(groups, lengths, prices)

    groups = [by_class[size] for size in sorted(by_class)]
    tried = [groups]
    while len(groups) > 1:
        mergers = [
            [*groups[:i], groups[i] + groups[i + 1], *groups[i + 2 :]]
            for i in range(len(groups) - 1)
        ]
        groups = min(mergers, key=cost)
        tried.append(groups)
    least = min(map(cost, tried))
    groups = next(groups for groups in reversed(tried) if cost(groups) <= SLACK * least)
    for group in groups:
        divided = [part for g in groups for part in (_filled(g, lengths) if g is group else [g])]
        if cost(groups) > SLACK * cost(divided):
            groups = divided
    return groups


def homes(
    shapes: Sequence[Shape], lengths: Sequence[int], prices: Prices
) -> tuple[list[tuple[int | None, list[int]]], list[Shape]]:
    """Say which group takes which new rows, by index; None stands for a new group.

    Also return the shapes once they are there, the new groups' last.
    """
    now, placed = list(shapes), list[tuple[int | None, list[int]]]()
    for run in runs(lengths, prices):
        count, longest = len(run), max(lengths[i] for i in run)
        alone = [*now, opened(count, longest)]
        ways = [
            [*now[:i], joined(now[i], count, longest), *now[i + 1 :]] for i in range(len(shapes))
        ]
        home = min(range(len(ways)), key=lambda i: prices.of(ways[i]), default=None)
        if home is not None and prices.of(ways[home]) > SLACK * prices.of(alone):
            home = None
        now = alone if home is None else ways[home]
        placed.append((home, run))
    return placed, now


def worth_regrouping(shapes: Sequence[Shape], lengths: Sequence[int], prices: Prices) -> bool:
    """Return whether the groups cost so much more than the best that all are worth copying."""
    return prices.of(shapes) > REGROUP * _price(runs(lengths, prices), lengths, prices)


def _price(groups: Sequence[Sequence[int]], lengths: Sequence[int], prices: Prices) -> int:
    return prices.of(opened(len(group), max(lengths[i] for i in group)) for group in groups)


def _filled(group: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Divide a group so that its longer rows fill their slots."""
    size = max((slots for slots in SLOTS if slots <= len(group)), default=len(group))
    by_length = sorted(group, key=lambda i: lengths[i])
    parts = by_length[: len(group) - size], by_length[len(group) - size :]
    return [sorted(part) for part in parts if part]
