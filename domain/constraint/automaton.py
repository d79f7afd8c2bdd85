"""Patterns as automata: does a text match, and which states does a set of texts need.

By derivatives: what may follow a character is again a pattern, so that intersections and
complements cost nothing to make.  Source: Brzozowski, "Derivatives of regular expressions", 1964.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from msgspec import Struct

from mlxbun.domain.constraint.patterns import (
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Alt,
    Both,
    Cat,
    Chars,
    Not,
    Pattern,
    Ranges,
    Repeat,
    alt,
    both,
    cat,
    negate,
    repeat,
)

MAX_SIZE = 5_000  # of the pattern of one state, in parts
MAX_EFFORT = 1_500_000  # parts that are derived, in all


class Automaton(Struct, frozen=True):
    """State 0 is the first.  From every state a text of `ends` can be reached.

    What follows in a state of `tails` is a count of one class of characters, and has no moves.
    """

    ends: tuple[bool, ...]
    moves: tuple[tuple[tuple[Ranges, int], ...], ...]
    tails: Mapping[int, Repeat] = {}

    def __hash__(self) -> int:
        return hash((self.ends, self.moves))


def matches(pattern: Pattern, text: str) -> bool:
    """Return whether the whole of `text` is in `pattern`."""
    for letter in text:
        pattern = derive(pattern, ord(letter))
        if pattern == NOTHING:
            return False
    return may_be_empty(pattern)


def build(pattern: Pattern, max_states: int, tail: int | None = None) -> Automaton | None:
    """Return the automaton of `pattern`, None where it needs more states than `max_states`.

    An automaton of no texts has one state that does not end and no moves.  Counts of `tail` and
    more that come last are left as tails.
    """
    effort = 0
    numbers: dict[Pattern, int] = {pattern: 0}
    found: list[list[tuple[Ranges, int]]] = []
    tails: dict[int, Repeat] = {}
    order = [pattern]
    for number, state in enumerate(order):
        if tail is not None and _is_tail(state, tail):
            tails[number] = state
            found.append([])
            continue
        # A derivative costs what the pattern is large: some grow with each.
        size = _size(state, MAX_SIZE)
        cells = _cells(state) if size < MAX_SIZE else []
        effort += size * len(cells)
        if size >= MAX_SIZE or effort > MAX_EFFORT:
            return None
        targets: dict[int, list[tuple[int, int]]] = {}
        for low, high in cells:
            after = derive(state, low)
            if after == NOTHING:
                continue
            if after not in numbers:
                if len(order) >= max_states:
                    return None
                numbers[after] = len(order)
                order.append(after)
            targets.setdefault(numbers[after], []).append((low, high))
        found.append([(_joined(ranges), to) for to, ranges in targets.items()])
    ends = [may_be_empty(state) or number in tails for number, state in enumerate(order)]
    return _trimmed(ends, found, tails)


def _size(pattern: Pattern, most: int) -> int:
    """Return how many parts `pattern` has, or `most` if it has more."""
    waiting, count = [pattern], 0
    while waiting and count < most:
        match waiting.pop():
            case Cat(parts=parts) | Alt(parts=parts) | Both(parts=parts):
                waiting.extend(parts)
            case Repeat(part=part) | Not(part=part):
                waiting.append(part)
            case Chars():
                pass
        count += 1
    return count


def _is_tail(state: Pattern, tail: int) -> TypeGuard[Repeat]:
    """Return whether a count of `tail` or more characters is all that `state` is."""
    return (
        isinstance(state, Repeat)
        and isinstance(state.part, Chars)
        and max(state.least, state.most or 0) >= tail
    )


def may_be_empty(pattern: Pattern) -> bool:
    match pattern:
        case Chars():
            return False
        case Cat(parts=parts) | Both(parts=parts):
            return all(map(may_be_empty, parts))
        case Alt(parts=parts):
            return any(map(may_be_empty, parts))
        case Repeat(part=part, least=least):
            return least == 0 or may_be_empty(part)
        case Not(part=part):
            return not may_be_empty(part)


def derive(pattern: Pattern, code: int) -> Pattern:
    """Return what may follow the character `code`."""
    match pattern:
        case Chars(ranges=ranges):
            return EMPTY if any(low <= code <= high for low, high in ranges) else NOTHING
        case Cat(parts=parts):
            if not parts:
                return NOTHING
            rest = cat(parts[1:])
            after = cat([derive(parts[0], code), rest])
            return alt([after, derive(rest, code)]) if may_be_empty(parts[0]) else after
        case Alt(parts=parts):
            return alt(derive(part, code) for part in parts)
        case Repeat(part=part, least=least, most=most):
            fewer = repeat(part, max(0, least - 1), None if most is None else most - 1)
            return cat([derive(part, code), fewer])
        case Both(parts=parts):
            return both(derive(part, code) for part in parts)
        case Not(part=part):
            return negate(derive(part, code))


def _cells(pattern: Pattern) -> list[tuple[int, int]]:
    """Return ranges of characters that `pattern` does not tell apart at its beginning."""
    cuts: set[int] = {0xE000}
    _cut(pattern, cuts)
    cells: list[tuple[int, int]] = []
    for first, last in ANY_CHAR.ranges:
        edges = [first, *sorted(c for c in cuts if first < c <= last), last + 1]
        cells += [(low, high - 1) for low, high in zip(edges, edges[1:], strict=False)]
    return cells


def _cut(pattern: Pattern, cuts: set[int]) -> None:
    match pattern:
        case Chars(ranges=ranges):
            for low, high in ranges:
                cuts.update((low, high + 1))
        case Cat(parts=parts):
            for part in parts:
                _cut(part, cuts)
                if not may_be_empty(part):
                    break
        case Alt(parts=parts) | Both(parts=parts):
            for part in parts:
                _cut(part, cuts)
        case Repeat(part=part) | Not(part=part):
            _cut(part, cuts)


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:  # in order
        if joined and joined[-1][1] + 1 == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return tuple(joined)


def _trimmed(
    ends: list[bool], moves: list[list[tuple[Ranges, int]]], tails: Mapping[int, Repeat]
) -> Automaton:
    """Drop the states from which nothing ends."""
    alive = {state for state, end in enumerate(ends) if end}
    before: dict[int, list[int]] = {}
    for state, out in enumerate(moves):
        for _, to in out:
            before.setdefault(to, []).append(state)
    waiting = list(alive)
    while waiting:
        for state in before.get(waiting.pop(), ()):
            if state not in alive:
                alive.add(state)
                waiting.append(state)
    kept = [0, *sorted(alive - {0})]
    numbers = {state: number for number, state in enumerate(kept)}
    return Automaton(
        tuple(ends[state] for state in kept),
        tuple(
            tuple((ranges, numbers[to]) for ranges, to in moves[state] if to in alive)
            for state in kept
        ),
        {numbers[state]: tail for state, tail in tails.items()},
    )
