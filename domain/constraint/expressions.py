"""Regular expressions read from ECMAScript's syntax.

Whole texts match, or where the caller asks for a search, those that contain a match.  What no
finite automaton can do (back references) and what few write (word boundaries, lookbehind) is
refused by name.
"""

from __future__ import annotations

from mlxbun.domain.constraint.patterns import (
    ANY_TEXT,
    MAX_CODE,
    Chars,
    Pattern,
    Ranges,
    alt,
    both,
    cat,
    complement,
    negate,
    repeat,
    union,
)

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
MAX_LENGTH = 20_000  # characters of an expression


class BadPattern(ValueError):
    """A regular expression that is malformed, or asks for what is not offered; says which."""


def parse(source: str, *, search: bool) -> Pattern:
    """Return the texts that `source` matches, or with `search` those that contain a match.

    Raises BadPattern.  Source: ECMA-262, 22.2.1, with the u flag's classes of code points.
    """
    if len(source) > MAX_LENGTH:
        raise BadPattern(f"it has {len(source)} characters; up to {MAX_LENGTH} are read")
    return _Parser(source).whole(search)


def _single(ranges: Ranges) -> int | None:
    """Return the one character in `ranges`; None if there are more."""
    (low, high), *others = ranges
    return low if low == high and not others else None


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._looked = False  # a lookahead stood where only the end of the text may follow

    def whole(self, search: bool) -> Pattern:
        found = self._branches(top=True)
        if self._at < len(self._source):
            raise BadPattern(f"unbalanced ) at {self._at}")
        any_text: list[Pattern] = [ANY_TEXT] if search else []
        whole: list[Pattern] = []
        for branch, begins, ends, looks in found:
            body = cat([*([] if begins else any_text), branch, *([] if ends else any_text)])
            if self._looked and search and not ends:
                raise BadPattern("a lookahead after the beginning is offered only before a $")
            if looks and search and not begins:
                raise BadPattern("a lookahead is offered only after ^")
            whole.append(both([body, *looks]))
        return alt(whole)

    def _branches(self, top: bool) -> list[tuple[Pattern, bool, bool, list[Pattern]]]:
        """Return each alternative: what it is, is it anchored before, behind, its lookaheads."""
        looked = self._looked
        found = [self._branch(top)]
        any_looked = self._looked
        while self._peek() == "|":
            self._at += 1
            self._looked = looked
            found.append(self._branch(top))
            any_looked = any_looked or self._looked
        self._looked = any_looked
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
                look = self._lookahead()
                if top and not parts:
                    looks.append(look)
                    continue
                # What follows it here is all that follows.
                rest, begins_again, ends, more = self._branch(top)
                if begins_again:
                    raise BadPattern("^ is offered only at the beginning")
                parts.append(both([rest, look, *more]))
                self._looked = True
            else:
                if self._looked:
                    raise BadPattern("a lookahead is offered only where its group comes last")
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
        if self._looked:
            raise BadPattern("a lookahead may hold neither ^ nor a lookahead")
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
        if self._looked and most != 1:
            raise BadPattern("a lookahead in what is repeated is not offered")
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
