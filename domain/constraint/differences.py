"""Shapes less shapes: what is left of one where another must not hold, as a union.

Inner schemas are negated where they stand, as nodes, and read when somebody looks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.json_values import number_of
from mlxbun.domain.constraint.patterns import alt, literal, negate
from mlxbun.domain.constraint.shapes import (
    NEVER,
    Array,
    Conj,
    Contains,
    Number,
    Object,
    Shape,
    Text,
    Values,
)

MAX_NUMBERS = 16  # listed ones, between which ranges are left


def less(
    shape: Shape,
    other: Shape,
    meet: Callable[[Shape, Shape], Shape | None],
    has: Callable[[Shape, Any], bool],
) -> tuple[Shape, ...] | None:
    """Return what is in `shape` and not in `other`; None where no shapes say that."""
    if isinstance(shape, Values):
        left = tuple(text for text in shape.texts if not has(other, json.loads(text)))
        return (Values(left),) if left else ()
    if isinstance(other, Values):
        values = [json.loads(text) for text in other.texts]
        outside = _unlike(shape, [value for value in values if has(shape, value)])
    elif type(shape) is not type(other):
        return (shape,)
    else:
        outside = _outside(shape, other)
    if outside is None:
        return None
    met = (meet(shape, part) for part in outside)
    return tuple(part for part in met if part is not None)


def _unlike(shape: Shape, values: list[Any]) -> tuple[Shape, ...] | None:
    """Return shapes of the same kind without `values`, which are of it."""
    if not values:
        return (shape,)
    match shape:
        case Text():
            return (Text(patterns=(negate(alt(map(literal, values))),)),)
        case Number():
            numbers = sorted({Decimal(str(number_of(value))) for value in values})
            if len(numbers) > MAX_NUMBERS:
                return None
            edges = [None, *numbers, None]
            pairs = zip(edges, edges[1:], strict=False)
            return tuple(Number(bounds=Bounds(a, b, True, True)) for a, b in pairs)
        case Array():
            return (Array(least=1),) if values == [[]] else None
        case Object():
            return (Object(least=1),) if values == [{}] else None
        case Values():
            return None


def _outside(shape: Shape, other: Shape) -> tuple[Shape, ...] | None:
    match shape, other:
        case _, Text():
            return tuple(_texts(other))
        case Number(), Number():
            return _numbers(shape, other)
        case _, Array():
            return _arrays(other)
        case Object(), Object():
            return _objects(shape, other)
        case _:
            return None


def _texts(other: Text) -> Iterable[Shape]:
    if other.least:
        yield Text(most=other.least - 1)
    if other.most is not None:
        yield Text(least=other.most + 1)
    for pattern in other.patterns:
        yield Text(patterns=(negate(pattern),))


def _numbers(shape: Number, other: Number) -> tuple[Shape, ...] | None:
    if other.multiple not in (None, shape.multiple):
        return None
    found: list[Shape] = []
    if other.integer and not shape.integer:
        found.append(Number(fractional=True))
    if other.fractional and not shape.fractional:
        found.append(Number(integer=True))
    bounds = other.bounds
    if bounds.low is not None:
        found.append(Number(bounds=Bounds(high=bounds.low, high_open=not bounds.low_open)))
    if bounds.high is not None:
        found.append(Number(bounds=Bounds(low=bounds.high, low_open=not bounds.high_open)))
    return tuple(found)


def _arrays(other: Array) -> tuple[Shape, ...] | None:
    if other.unique or (other.prefix and other.items):
        return None
    found: list[Shape] = []
    if other.least:
        found.append(Array(most=other.least - 1))
    if other.most is not None:
        found.append(Array(least=other.most + 1))
    for place, conj in enumerate(other.prefix):
        before: tuple[Conj, ...] = ((),) * place
        found += [Array((*before, part), least=place + 1) for part in negated(conj)]
    if other.items is None:
        found.append(Array(least=len(other.prefix) + 1))
    else:
        found += [Array(contains=(Contains(part),)) for part in negated(other.items)]
    for one in other.contains:
        if one.least:
            found.append(Array(contains=(replace(one, least=0, most=one.least - 1),)))
        if one.most is not None:
            found.append(Array(contains=(replace(one, least=one.most + 1, most=None),)))
    return tuple(found)


def _objects(shape: Object, other: Object) -> tuple[Shape, ...] | None:
    if other.keyed or other.names:
        return None
    found: list[Shape] = []
    if other.least:
        found.append(Object(most=other.least - 1))
    if other.most is not None:
        found.append(Object(least=other.most + 1))
    for name in other.required:
        found.append(Object({name: NEVER}))
    for name, conj in other.members.items():
        found += [Object({name: part}, (name,)) for part in negated(conj)]
    if other.others != ():
        if shape.others is not None or shape.keyed:
            return None  # of what nobody has named, none can be said to be there
        for name in shape.members:
            if name not in other.members:
                parts = [()] if other.others is None else negated(other.others)
                found += [Object({name: part}, (name,)) for part in parts]
    return tuple(found)


def negated(conj: Conj) -> list[Conj]:
    """Return what is not in `conj`, as a union of conjunctions."""
    return [(replace(node, negated=not node.negated),) for node in conj]
