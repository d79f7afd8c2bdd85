"""Where a text shows markup and does not mean it: in code, and in quotes."""

from __future__ import annotations

_FENCES = ("```", "~~~")
_OPENING = "\u201c\u2018\u201e\u00ab\u300c"
_EITHER = "\"'"  # an opening quote where a word may begin
_BEFORE_WORDS = "([{<=:/-\u2013\u2014"


class Prose:
    """Follows the visible text, line by line.

    Text is only put down: it is looked at where markup comes, which in most answers is never.
    """

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._fenced = False
        self._start = ""  # the line's first characters, up to the length of a fence
        self._num_ticks = 0
        self._last_two = ""  # of the line
        self._quoted = False  # the line has shown markup in quotes

    def add(self, text: str) -> None:
        self._unread.append(text)

    def _read(self) -> None:
        text = "".join(self._unread)
        self._unread.clear()
        for line in text.splitlines(keepends=True):
            if len(self._start) < 3:
                self._start = (self._start + line).lstrip()[:3]
            self._num_ticks += line.count("`")
            self._last_two = (self._last_two + line[-2:])[-2:]
            if line[-1] == "\n":
                self._fenced ^= self._start in _FENCES
                self._start, self._num_ticks, self._quoted = "", 0, False
                self._last_two = ""

    def quotes(self) -> bool:
        """Tell whether the markup that comes next is shown, not meant."""
        self._read()
        self._quoted |= self._opens_quote()
        in_line = self._num_ticks % 2 == 1 or self._start in _FENCES
        return self._fenced or in_line or self._quoted

    def _opens_quote(self) -> bool:
        """Tell whether the last character opens a quote; one after a word closes it."""
        before, last = self._last_two[:-1], self._last_two[-1:]
        if last in _EITHER:
            return last != "" and (not before or before.isspace() or before in _BEFORE_WORDS)
        return last in _OPENING
