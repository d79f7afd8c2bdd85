"""Shapes: what a JSON Schema comes to, of one kind each.

A schema is the union of some shapes.  Their inner schemas stay as they were written, in `Conj`s,
until somebody looks: so a schema may refer to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from math import lcm
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.constraint.automaton import matches
from mlxbun.domain.constraint.bounds import Bounds
from mlxbun.domain.constraint.patterns import ANY_TEXT, Pattern


class Node(Struct, frozen=True):
    """A schema where it stands: `pointer` is its place, as in `/properties/a`.

    `negated` means what is not valid under it.
    """

    schema: Any
    pointer: str
    negated: bool = False

    def __hash__(self) -> int:
        return hash((self.pointer, self.negated))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Node)
            and other.pointer == self.pointer
            and other.negated == self.negated
        )


Conj = tuple[Node, ...]  # all of them hold; () is anything


class Values(Struct, frozen=True):
    """A few values, spelled canonically."""

    texts: tuple[str, ...]


class Text(Struct, frozen=True):
    """Strings.  `patterns` match the whole; lengths are in characters."""

    least: int = 0
    most: int | None = None
    patterns: tuple[Pattern, ...] = ()


class Number(Struct, frozen=True):
    """`fractional` numbers are no integers."""

    integer: bool = False
    bounds: Bounds = Bounds()
    multiple: Decimal | None = None
    fractional: bool = False


class Contains(Struct, frozen=True):
    """So many items are of `value`."""

    value: Conj
    least: int = 1
    most: int | None = None


class Array(Struct, frozen=True):
    """`items` is of those after `prefix`; None forbids them."""

    prefix: tuple[Conj, ...] = ()
    items: Conj | None = ()
    least: int = 0
    most: int | None = None
    contains: tuple[Contains, ...] = ()
    unique: bool = False


class Keyed(Struct, frozen=True):
    """Members whose names match `names`."""

    names: Pattern
    value: Conj


class Object(Struct, frozen=True):
    """`others` is of members that are neither in `members` nor match `keyed`; None forbids them.

    `says_others` is false where nobody said anything of them.  All names are in `names`.
    """

    members: Mapping[str, Conj] = {}
    required: tuple[str, ...] = ()
    keyed: tuple[Keyed, ...] = ()
    others: Conj | None = ()
    says_others: bool = False
    names: tuple[Conj, ...] = ()
    least: int = 0
    most: int | None = None


Shape = Values | Text | Number | Array | Object

NEVER: Conj = (Node(False, "never"),)
TRUE_FALSE = Values(("true", "false"))
NULL = Values(("null",))
EVERYTHING: tuple[Shape, ...] = (Object(), Array(), Text(), Number(), TRUE_FALSE, NULL)


def meet_texts(a: Text, b: Text) -> Text:
    patterns = tuple(dict.fromkeys((*a.patterns, *b.patterns)))
    return Text(max(a.least, b.least), _least_of(a.most, b.most), patterns)


def meet_numbers(a: Number, b: Number) -> Number | None:
    """Return the numbers of both; None where that is not offered."""
    multiple = a.multiple if b.multiple is None else b.multiple
    if a.multiple is not None and b.multiple is not None and a.multiple != b.multiple:
        if a.multiple % 1 or b.multiple % 1:
            return None
        multiple = Decimal(lcm(int(a.multiple), int(b.multiple)))
    integer, fractional = a.integer or b.integer, a.fractional or b.fractional
    bounds = a.bounds.meet(b.bounds)
    if integer and fractional:
        bounds = bounds.meet(Bounds(Decimal(1), Decimal(0)))
    return Number(integer, bounds, multiple, fractional)


def meet_arrays(a: Array, b: Array) -> Array:
    width = max(len(a.prefix), len(b.prefix))
    prefix: list[Conj] = []
    most = _least_of(a.most, b.most)
    for place in range(width):
        of_a, of_b = item_of(a, place), item_of(b, place)
        if of_a is None or of_b is None:
            most = _least_of(most, place)
            break
        prefix.append(joined(of_a, of_b))
    items = None if a.items is None or b.items is None else joined(a.items, b.items)
    return Array(
        tuple(prefix),
        items,
        max(a.least, b.least),
        most,
        (*a.contains, *b.contains),
        a.unique or b.unique,
    )


def meet_objects(a: Object, b: Object) -> Object:
    members: dict[str, Conj] = {}
    forbidden: set[str] = set()
    for name in dict.fromkeys((*a.members, *b.members)):
        of_a, of_b = member_of(a, name), member_of(b, name)
        if of_a is None or of_b is None:
            forbidden.add(name)
        else:
            members[name] = joined(of_a, of_b)
    others = None if a.others is None or b.others is None else joined(a.others, b.others)
    met = Object(
        members,
        tuple(dict.fromkeys((*a.required, *b.required))),
        (*a.keyed, *b.keyed),
        others,
        a.says_others or b.says_others,
        (*a.names, *b.names),
        max(a.least, b.least),
        _least_of(a.most, b.most),
    )
    if forbidden:
        members.update({name: NEVER for name in forbidden})
        met = replace(met, members=members)
    return met


def item_of(array: Array, place: int) -> Conj | None:
    return array.prefix[place] if place < len(array.prefix) else array.items


def member_of(shape: Object, name: str) -> Conj | None:
    """Return what the member `name` must be; None where there may be none."""
    found = shape.members.get(name, ())
    keyed = [k.value for k in shape.keyed if matches(k.names, name)]
    for value in keyed:
        found = joined(found, value)
    if name in shape.members or keyed:
        return found
    return shape.others


def is_open(shape: Object) -> bool:
    """Return whether members that nobody declared are written, where there may be any.

    Who forbids a member, or says what it is not, has not declared it.
    """
    declares = any(
        not node.negated and node.schema is not False
        for conj in shape.members.values()
        for node in conj or (Node(True, ""),)
    )
    return shape.says_others or not (declares or shape.keyed or shape.names)


def joined(a: Conj, b: Conj) -> Conj:
    return tuple(dict.fromkeys((*a, *b)))


def _least_of(a: int | None, b: int | None) -> int | None:
    return a if b is None else b if a is None else min(a, b)


def is_free(shape: Text) -> bool:
    return shape.patterns in ((), (ANY_TEXT,)) and not shape.least and shape.most is None
