"""What shapes have in common: a value in a shape, two shapes met, two shapes apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from mlxbun.domain.constraint.automaton import build, matches
from mlxbun.domain.constraint.differences import less
from mlxbun.domain.constraint.json_values import list_of, number_of, object_of, spelled
from mlxbun.domain.constraint.patterns import both
from mlxbun.domain.constraint.shapes import (
    Array,
    Conj,
    Number,
    Object,
    Shape,
    Text,
    Values,
    is_open,
    item_of,
    meet_arrays,
    meet_numbers,
    meet_objects,
    meet_texts,
    member_of,
)

MAX_DEPTH = 16  # of schemas within schemas that are told apart


class Membership:
    """Answers for shapes whose inner schemas `shapes` reads."""

    def __init__(self, shapes: Callable[[Conj], tuple[Shape, ...]]) -> None:
        self._shapes = shapes

    def has(self, shape: Shape, value: Any) -> bool:
        """Return whether `value`, as JSON has it, is valid."""
        match shape:
            case Values(texts=texts):
                return spelled(value) in texts
            case Text():
                return isinstance(value, str) and _has_text(shape, value)
            case Number():
                number = number_of(value)
                return number is not None and _has_number(shape, Decimal(str(number)))
            case Array():
                items = list_of(value)
                return items is not None and self._has_array(shape, items)
            case Object():
                members = object_of(value)
                return members is not None and self._has_object(shape, members)

    def has_text(self, shape: Shape, text: str) -> bool:
        """As `has`, of a value that is spelled in JSON."""
        if isinstance(shape, Values):
            return text in shape.texts
        return self.has(shape, _read(text))

    def meet(self, a: Shape, b: Shape) -> Shape | None:
        """Return what is in both, None if nothing is."""
        if isinstance(a, Values) and isinstance(b, Values):
            wanted = frozenset(b.texts)
            texts = tuple(text for text in a.texts if text in wanted)
            return Values(texts) if texts else None
        if isinstance(a, Values):
            texts = tuple(text for text in a.texts if self.has_text(b, text))
            return Values(texts) if texts else None
        if isinstance(b, Values):
            return self.meet(b, a)
        match a, b:
            case Text(), Text():
                return meet_texts(a, b)
            case Number(), Number():
                return meet_numbers(a, b)
            case Array(), Array():
                return meet_arrays(a, b)
            case Object(), Object():
                return meet_objects(a, b)
            case _:
                return None

    def less(self, a: Shape, b: Shape) -> tuple[Shape, ...] | None:
        """Return what is in `a` and not in `b`; None where no shapes say that."""
        return less(a, b, self.meet, self.has)

    def apart(self, a: Shape, b: Shape, depth: int = 0, *, written: bool = True) -> bool:
        """Return whether it is certain that nothing written of one is valid for the other.

        Or if not `written`, nothing that is valid: members that are not declared may be there.
        """
        if isinstance(a, Values) and isinstance(b, Values):
            return frozenset(a.texts).isdisjoint(b.texts)
        if isinstance(a, Values):
            return not any(self.has_text(b, text) for text in a.texts)
        if isinstance(b, Values):
            return self.apart(b, a, depth, written=written)
        if type(a) is not type(b):
            return True
        if depth > MAX_DEPTH:
            return False
        match a, b:
            case Text(), Text():
                return _texts_apart(a, b)
            case Number(), Number():
                met = meet_numbers(a, b)
                low, high = (met.bounds.low, met.bounds.high) if met else (None, None)
                return (
                    low is not None
                    and high is not None
                    and (
                        low > high or (low == high and not met.bounds.has(low))  # type: ignore[union-attr]
                    )
                )
            case Array(), Array():
                return _lengths_apart(a.least, a.most, b.least, b.most) or any(
                    self._all_apart(
                        item_of(a, place) or (), item_of(b, place) or (), depth, written
                    )
                    for place in range(min(a.least, b.least, 8))
                )
            case Object(), Object():
                return self._excludes(a, b, depth, written) and self._excludes(b, a, depth, written)
            case _:
                return True

    def _excludes(self, one: Object, other: Object, depth: int, written: bool) -> bool:
        """Return whether no object of `one`, as it is written or not, is valid for `other`."""
        closed = one.others is None or (written and not (is_open(one) or one.names))
        for name in other.required:
            if (
                closed
                and name not in one.members
                and name not in one.required
                and not any(matches(keyed.names, name) for keyed in one.keyed)
            ):
                return True
        for name in one.required:
            mine, theirs = member_of(one, name), member_of(other, name)
            if mine is None or theirs is None or self._all_apart(mine, theirs, depth, written):
                return True
        return False

    def _all_apart(self, a: Conj, b: Conj, depth: int, written: bool) -> bool:
        return all(
            self.apart(one, other, depth + 1, written=written)
            for one in self._shapes(a)
            for other in self._shapes(b)
        )

    def _valid(self, conj: Conj | None, value: Any) -> bool:
        return conj is not None and any(self.has(shape, value) for shape in self._shapes(conj))

    def _has_array(self, shape: Array, value: list[Any]) -> bool:
        if not _counts(shape.least, shape.most, len(value)):
            return False
        if shape.unique and len({spelled(item) for item in value}) < len(value):
            return False
        return all(self._valid(item_of(shape, i), item) for i, item in enumerate(value)) and all(
            _counts(one.least, one.most, sum(self._valid(one.value, item) for item in value))
            for one in shape.contains
        )

    def _has_object(self, shape: Object, value: dict[str, Any]) -> bool:
        if not _counts(shape.least, shape.most, len(value)):
            return False
        if any(name not in value for name in shape.required):
            return False
        return all(
            self._valid(member_of(shape, name), member)
            and all(self._valid(names, name) for names in shape.names)
            for name, member in value.items()
        )


@lru_cache(4096)
def _read(text: str) -> Any:
    return json.loads(text)


def _has_text(shape: Text, value: str) -> bool:
    return _counts(shape.least, shape.most, len(value)) and all(
        matches(pattern, value) for pattern in shape.patterns
    )


def _has_number(shape: Number, value: Decimal) -> bool:
    if (shape.integer and value % 1) or (shape.fractional and not value % 1):
        return False
    if shape.multiple is not None and value % shape.multiple:
        return False
    return shape.bounds.has(value)


def _texts_apart(a: Text, b: Text) -> bool:
    if _lengths_apart(a.least, a.most, b.least, b.most):
        return True
    if not a.patterns or not b.patterns:
        return False
    met = build(both([*a.patterns, *b.patterns]), 200)
    return met is not None and not any(met.ends)


def _lengths_apart(low: int, high: int | None, other: int, last: int | None) -> bool:
    return (high is not None and high < other) or (last is not None and last < low)


def _counts(least: int, most: int | None, count: int) -> bool:
    return least <= count and (most is None or count <= most)
