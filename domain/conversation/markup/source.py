"""A text that is still coming, and the steps that read it.

A step is a generator: it yields where it needs more text than there is, and returns what it
read.  What it decides depends on the characters alone, never on how they were cut into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


class Source:
    """The text that was fed and not yet taken.  Once `ended`, no more comes.

    It is `cut` where it ended before its writer did.
    """

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.cut = False
        self._kept: list[str] | None = None

    def take(self, num_chars: int) -> str:
        text = self.text
        if num_chars == len(text):  # as nearly always
            taken, self.text = text, ""
        else:
            taken, self.text = text[:num_chars], text[num_chars:]
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def take_all(self) -> str:
        return self.take(len(self.text))

    def mark(self) -> None:
        """Remember what is taken from here on, so that it can be given back."""
        self._kept = []

    def since_mark(self) -> str:
        return "".join(self._kept or ())

    def forget(self) -> str:
        """Drop the mark; return what was taken since."""
        taken, self._kept = self.since_mark(), None
        return taken

    def rewind(self) -> None:
        """Give back what was taken since the mark, and drop it."""
        self.text, self._kept = self.since_mark() + self.text, None

    def give_back(self, text: str) -> None:
        """Give back `text`, the last that was taken."""
        if self._kept is not None:
            self._kept = [self.since_mark().removesuffix(text)]
        self.text = text + self.text


class Markers:
    """Strings to be found in a text that is still coming.  None begins another."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.all = frozenset(markers)
        begun = {marker[:n] for marker in self.all for n in range(1, len(marker))}
        assert not begun & self.all, "one marker begins another"
        # All alternatives begin with a literal, so that `re` skips ahead by first letters.
        whole = [re.escape(marker) for marker in self.all]
        partial = [re.escape(part) + r"\Z" for part in sorted(begun, key=len, reverse=True)]
        self._pattern = re.compile("|".join([*whole, *partial]))

    def find(self, text: str) -> tuple[int, str]:
        """Return where the first marker is, and which; "" if only its beginning is there.

        Without either, the end of the text and "".
        """
        found = self._pattern.search(text) if self.all else None
        if found is None:
            return len(text), ""
        return found.start(), found[0] if found[0] in self.all else ""


def until(source: Source, markers: Markers, limit: int | None = None) -> Steps[tuple[str, str]]:
    """Take text and the marker that ends it; "" for a marker where none came.

    That is at the end, or once there are more than `limit` characters.
    """
    taken: list[str] = []
    num_chars = 0
    while True:
        at, marker = markers.find(source.text)
        num_chars += at
        if limit is not None and num_chars > limit:
            return "".join(taken), ""
        taken.append(source.take(at))
        if marker:
            source.take(len(marker))
            return "".join(taken), marker
        if source.ended:
            taken.append(source.take_all())
            return "".join(taken), ""
        yield


def ahead(source: Source, options: tuple[str, ...]) -> Steps[str]:
    """Return which of `options` comes next, after spaces; "" for none.  Take nothing."""
    while True:
        rest = source.text.lstrip()
        for option in options:
            if rest.startswith(option):
                return option
        if source.ended or (rest and not any(option.startswith(rest) for option in options)):
            return ""
        yield


def accept(source: Source, *options: str) -> Steps[str]:
    """Take spaces and one of `options` if it comes next, and return it; "" for none."""
    found = yield from ahead(source, options)
    if found:
        skip_space(source)
        source.take(len(found))
    return found


def at_end(source: Source) -> Steps[bool]:
    """Tell whether nothing but spaces is still to come."""
    while not source.text.strip():
        if source.ended:
            return True
        yield
    return False


def skip_space(source: Source) -> str:
    """Take the spaces that are there, and return them."""
    return source.take(len(source.text) - len(source.text.lstrip()))


class Strings:
    """How strings are written within brackets.

    `quoted` are quotes within which a backslash escapes; `raw` delimiters nothing escapes.
    `stop` ends what is read outside of strings.
    """

    def __init__(self, quoted: str, raw: tuple[str, ...] = (), stop: str = "") -> None:
        self.raw = raw
        self.stop = stop
        self.outside = Markers([*"[](){}", *quoted, *raw, *([stop] if stop else ())])
        self.inside = {q: Markers([q, "\\"]) for q in quoted} | {r: Markers([r]) for r in raw}


def brackets(source: Source, strings: Strings, depth: int = 0) -> Steps[tuple[str, bool]]:
    """Take text up to where its brackets are closed, `depth` that are open included.

    Returns it, and whether they are: not at the end of the text, nor where `stop` comes first.
    """
    taken: list[str] = []
    quote = ""
    while True:
        markers = strings.inside[quote] if quote else strings.outside
        at, marker = markers.find(source.text)
        if marker == strings.stop and marker:
            taken.append(source.take(at))
            return "".join(taken), False
        if marker == "\\":
            if len(source.text) < at + 2 and not source.ended:
                yield
                continue
            taken.append(source.take(at + 2))
            continue
        if not marker:
            taken.append(source.take(len(source.text) if source.ended else at))
            if source.ended:
                return "".join(taken), False
            yield
            continue
        taken.append(source.take(at + len(marker)))
        if quote:
            quote = ""
        elif marker in strings.inside:
            quote = marker
        else:
            depth += 1 if marker in "[({" else -1
            if depth <= 0:
                return "".join(taken), True
