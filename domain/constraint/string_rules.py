"""The strings of a shape, as an expression: free, bounded in length, or of a pattern."""

from __future__ import annotations

from functools import partial

from mlxbun.domain.constraint.automaton import Automaton, build
from mlxbun.domain.constraint.counted_rules import counted
from mlxbun.domain.constraint.patterns import (
    ANY_CHAR,
    ANY_TEXT,
    NOTHING,
    Alt,
    Both,
    Cat,
    Chars,
    Not,
    Pattern,
    Repeat,
    both,
    cat,
    clip,
    lengths,
    literal,
    negate,
    repeat,
    stretch,
)
from mlxbun.domain.constraint.rule_book import (
    RuleBook,
    either,
    escapes,
    letters,
    plain,
    quoted,
)
from mlxbun.domain.constraint.shapes import Text, is_free

MAX_STATES = 300  # of an automaton
MAX_CHAIN = 6  # least length for which each character is a rule
TAIL = 24  # characters of a class that are counted, where a state each would be too many

_PLAIN = plain(ANY_CHAR.ranges)
_LETTER = letters(_PLAIN, 1, 1)

COMMON = {
    "string": r'"\"" text',
    "text": rf'"\"" | {_LETTER} text | "\\" escape text',
    "escape": r'["\\/bfnrt] | "u" unit',
    "unit": r"[0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex "
    r'| [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex',
    "hex": "[0-9a-fA-F]",
}


class TooManyStates(ValueError):
    """Patterns that are to match together need too large an automaton."""


def pattern_of(shape: Text) -> Pattern:
    """Return the texts of `shape`, or some of them; NOTHING where there are none.

    Raises TooManyStates.
    """
    if not shape.patterns:
        return repeat(ANY_CHAR, shape.least, shape.most)
    found = both(shape.patterns)
    if not is_plain(found):
        return both([found, repeat(ANY_CHAR, shape.least, shape.most)])
    low, high = lengths(found)
    if shape.most is not None and (high is None or high > shape.most):
        found = clip(found, shape.most)
    if found != NOTHING and low < shape.least:
        found = stretch(found, shape.least)
        if shape.most is not None and (lengths(found)[1] or 0) > shape.most:
            return both([*shape.patterns, repeat(ANY_CHAR, shape.least, shape.most)])
    return found


def is_empty(shape: Text) -> bool:
    """Return whether there is no such string.  Raises TooManyStates."""
    if not shape.patterns:
        return shape.most is not None and shape.most < shape.least
    found = pattern_of(shape)
    return found == NOTHING or not any(automaton_of(found, tail=TAIL).ends)


def expression(shape: Text, book: RuleBook) -> str:
    """Return the JSON strings of `shape`, quotes included.  Raises TooManyStates."""
    if is_free(shape):
        return "string"
    if not shape.patterns:
        return _of_length(shape, book)
    found = pattern_of(shape)
    if isinstance(found, Repeat) and isinstance(found.part, Chars):
        return rf'"\"" {counted(found.part, found.least, found.most, book)}'
    return by_states(automaton_of(found, tail=TAIL), book)


def is_plain(pattern: Pattern) -> bool:
    """Return whether a regular expression without tricks can spell it."""
    match pattern:
        case Both() | Not():
            return False
        case Cat(parts=parts) | Alt(parts=parts):
            return all(map(is_plain, parts))
        case Repeat(part=part):
            return is_plain(part)
        case Chars():
            return True


def automaton_of(
    pattern: Pattern, max_states: int = MAX_STATES, tail: int | None = None
) -> Automaton:
    """Return the automaton of `pattern`, with its tails.  Raises TooManyStates."""
    found = build(pattern, max_states, tail)
    if found is None:
        raise TooManyStates("it needs too large an automaton")
    return found


def by_states(automaton: Automaton, book: RuleBook) -> str:
    """Return the JSON strings that `automaton` takes: a rule for each of its states."""

    def name(state: int) -> str:
        return book.once(("state", automaton, state), lambda: body(state))

    def body(state: int) -> str:
        tail = automaton.tails.get(state)
        if tail is not None and isinstance(tail.part, Chars):
            return counted(tail.part, tail.least, tail.most, book)
        found = [r'"\""'] if automaton.ends[state] else []
        for ranges, to in automaton.moves[state]:
            simple = plain(ranges)
            if simple.ranges:
                found.append(f"{letters(simple, 1, 1)} {name(to)}")
            found += [f"{quoted(escape)} {name(to)}" for escape in escapes(ranges)]
        return either(found)

    return rf'"\"" {name(0)}'


def raw_rules(automaton: Automaton, book: RuleBook, *ends: str) -> str:
    """Return the texts that `automaton` takes, as they are, and one of the expressions `ends`."""
    after = ends or ('""',)

    def name(state: int) -> str:
        return book.once(("raw", automaton, after, state), lambda: body(state))

    def body(state: int) -> str:
        tail = automaton.tails.get(state)
        if tail is not None and isinstance(tail.part, Chars):
            return f"{letters(tail.part, tail.least, tail.most)} ({either(after)})"
        found = [f"{letters(Chars(r), 1, 1)} {name(to)}" for r, to in automaton.moves[state]]
        return either([*found, *after] if automaton.ends[state] else found)

    return name(0)


def raw(shape: Text, book: RuleBook, end: str) -> str:
    """Return the strings of `shape` without quotes, and `end`, which free ones do not contain."""
    if is_free(shape):
        return raw_rules(automaton_of(lacking(end)), book, book.sign(end))
    return raw_rules(automaton_of(pattern_of(shape), tail=TAIL), book, book.sign(end))


def lacking(text: str) -> Pattern:
    """Return the texts that do not contain `text`."""
    return negate(cat([ANY_TEXT, literal(text), ANY_TEXT]))


def _of_length(shape: Text, book: RuleBook) -> str:
    """Return strings of some length."""
    if shape.most is not None or shape.least > MAX_CHAIN:
        return rf'"\"" {counted(ANY_CHAR, shape.least, shape.most, book)}'
    after = "text"
    for count in range(shape.least):
        body = rf'{_LETTER} {after} | "\\" escape {after}'
        after = book.once(("at least", count + 1), partial(str, body))
    return rf'"\"" {after}'
