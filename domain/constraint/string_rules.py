"""The strings of a shape, as an expression: free, bounded in length, or of a pattern."""

from __future__ import annotations

from functools import partial

from mlxbun.domain.constraint.automaton import Automaton, build
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
MAX_ESCAPED = 2  # least length of strings that may have escapes

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
    return found == NOTHING or not any(automaton_of(found).ends)


def expression(shape: Text, book: RuleBook) -> str:
    """Return the JSON strings of `shape`, quotes included.  Raises TooManyStates."""
    if is_free(shape):
        return "string"
    if not shape.patterns:
        return _of_length(shape, book)
    found = pattern_of(shape)
    if isinstance(found, Repeat) and isinstance(found.part, Chars):
        simple = plain(found.part.ranges)
        if simple.ranges:
            return rf'"\"" {letters(simple, found.least, found.most)} "\""'
    return by_states(automaton_of(found), book)


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


def automaton_of(pattern: Pattern, max_states: int = MAX_STATES) -> Automaton:
    """Return the automaton of `pattern`.  Raises TooManyStates."""
    found = build(pattern, max_states)
    if found is None:
        raise TooManyStates("it needs too large an automaton")
    return found


def by_states(automaton: Automaton, book: RuleBook) -> str:
    """Return the JSON strings that `automaton` takes: a rule for each of its states."""

    def name(state: int) -> str:
        return book.once(("state", automaton, state), lambda: body(state))

    def body(state: int) -> str:
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
        found = [f"{letters(Chars(r), 1, 1)} {name(to)}" for r, to in automaton.moves[state]]
        return either([*found, *after] if automaton.ends[state] else found)

    return name(0)


def raw(shape: Text, book: RuleBook, end: str) -> str:
    """Return the strings of `shape` without quotes, and `end`, which free ones do not contain."""
    if is_free(shape):
        return raw_rules(automaton_of(lacking(end)), book, book.sign(end))
    return raw_rules(automaton_of(pattern_of(shape)), book, book.sign(end))


def lacking(text: str) -> Pattern:
    """Return the texts that do not contain `text`."""
    return negate(cat([ANY_TEXT, literal(text), ANY_TEXT]))


def _of_length(shape: Text, book: RuleBook) -> str:
    """Return strings of some length.  A count of what may be escaped costs too much: no escapes."""
    if shape.most is not None or shape.least > MAX_ESCAPED:
        return rf'"\"" {letters(_PLAIN, shape.least, shape.most)} "\""'
    after = "text"
    for count in range(shape.least):
        body = rf'{_LETTER} {after} | "\\" escape {after}'
        after = book.once(("at least", count + 1), partial(str, body))
    return rf'"\"" {after}'
