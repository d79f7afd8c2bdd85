"""Objects as sequences of members: those of the schema in its order, then others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import combinations

from msgspec import Struct

from mlxbun.domain.constraint.automaton import Automaton, build
from mlxbun.domain.constraint.patterns import (
    ANY_CHAR,
    ANY_TEXT,
    Pattern,
    alt,
    both,
    cat,
    literal,
    negate,
    repeat,
)
from mlxbun.domain.constraint.schemas import Schemas
from mlxbun.domain.constraint.sequences import Machine, Out, State, Step, explored
from mlxbun.domain.constraint.shapes import (
    Conj,
    Object,
    Text,
    Values,
    is_open,
    joined,
    member_of,
)
from mlxbun.domain.constraint.string_rules import MAX_STATES, pattern_of

MAX_PATTERNS = 12  # of names
MAX_OVERLAPS = 3  # patterns of names that may hold together
MAX_TOLD_APART = 24  # letters of declared names that other names are told apart from

NotEnforced = Callable[[str, str], None]


class Member(Struct, frozen=True):
    name: str
    value: Conj
    required: bool


class Others(Struct, frozen=True):
    """Members whose names `names` takes, ANY_TEXT for all."""

    names: Pattern | Automaton
    value: Conj


class Members(Struct, frozen=True):
    """What an object may have.  None of the values is impossible."""

    declared: tuple[Member, ...]
    others: tuple[Others, ...]
    least: int
    most: int | None
    possible: bool


def members_of(
    shape: Object,
    schemas: Schemas,
    possible: Callable[[Conj | None], bool],
    not_enforced: NotEnforced,
) -> Members:
    """Return the members that may be written of `shape`.

    Where nobody said anything of others, and some are declared, others are not written.
    """
    allowed, named = _allowed_names(shape, schemas)
    names = dict.fromkeys((*shape.members, *shape.required, *named))
    declared: list[Member] = []
    complete = True
    for name in names:
        value = member_of(shape, name)
        required = name in shape.required
        fits = all(
            any(schemas.membership.has(one, name) for one in schemas.shapes(conj))
            for conj in shape.names
        )
        if value is not None and fits and possible(value):
            declared.append(Member(name, value, required))
        else:
            complete = complete and not required
    others: tuple[Others, ...] = ()
    if allowed is not None:
        others = tuple(_others(shape, names, allowed, possible))
    least = shape.least
    # Of others two may have the same name, so that only one of them is sure to count.
    if others and least > len(declared) + 1:
        not_enforced("minProperties", "minProperties is enforced of the declared properties")
        least = len(declared) + 1
    return Members(tuple(declared), others, least, shape.most, complete)


def machine_of(members: Members, item: Callable[[Member | Others], str]) -> tuple[State, Machine]:
    """Return where it starts, and the machine that writes `members`; empty if there is no way."""
    declared, others, least, most = members.declared, members.others, members.least, members.most
    # Counts matter only where they may be too few or too many.
    sure = sum(member.required for member in declared)
    counts = least > sure or (most is not None and (bool(others) or most < len(declared)))
    cap = max(least, most or 0) if counts else 0

    def out(state: State) -> Out:
        place, count = state.at
        full = most is not None and counts and count >= most
        steps: list[Step] = []
        if place < len(declared):
            member = declared[place]
            if not full:
                to = State((place + 1, min(cap, count + 1)), True)
                steps.append(Step(to, lambda: item(member)))
            if not member.required:
                steps.append(Step(State((place + 1, count), state.begun)))
            return Out(False, tuple(steps))
        if not full:
            # The first of the others counts; whether the next is a new one is not known.
            to = State((len(declared) + 1, min(cap, count + 1)), True)
            steps += [Step(to, lambda other=other: item(other)) for other in others]  # type: ignore[misc]
        return Out(not counts or count >= least, tuple(steps))

    start = State((0, 0), False)
    return start, explored(start, out) if members.possible else {}


def _allowed_names(shape: Object, schemas: Schemas) -> tuple[Pattern | None, list[str]]:
    """Return the names that propertyNames allows: a pattern, None for none, and a list of some."""
    patterns: list[Pattern] = []
    named: dict[str, None] = {}
    only_named = False
    for conj in shape.names:
        of_this: list[Pattern] = []
        for one in schemas.shapes(conj):
            if isinstance(one, Text):
                of_this.append(pattern_of(one))
            elif isinstance(one, Values):
                strings = [text for text in one.texts if text.startswith('"')]
                named.update({json.loads(text): None for text in strings})
        only_named = only_named or not of_this
        patterns.append(alt(of_this))
    return (None if only_named else both(patterns)), list(named)


def _others(
    shape: Object,
    declared: Iterable[str],
    allowed: Pattern,
    possible: Callable[[Conj | None], bool],
) -> Iterable[Others]:
    names = tuple(declared)
    unlike = _unlike(names)
    kinds = [(keyed.names, keyed.value) for keyed in shape.keyed]
    if len(kinds) > MAX_PATTERNS:
        return  # names that are too many to tell apart are not written
    most = len(kinds) if len(kinds) <= MAX_OVERLAPS else 1
    for count in range(1, most + 1):
        for chosen in combinations(kinds, count):
            apart = [negate(names) for names, value in kinds if (names, value) not in chosen]
            value: Conj = ()
            for _, also in chosen:
                value = joined(value, also)
            of_all = [names for names, _ in chosen]
            yield from _other([*of_all, *apart, unlike, allowed], value, possible)
    if shape.others is not None and (is_open(shape) or _named_freely(shape)):
        apart = [negate(pattern) for pattern, _ in kinds]
        yield from _other([*apart, unlike, allowed], shape.others, possible)


def _named_freely(shape: Object) -> bool:
    """Return whether names are all that was said: a map with names of a kind."""
    return bool(shape.names) and not shape.members and not shape.keyed


def _other(
    patterns: list[Pattern], value: Conj, possible: Callable[[Conj | None], bool]
) -> Iterable[Others]:
    if not possible(value):
        return
    names = both(patterns)
    if names == ANY_TEXT:
        yield Others(ANY_TEXT, value)
        return
    # Of some patterns together there may be no name at all.
    automaton = build(names, MAX_STATES)
    # Names that are too many to tell apart are not written: less than may be.
    if automaton is not None and any(automaton.ends):
        yield Others(automaton, value)


def _unlike(names: tuple[str, ...]) -> Pattern:
    """Return names that are none of `names`: if those are many, none that begins like one."""
    if sum(map(len, names)) <= MAX_TOLD_APART:
        return negate(alt(map(literal, names))) if names else ANY_TEXT
    begun = alt(literal(name[:1]) for name in names if name)
    return both([negate(cat([begun, ANY_TEXT])), repeat(ANY_CHAR, 1, None)])
