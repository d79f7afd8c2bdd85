"""The rules of one grammar, as they are written: names, bodies, and how texts are spelled in them.

The notation is the EBNF that llama.cpp made common.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping

from mlxbun.domain.constraint.patterns import (
    MAX_CODE,
    Chars,
    Ranges,
    union,
    without,
)
from mlxbun.domain.sampling import TokenId

# A name that is in no quotes and no class.
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^]\\]|\\.)*\]|([A-Za-z_][A-Za-z0-9_]*)')
MAX_RULES = 20_000
# How a JSON string spells what it cannot hold as it is; the rest of the controls is not written.
_ESCAPED = {0x22: '\\"', 0x5C: "\\\\", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 8: "\\b", 12: "\\f"}
_UNPLAIN = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))


class GrammarTooLarge(ValueError):
    """What was asked for needs more rules than MAX_RULES."""


class RuleBook:
    """Rules by name.  `once` promises a rule, `text` has them all written."""

    def __init__(
        self, common: Mapping[str, str], special: Mapping[str, TokenId] | None = None
    ) -> None:
        """`special` are the spellings of tokens that no text spells, and their ids."""
        self._bodies = dict(common)
        self._special = dict(special or {})
        self._names: dict[Hashable, str] = {}
        self._promised: deque[tuple[str, Callable[[], str]]] = deque()

    def sign(self, text: str) -> str:
        """Return the expression of `text` in a model's own markup: special tokens are tokens."""
        found = [name for name in self._special if name and name in text]
        if not found:
            return quoted(text)
        name = min(found, key=lambda name: (text.index(name), -len(name)))
        before, _, after = text.partition(name)
        parts = [quoted(before)] if before else []
        parts.append(f"Token({self._special[name]})")
        if after:
            parts.append(self.sign(after))
        return " ".join(parts)

    def once(self, key: Hashable, make: Callable[[], str]) -> str:
        """Return the name of the rule for `key`; `make` is called later, and once."""
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= MAX_RULES:
                raise GrammarTooLarge("it comes to too large a grammar")
            name = self._names[key] = f"r{len(self._names)}"
            self._promised.append((name, make))
        return name

    def text(self, root: str) -> str:
        """Return the grammar whose texts are those of the expression `root`.

        Raises what makers raise.
        """
        while self._promised:
            name, make = self._promised.popleft()
            self._bodies[name] = make()
        lines = [f"root ::= {root}"]
        used, waiting = set[str](), [root]
        while waiting:  # rules that nobody uses would be compiled too
            for name in _NAME.findall(waiting.pop()):
                if name in self._bodies and name not in used:
                    used.add(name)
                    waiting.append(self._bodies[name])
        lines += [f"{name} ::= {body}" for name, body in self._bodies.items() if name in used]
        return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """Return the expression of exactly `text`."""
    letters = (
        f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else "\\" + c if c in '"\\' else c
        for c in text
    )
    return '"' + "".join(letters) + '"'


def letters(pattern: Chars, least: int, most: int | None) -> str:
    """Return the expression of that many characters of a class.

    A class of nearly everything is spelled by what it leaves out: of the other spelling xgrammar
    compiles a repetition four hundred times as long.
    """
    ranges, sign = pattern.ranges, ""
    if ranges and ranges[-1][1] == MAX_CODE:
        ranges, sign = without(((0, MAX_CODE),), ranges), "^"
    letter = f"[{sign}{_ranges(ranges, _letter)}]"
    if (least, most) == (1, 1):
        return letter
    return f"{letter}{{{least},{'' if most is None else most}}}"


def _ranges(ranges: Ranges, letter: Callable[[int], str]) -> str:
    return "".join(
        letter(low) if low == high else f"{letter(low)}-{letter(high)}" for low, high in ranges
    )


def _letter(code: int) -> str:
    """Spell a character of a class of the grammar."""
    letter = chr(code)
    if (letter.isascii() and letter.isalnum()) or (code > 0xA0 and not 0xD800 <= code < 0xE000):
        return letter
    return f"\\u{code:04x}"


def either(expressions: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(expressions))


def escapes(ranges: Iterable[tuple[int, int]]) -> list[str]:
    """Return the escapes of the characters in `ranges` that JSON does not hold as they are."""
    spelled = tuple(ranges)
    found = [e for code, e in _ESCAPED.items() if any(a <= code <= b for a, b in spelled)]
    if found or without(spelled, ((0, 0x1F),)):
        return found
    return [f"\\u{code:04x}" for low, high in union(spelled) for code in range(low, high + 1)]


def plain(ranges: Iterable[tuple[int, int]]) -> Chars:
    """Return the characters of `ranges` that a JSON string holds as they are."""
    return Chars(without(tuple(ranges), _UNPLAIN))
