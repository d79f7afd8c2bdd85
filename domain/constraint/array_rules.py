"""Arrays as sequences of items."""

from __future__ import annotations

from collections.abc import Callable

from mlxbun.domain.constraint.rule_book import quoted
from mlxbun.domain.constraint.sequences import Machine, Out, State, Step, explored
from mlxbun.domain.constraint.shapes import Array, Conj, item_of, joined

MAX_ITEMS = 200  # of an array that may have more, and need not


def array_machine(
    shape: Array, possible: Callable[[Conj | None], bool], value: Callable[[Conj], str]
) -> tuple[State, Machine]:
    """Return where it starts, and the machine that writes `shape`; empty if there is no way."""
    # Places from `width` on are alike, unless there is a last one.
    width = max(len(shape.prefix), shape.least)
    most = shape.most
    if most is not None:
        most = min(most, max(MAX_ITEMS, width))
    everyone = (1 << len(shape.contains)) - 1

    def out(state: State) -> Out:
        place, seen = state.at
        may_end = place >= shape.least and seen == everyone
        item = item_of(shape, place)
        if item is None or (most is not None and place >= most):
            return Out(may_end, ())
        after = place + 1 if most is not None else min(place + 1, width)
        choices: list[tuple[Conj, int]] = [(item, seen)]
        for number, wanted in enumerate(shape.contains):
            if not seen >> number & 1:
                choices.append((joined(item, wanted), seen | 1 << number))
        return Out(
            may_end,
            tuple(
                Step(State((after, now_seen), True), lambda choice=choice: value(choice))  # type: ignore[misc]
                for choice, now_seen in choices
                if possible(choice)
            ),
        )

    start = State((0, 0), False)
    return start, explored(start, out)


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
