"""Characters of one class, so many of them, in a JSON string that may spell some by escapes.

xgrammar counts single characters quickly, and alternatives of one slowly: so what lies between two
escapes is counted by itself, and rounded: up where there is a most, down where there is a least.
Hence a text with escapes may have to end a little before its most, and never goes beyond.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from mlxbun.domain.constraint.patterns import ANY_CHAR, Chars
from mlxbun.domain.constraint.rule_book import RuleBook, either, escapes, letters, plain, quoted

PARTS = 32  # that a most is rounded to
PARTS_OF_LEAST = 4
QUOTE = r'"\""'
_SMALL = 8  # windows before they grow
_ESCAPE = r'"\\" escape'


class _Left(Struct, frozen=True):
    """How many characters are still asked for, and allowed; None is any number."""

    least: int
    most: int | None


class _Windows(Struct, frozen=True):
    """How finely lengths are told apart, of characters that are asked for and of others."""

    asked: int
    other: int

    def of(self, left: _Left) -> Iterable[tuple[int, int]]:
        """Yield ranges that the characters before an escape are counted in, ends included."""
        for first in range(0, left.least, self.asked):
            yield first, min(first + self.asked, left.least) - 1
        if left.most is None:
            return
        first, number = left.least, 0
        while first < left.most:
            width = self.other * max(1, number - _SMALL + 2)
            last = min(first + width, left.most) - 1
            yield first, last
            first, number = last + 1, number + 1

    def after(self, left: _Left, first: int, last: int) -> _Left | None:
        """Return what is left after an escape; None where that cannot end."""
        least = max(0, left.least - first - 1)
        if left.most is None:
            return _Left(least, None)
        most = left.most - last - 1
        if not least:
            most -= most % self.other  # so that there are few to tell apart
        return _Left(least, most) if least <= most else None


def counted(letter: Chars, least: int, most: int | None, book: RuleBook) -> str:
    """Return the rest of a string, its quote included: `least` to `most` of `letter`."""
    simple, escaped = plain(letter.ranges), _escaped(letter, book)
    if not escaped:
        return f"{letters(simple, least, most)} {QUOTE}"
    if not simple.ranges:
        return f"{escaped}{{{least},{'' if most is None else most}}} {QUOTE}"
    windows = _Windows(max(1, -(-least // PARTS_OF_LEAST)), max(1, -(-(most or 0) // PARTS)))

    def rule(left: _Left) -> str:
        if left == _Left(0, None) and letter == ANY_CHAR:
            return "text"
        return book.once(("counted", letter, windows, left), lambda: either(alternatives(left)))

    def alternatives(left: _Left) -> Iterable[str]:
        if left.most == 0:
            yield QUOTE
            return
        if left == _Left(0, None):
            free = rule(left)
            yield from (QUOTE, f"{letters(simple, 1, 1)} {free}", f"{escaped} {free}")
            return
        if left.most is None:
            yield f"{letters(simple, left.least, left.least)} {rule(_Left(0, None))}"
        else:
            yield f"{letters(simple, left.least, left.most)} {QUOTE}"
        for first, last in windows.of(left):
            after = windows.after(left, first, last)
            if after is not None:
                before = f"{letters(simple, first, last)} " if last else ""
                yield f"{before}{escaped} {rule(after)}"

    return rule(_Left(least, most))


def _escaped(letter: Chars, book: RuleBook) -> str:
    """Return the expression of the escapes of `letter`; "" where it has none.

    A rule: written where it is used, the alternatives would be compiled fifty times as long.
    """
    if letter == ANY_CHAR:
        return _ESCAPE
    found = escapes(letter.ranges)
    return book.once(("escapes", letter), lambda: either(map(quoted, found))) if found else ""
