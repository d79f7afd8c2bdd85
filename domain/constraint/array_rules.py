"""Arrays as sequences of items."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import comb, prod

from mlxbun.domain.constraint.differences import negated
from mlxbun.domain.constraint.rule_book import quoted
from mlxbun.domain.constraint.sequences import Machine, Out, State, Step, explored
from mlxbun.domain.constraint.shapes import (
    Array,
    Conj,
    Number,
    Shape,
    Values,
    item_of,
    joined,
)

MAX_ITEMS = 200  # of an array that may have more, and need not
MAX_LEAST = 2_000  # items that may be asked for
MAX_UNIQUE_STATES = 256  # of an array that tells values apart: any of eight


def array_machine(
    shape: Array, possible: Callable[[Conj | None], bool], value: Callable[[Conj], str]
) -> tuple[State, Machine]:
    """Return where it starts, and the machine that writes `shape`; empty if there is no way."""
    # Places from `width` on are alike, unless there is a last one.
    width = max(len(shape.prefix), shape.least)
    most = shape.most
    if most is not None:
        most = min(most, max(MAX_ITEMS, width))

    def choices(item: Conj, seen: tuple[int, ...]) -> Iterable[tuple[Conj, tuple[int, ...]]]:
        """Yield what the next item may be, and how many were then seen of each of `contains`."""
        found: list[tuple[Conj, tuple[int, ...]]] = [(item, ())]
        for count, wanted in zip(seen, shape.contains, strict=True):
            more: list[tuple[Conj, tuple[int, ...]]] = []
            for conj, before in found:
                if wanted.most is None:  # one that does not count may be one all the same
                    more.append((conj, (*before, count)))
                else:
                    for unlike in negated(wanted.value):
                        more.append((joined(conj, unlike), (*before, count)))
                if count < (wanted.least if wanted.most is None else wanted.most):
                    more.append((joined(conj, wanted.value), (*before, count + 1)))
            found = more
        return found

    def out(state: State) -> Out:
        place, *seen = state.at
        may_end = place >= shape.least and all(
            count >= wanted.least for count, wanted in zip(seen, shape.contains, strict=True)
        )
        item = item_of(shape, place)
        if item is None or (most is not None and place >= most):
            return Out(may_end, ())
        after = place + 1 if most is not None else min(place + 1, width)
        return Out(
            may_end,
            tuple(
                Step(State((after, *now_seen), True), lambda choice=choice: value(choice))  # type: ignore[misc]
                for choice, now_seen in choices(item, tuple(seen))
                if possible(choice)
            ),
        )

    start = State((0,) * (1 + len(shape.contains)), False)
    return start, explored(start, out)


def num_states(shape: Array) -> int:
    """Return how many states `array_machine` may need, at most."""
    width = max(len(shape.prefix), shape.least, min(shape.most or 0, MAX_ITEMS)) + 1
    return width * prod((one.least if one.most is None else one.most) + 1 for one in shape.contains)


def distinct_values(
    shape: Array, shapes: Callable[[Conj], tuple[Shape, ...]]
) -> tuple[str, ...] | None:
    """Return the few values that the items may be, spelled; None if they are not a few."""
    if shape.prefix or shape.contains or shape.items is None:
        return None
    texts: dict[str, None] = {}
    for one in shapes(shape.items):
        listed = _values_of(one)
        if listed is None:
            return None
        texts.update(dict.fromkeys(listed))
    return tuple(texts) if _num_unique(len(texts), shape.most) <= MAX_UNIQUE_STATES else None


def unique_machine(values: tuple[str, ...], least: int, most: int | None) -> tuple[State, Machine]:
    """As `array_machine`, of values that are spelled in `values`, each of them once at most."""

    def out(state: State) -> Out:
        used, count = state.at  # a bit for each value
        left = [(1 << i, text) for i, text in enumerate(values) if not used >> i & 1]
        if most is not None and count >= most:
            left = []
        return Out(
            count >= least,
            tuple(
                Step(State((used | bit, count + 1), True), lambda text=text: quoted(text))  # type: ignore[misc]
                for bit, text in left
            ),
        )

    start = State((0, 0), False)
    return start, explored(start, out)


def _num_unique(num_values: int, most: int | None) -> int:
    """Return how many states `unique_machine` needs."""
    return sum(comb(num_values, count) for count in range(min(most or num_values, num_values) + 1))


def _values_of(shape: Shape) -> tuple[str, ...] | None:
    """Return the values of `shape`, spelled; None if they are not a few."""
    if isinstance(shape, Values):
        return shape.texts
    if not isinstance(shape, Number) or not shape.integer or shape.multiple is not None:
        return None
    low, high = shape.bounds.integers()
    if low is None or high is None or high - low >= MAX_UNIQUE_STATES:
        return None
    return tuple(str(number) for number in range(low, high + 1))
