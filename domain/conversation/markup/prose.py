"""Where a text shows markup and does not mean it: in code, and in quotes."""

from __future__ import annotations

_FENCES = ("```", "~~~")
_QUOTES = "\"'\u201c\u2018"


class Prose:
    """Follows the visible text, line by line."""

    def __init__(self) -> None:
        self._fenced = False
        self._start = ""  # the line's first characters, up to the length of a fence
        self._num_ticks = 0
        self._last = ""
        self._quoted = False  # the line has shown markup in quotes

    def add(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            if len(self._start) < 3:
                self._start = (self._start + line).lstrip()[:3]
            self._num_ticks += line.count("`")
            self._last = line[-1]
            if self._last == "\n":
                self._fenced ^= self._start in _FENCES
                self._start, self._num_ticks, self._quoted = "", 0, False

    def quotes(self) -> bool:
        """Tell whether the markup that comes next is shown, not meant."""
        self._quoted |= self._last != "" and self._last in _QUOTES
        in_line = self._num_ticks % 2 == 1 or self._start in _FENCES
        return self._fenced or in_line or self._quoted
