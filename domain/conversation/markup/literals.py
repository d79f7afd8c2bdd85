"""Values as models write them, rewritten as JSON.

JSON with the slips of small models, Python literals, and the unquoted notation of Gemma differ
in little; one reader takes them all.  Numbers keep their digits, strings their characters.
"""

from __future__ import annotations

import json
import re

import msgspec
from msgspec import Struct

MAX_DEPTH = 64

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null",
          "True": "true", "False": "false", "None": "null"}  # fmt: skip
_SPACE = re.compile(r"\s*")
_BARE_WORD = re.compile(r"[^\s,\[\]{}():=\"']+")
_BARE_KEY = re.compile(r"[^\s,\[\]{}():=\"'][^,\[\]{}():=\"']*")
_BARE_TEXT = re.compile(r"[^,\[\]{}]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_ENDS = ",]})"  # what may follow a string; and what stands between a key and its value


class Syntax(Struct, frozen=True):
    """What is allowed beyond JSON with Python's words and quotes.

    `raw` delimits strings without escapes; `bare` text is a string.  `lenient` forgives quotes
    that should have been escaped.  `unclosed` brackets are closed at the end; a string never.
    """

    raw: str = ""
    bare: bool = False
    lenient: bool = False
    unclosed: bool = False


def is_json(text: str) -> bool:
    """Tell whether `text` is one JSON value."""
    try:
        msgspec.json.decode(text.encode("utf-8", "surrogatepass"), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def as_json(text: str, syntax: Syntax) -> str | None:
    """Return the JSON of the one value that `text` is; None if it cannot be told."""
    reader = Reader(text, syntax)
    try:
        value = reader.value()
        reader.end()
    except ValueError:
        return None
    return value


class Reader:
    """Reads values from `text`, one after another.  Raises ValueError for what is none."""

    def __init__(self, text: str, syntax: Syntax) -> None:
        self.text = text
        self.at = 0
        self._syntax = syntax
        self._depth = 0

    def end(self) -> None:
        self.space()
        if self.at < len(self.text):
            raise ValueError("something follows the value")

    def space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def take(self, expected: str) -> bool:
        """Take spaces and `expected` if it is next."""
        self.space()
        if not expected or not self.text.startswith(expected, self.at):
            return False
        self.at += len(expected)
        return True

    def name(self) -> str:
        """Take a bare word."""
        self.space()
        return self._matched(_BARE_WORD)

    def value(self) -> str:
        """Take a value and return it as JSON."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        self.space()
        first = self.text[self.at : self.at + 1]
        if self._syntax.raw and self.text.startswith(self._syntax.raw, self.at):
            said = _quoted(self._raw())
        elif first == "{":
            self.at += 1
            pairs = self.pairs("}", ":")
            said = "{" + ", ".join(f"{_quoted(k)}: {v}" for k, v in pairs.items()) + "}"
        elif first and first in "[(":
            self.at += 1
            said = "[" + ", ".join(self._items("]" if first == "[" else ")")) + "]"
        elif first == '"' or (first == "'" and not self._syntax.bare):
            said = _quoted(self._string(first))
        else:
            said = self._word()
        self._depth -= 1
        return said

    def pairs(self, close: str, between: str) -> dict[str, str]:
        """Take keys and values up to `close`, and that."""
        pairs: dict[str, str] = {}
        while not self._closed(close):
            key = self._key()
            if not self.take(between):
                raise ValueError(f"no {between} after a key")
            pairs[key] = self.value()
            self._comma(close)
        return pairs

    def _items(self, close: str) -> list[str]:
        items: list[str] = []
        while not self._closed(close):
            items.append(self.value())
            self._comma(close)
        return items

    def _closed(self, close: str) -> bool:
        if self.take(close):
            return True
        if self.at < len(self.text):
            return False
        if self._syntax.unclosed:
            return True
        raise ValueError(f"{close} is missing")

    def _comma(self, close: str) -> None:
        if self.take(","):
            return
        at_end = self.at >= len(self.text)
        if not at_end and not self.text.startswith(close, self.at):
            raise ValueError("no comma between values")

    def _key(self) -> str:
        self.space()
        first = self.text[self.at : self.at + 1]
        if self._syntax.raw and self.text.startswith(self._syntax.raw, self.at):
            return self._raw()
        if first and first in "\"'":
            return self._string(first)
        return self._matched(_BARE_KEY).strip()

    def _raw(self) -> str:
        begin = self.at + len(self._syntax.raw)
        end = self.text.find(self._syntax.raw, begin)
        if end < 0:
            raise ValueError("a string has no end")
        self.at = end + len(self._syntax.raw)
        return self.text[begin:end]

    def _string(self, quote: str) -> str:
        begin = at = self.at + 1
        while True:
            char = self.text[at : at + 1]
            if not char:
                raise ValueError("a string has no end")
            if char == "\\":
                at += 2
            elif char == quote and (not self._syntax.lenient or self._ends(at + 1)):
                self.at = at + 1
                return _unescaped(self.text[begin:at])
            else:
                at += 1

    def _ends(self, at: int) -> bool:
        """Tell whether a string may end before `at`: what follows looks like no string."""
        found = _SPACE.match(self.text, at)
        assert found is not None
        rest = self.text[found.end() : found.end() + 1]
        return not rest or rest in _ENDS or rest in ":="

    def _word(self) -> str:
        if self._syntax.bare:
            text = self._matched(_BARE_TEXT).strip()
            return _literal(text) or _quoted(text)
        said = _literal(self._matched(_BARE_WORD))
        if said is None:
            raise ValueError("a word that is no value")
        return said

    def _matched(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError("nothing that could be a value")
        self.at = found.end()
        return found[0]


def _literal(word: str) -> str | None:
    if word in _WORDS:
        return _WORDS[word]
    if _NUMBER.fullmatch(word):
        return word
    for base in (0, 10):  # 0x1F, 1_000, +5: Python's; then 007
        try:
            return str(int(word, base))
        except ValueError:
            pass
    try:  # .5 and 1.
        value = float(word)
    except ValueError:
        return None
    return json.dumps(value) if abs(value) < float("inf") else None


def _unescaped(text: str) -> str:
    """Return what a quoted text says.  An escape that nobody knows keeps its backslash."""

    def meant(found: re.Match[str]) -> str:
        for code in found.groups()[:3]:
            if code is not None:
                number = int(code, 16)
                return chr(number) if number < 0x110000 else found[0]
        letter = found[4]
        if letter in _ESCAPED:
            return _ESCAPED[letter]
        return letter if letter in "\\\"'/`" else found[0]

    said = _ESCAPE.sub(meant, text)
    # Two halves of a pair, written as two escapes, are one character.
    return said.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
