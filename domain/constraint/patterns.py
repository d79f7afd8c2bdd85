"""Regular expressions as data: parsed from ECMAScript's syntax, combined, measured, spelled.

A `Pattern` is a set of texts.  Whole texts match, never parts of them; `parse` makes a search of
one that is not anchored where its caller asks for that.  What no finite automaton can do (back
references) and what few write (word boundaries, lookbehind) is refused by name.
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
_NEWLINES: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_DIGITS: Ranges = ((0x30, 0x39),)
_WORDS: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACES: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_CLASSES = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0}
MAX_COUNT = 100_000


class BadPattern(ValueError):
    """A regular expression that is malformed, or asks for what is not offered; says which."""


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
            if clipped == NOTHING or not longest:
                return EMPTY if least == 0 else NOTHING
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


def parse(source: str, *, search: bool) -> Pattern:
    """Return the texts that `source` matches, or with `search` those that contain a match.

    Raises BadPattern.  Source: ECMA-262, 22.2.1, with the u flag's classes of code points.
    """
    return _Parser(source).whole(search)


def _single(ranges: Ranges) -> int | None:
    """Return the one character in `ranges`; None if there are more."""
    (low, high), *others = ranges
    return low if low == high and not others else None


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0

    def whole(self, search: bool) -> Pattern:
        found = self._branches(top=True)
        if self._at < len(self._source):
            raise BadPattern(f"unbalanced ) at {self._at}")
        any_text: list[Pattern] = [ANY_TEXT] if search else []
        whole: list[Pattern] = []
        for branch, begins, ends, looks in found:
            body = cat([*([] if begins else any_text), branch, *([] if ends else any_text)])
            if looks and search and not begins:
                raise BadPattern("a lookahead is offered only after ^")
            whole.append(both([body, *looks]))
        return alt(whole)

    def _branches(self, top: bool) -> list[tuple[Pattern, bool, bool, list[Pattern]]]:
        """Return each alternative: what it is, is it anchored before, behind, its lookaheads."""
        found = [self._branch(top)]
        while self._peek() == "|":
            self._at += 1
            found.append(self._branch(top))
        return found

    def _branch(self, top: bool) -> tuple[Pattern, bool, bool, list[Pattern]]:
        parts: list[Pattern] = []
        looks: list[Pattern] = []
        begins = ends = False
        while (letter := self._peek()) not in ("", "|", ")"):
            if ends:
                raise BadPattern("$ is offered only at the end")
            if letter == "^":
                if parts or not top:
                    raise BadPattern("^ is offered only at the beginning")
                self._at += 1
                begins = True
            elif letter == "$":
                if not top:
                    raise BadPattern("$ is offered only at the end")
                self._at += 1
                ends = True
            elif self._source.startswith(("(?=", "(?!"), self._at):
                if parts or not top:
                    raise BadPattern("a lookahead is offered only at the beginning")
                looks.append(self._lookahead())
            else:
                parts.append(self._quantified(self._atom()))
        return cat(parts), begins, ends, looks

    def _lookahead(self) -> Pattern:
        negative = self._source[self._at + 2] == "!"
        self._at += 3
        found: list[Pattern] = []
        for branch, begins, ends, looks in self._branches(top=True):
            if begins or looks:
                raise BadPattern("a lookahead may hold neither ^ nor a lookahead")
            found.append(branch if ends else cat([branch, ANY_TEXT]))
        self._expect(")")
        ahead = alt(found)
        return negate(ahead) if negative else ahead

    def _atom(self) -> Pattern:
        letter = self._source[self._at]
        self._at += 1
        match letter:
            case "(":
                if self._source.startswith("?:", self._at):
                    self._at += 2
                elif self._source.startswith("?<", self._at):
                    if self._source[self._at + 2 : self._at + 3] in ("=", "!"):
                        raise BadPattern("lookbehind is not offered")
                    self._at = self._find(">") + 1
                elif self._peek() == "?":
                    raise BadPattern(f"the group at {self._at - 1} is not offered")
                found = [branch for branch, *_ in self._branches(top=False)]
                self._expect(")")
                return alt(found)
            case "[":
                return self._class()
            case ".":
                return Chars(complement(_NEWLINES))
            case "\\":
                return Chars(self._escape(in_class=False))
            case "*" | "+" | "?":
                raise BadPattern(f"nothing to repeat at {self._at - 1}")
            case _:
                return Chars(((ord(letter), ord(letter)),))

    def _quantified(self, part: Pattern) -> Pattern:
        least, most = 1, 1
        letter = self._peek()
        if letter in ("*", "+", "?"):
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[letter]  # type: ignore[assignment]
        elif letter == "{":
            end = self._source.find("}", self._at)
            low, comma, high = self._source[self._at + 1 : end].partition(",")
            if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
                return part  # a brace that stands for itself, next
            self._at = end + 1
            least = int(low)
            most = (int(high) if high else None) if comma else least  # type: ignore[assignment]
            if (most is not None and least > most) or max(least, most or 0) > MAX_COUNT:
                raise BadPattern(f"the count at {end} is out of range")
        else:
            return part
        if self._peek() == "?":  # lazy: the same texts
            self._at += 1
        if self._peek() in ("*", "+", "?"):
            raise BadPattern(f"nothing to repeat at {self._at}")
        return repeat(part, least, most)

    def _class(self) -> Pattern:
        negative = self._peek() == "^"
        self._at += negative
        ranges: list[tuple[int, int]] = []
        while (letter := self._peek()) != "]":
            if not letter:
                raise BadPattern("a [ is not closed")
            part = self._class_part()
            if self._peek() == "-" and self._source[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                low, high = _single(part), _single(self._class_part())
                if low is None or high is None:
                    raise BadPattern(f"the range that ends at {self._at} is of no characters")
                if low > high:
                    raise BadPattern(f"the range that ends at {self._at} is out of order")
                part = ((low, high),)
            ranges.extend(part)
        self._at += 1
        found = union(ranges)
        return Chars(complement(found) if negative else found)

    def _class_part(self) -> Ranges:
        letter = self._source[self._at : self._at + 1]
        if not letter:
            raise BadPattern("a [ is not closed")
        self._at += 1
        if letter == "\\":
            return self._escape(in_class=True)
        return ((ord(letter), ord(letter)),)

    def _escape(self, *, in_class: bool) -> Ranges:
        letter = self._source[self._at : self._at + 1]
        self._at += 1
        if letter.lower() in _CLASSES and letter:
            ranges = _CLASSES[letter.lower()]
            return complement(ranges) if letter.isupper() else ranges
        if letter in ("b", "B") and not in_class:
            raise BadPattern("word boundaries (\\b) are not offered")
        if letter == "b":
            return ((8, 8),)
        if letter in ("p", "P", "k") or (letter.isdecimal() and letter != "0"):
            raise BadPattern(f"\\{letter} is not offered")
        if letter in _CONTROLS:
            code = _CONTROLS[letter]
        elif letter == "x":
            code = self._hex(2)
        elif letter == "u" and self._peek() == "{":
            end = self._find("}")
            code = self._number(self._source[self._at + 1 : end])
            self._at = end + 1
        elif letter == "u":
            code = self._hex(4)
            if 0xD800 <= code < 0xDC00 and self._source.startswith("\\u", self._at):
                self._at += 2
                code = 0x10000 + ((code - 0xD800) << 10) + (self._hex(4) - 0xDC00)
        elif letter and not letter.isalnum():
            code = ord(letter)
        else:
            raise BadPattern(f"\\{letter} is not offered")
        if not 0 <= code <= MAX_CODE:
            raise BadPattern(f"the character that ends at {self._at} does not exist")
        return ((code, code),)

    def _hex(self, digits: int) -> int:
        found = self._source[self._at : self._at + digits]
        if len(found) < digits:
            raise BadPattern(f"hexadecimal digits are missing at {self._at}")
        self._at += digits
        return self._number(found)

    def _number(self, digits: str) -> int:
        try:
            return int(digits, 16)
        except ValueError:
            raise BadPattern(f"{digits!r} is no hexadecimal number") from None

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _expect(self, letter: str) -> None:
        if self._peek() != letter:
            raise BadPattern(f"a {letter} is missing at {self._at}")
        self._at += 1

    def _find(self, letter: str) -> int:
        found = self._source.find(letter, self._at)
        if found < 0:
            raise BadPattern(f"a {letter} is missing after {self._at}")
        return found
