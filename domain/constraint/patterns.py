"""Regular expressions as data: combined, measured, made shorter or longer.

A `Pattern` is a set of texts.  Whole texts match, never parts of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MAX_CODE = 0x10FFFF
Ranges = tuple[tuple[int, int], ...]  # of code points, ends included, in order, apart


class Chars(Struct, frozen=True):
    """One character out of `ranges`; none at all where they are empty."""

    ranges: Ranges


class Cat(Struct, frozen=True):
    """One after the other; the empty text where there are none."""

    parts: tuple[Pattern, ...]


class Alt(Struct, frozen=True):
    parts: tuple[Pattern, ...]


class Repeat(Struct, frozen=True):
    """`part`, at least `least` times, at most `most` times; None is without end."""

    part: Pattern
    least: int
    most: int | None


class Both(Struct, frozen=True):
    """Texts that match every part."""

    parts: tuple[Pattern, ...]


class Not(Struct, frozen=True):
    part: Pattern


Pattern = Chars | Cat | Alt | Repeat | Both | Not

EMPTY = Cat(())  # the empty text alone
NOTHING = Chars(())  # no text
# Code points of surrogates are no characters: JSON text has none.
ANY_CHAR = Chars(((0, 0xD7FF), (0xE000, MAX_CODE)))
ANY_TEXT = Repeat(ANY_CHAR, 0, None)
_EVERYTHING = Not(NOTHING)


def literal(text: str) -> Pattern:
    return cat(Chars(((ord(letter), ord(letter)),)) for letter in text)


def one_of(letters: str) -> Chars:
    return Chars(union((ord(letter), ord(letter)) for letter in letters))


def cat(parts: Iterable[Pattern]) -> Pattern:
    flat: list[Pattern] = []
    for part in parts:
        if part == NOTHING:
            return NOTHING
        flat.extend(part.parts if isinstance(part, Cat) else (part,))
    return flat[0] if len(flat) == 1 else Cat(tuple(flat))


def alt(parts: Iterable[Pattern]) -> Pattern:
    """Return what matches any of `parts`; single characters become one class."""
    letters: list[tuple[int, int]] = []
    others: dict[Pattern, None] = {}
    for part in parts:
        for one in part.parts if isinstance(part, Alt) else (part,):
            if isinstance(one, Chars):
                letters.extend(one.ranges)
            else:
                others[one] = None
    if ANY_TEXT in others:
        return ANY_TEXT
    found: list[Pattern] = [Chars(union(letters))] if letters else []
    found.extend(others)
    if not found:
        return NOTHING
    return found[0] if len(found) == 1 else Alt(tuple(found))


def repeat(part: Pattern, least: int, most: int | None) -> Pattern:
    if most == 0 or part == EMPTY:
        return EMPTY
    if part == NOTHING:
        return EMPTY if least == 0 else NOTHING
    return part if (least, most) == (1, 1) else Repeat(part, least, most)


def both(parts: Iterable[Pattern]) -> Pattern:
    flat: dict[Pattern, None] = {}
    for part in parts:
        if part == NOTHING:
            return NOTHING
        for one in part.parts if isinstance(part, Both) else (part,):
            if one not in (ANY_TEXT, _EVERYTHING):
                flat[one] = None
    found = tuple(flat)
    if not found:
        return ANY_TEXT
    return found[0] if len(found) == 1 else Both(found)


def negate(part: Pattern) -> Pattern:
    return NOTHING if part in (ANY_TEXT, _EVERYTHING) else Not(part)


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def without(ranges: Ranges, taken: Iterable[tuple[int, int]]) -> Ranges:
    """Return `ranges` less what is `taken`."""
    left: list[tuple[int, int]] = list(ranges)
    for low, high in taken:
        cut: list[tuple[int, int]] = []
        for first, last in left:
            cut += [(first, min(last, low - 1)), (max(first, high + 1), last)]
        left = [(first, last) for first, last in cut if first <= last]
    return union(left)


def complement(ranges: Ranges) -> Ranges:
    return without(ANY_CHAR.ranges, ranges)


def lengths(pattern: Pattern) -> tuple[int, int | None]:
    """Return how many characters the texts of `pattern` have, at least and at most.

    Of an intersection or a complement it is only a bound from below: (0, None).
    """
    match pattern:
        case Chars():
            return 1, 1
        case Cat(parts=parts):
            found = [lengths(part) for part in parts]
            return sum(low for low, _ in found), _sum(high for _, high in found)
        case Alt(parts=parts):
            found = [lengths(part) for part in parts]
            highs = [high for _, high in found]
            most = None if None in highs else max(h for h in highs if h is not None)
            return min(low for low, _ in found), most
        case Repeat(part=part, least=least, most=count):
            low, high = lengths(part)
            ends = high is None or (count is None and high > 0)
            return low * least, None if ends else (high or 0) * (count or 0)
        case _:
            return 0, None


def clip(pattern: Pattern, most: int) -> Pattern:
    """Return texts of `pattern` that have at most `most` characters: not all of them, maybe.

    Loops are bounded, each by its share of the room.  Returns NOTHING where that does not do.
    """
    low, high = lengths(pattern)
    if high is not None and high <= most:
        return pattern
    if low > most:
        return NOTHING
    match pattern:
        case Repeat(part=part, least=least, most=count):
            part_high = lengths(part)[1]
            room = most // max(least, 1)
            clipped = part if part_high is not None and part_high <= room else clip(part, room)
            _, longest = lengths(clipped)
            if clipped == NOTHING:
                return EMPTY if least == 0 else NOTHING
            if not longest:
                return EMPTY
            fits = most // longest
            if fits < least:
                return NOTHING
            return repeat(clipped, least, fits if count is None else min(count, fits))
        case Alt(parts=parts):
            return alt(clip(part, most) for part in parts)
        case Cat(parts=parts):
            spare = most - low
            found: list[Pattern] = []
            loose = [p for p in parts if lengths(p)[0] != lengths(p)[1]]
            for part in parts:
                least_of = lengths(part)[0]
                if part not in loose:
                    found.append(part)
                    continue
                share = spare // max(1, len(loose))
                loose.remove(part)
                clipped = clip(part, least_of + share)
                used = lengths(clipped)[1]
                spare -= (used if used is not None else least_of + share) - least_of
                found.append(clipped)
            return cat(found)
        case _:
            return NOTHING


def stretch(pattern: Pattern, least: int) -> Pattern:
    """Return texts of `pattern` that have at least `least` characters: not all of them, maybe."""
    low, high = lengths(pattern)
    if low >= least:
        return pattern
    if high is not None and high < least:
        return NOTHING
    match pattern:
        case Repeat(part=part, most=count):
            part_low, _ = lengths(part)
            if part_low == 0:
                longer = stretch(part, least)
                return cat([longer, repeat(part, 0, None if count is None else count - 1)])
            needed = -(-least // part_low)
            if count is None or needed <= count:
                return repeat(part, needed, count)
            longer = stretch(part, -(-least // count))
            return NOTHING if longer == NOTHING else repeat(longer, count, count)
        case Alt(parts=parts):
            return alt(stretch(part, least) for part in parts)
        case Cat(parts=parts):
            choices: list[Pattern] = []
            for place, part in enumerate(parts):
                others = low - lengths(part)[0]
                longer = stretch(part, least - others)
                if longer != NOTHING:
                    choices.append(cat([*parts[:place], longer, *parts[place + 1 :]]))
                    break
            return choices[0] if choices else NOTHING
        case _:
            return NOTHING


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total
