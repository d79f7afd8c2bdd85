"""Shows progress of long work: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

BAR_SECONDS, LINE_SECONDS = 0.1, 10.0
BAR_COLUMNS = 30
MEGABYTE = 1_000_000


class ShownProgress:
    """A listener for progress; use as a context so that a bar ends with a line break."""

    def __init__(
        self, out: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._out = sys.stderr if out is None else out
        self._now = now
        self._is_terminal = self._out.isatty()
        self._what = ""
        self._shown_at = 0.0
        self._open_line = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = self._now()
        every = BAR_SECONDS if self._is_terminal else LINE_SECONDS
        is_news = what != self._what or (total and done >= total and self._is_terminal)
        if not is_news and now - self._shown_at < every:
            return
        if what != self._what:
            self._end_line()
        self._what, self._shown_at = what, now
        if self._is_terminal:
            self._out.write(f"\r\033[K{what} {bar(done, total)}")
            self._open_line = True
        else:
            self._out.write(f"{what}: {amount(done, total)}\n")
        self._out.flush()

    def __enter__(self) -> ShownProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_line()

    def _end_line(self) -> None:
        if self._open_line:
            self._out.write("\n")
            self._out.flush()
            self._open_line = False


def bar(done: int, total: int) -> str:
    """Return a bar, such as [=====     ] 46 of 92 MB."""
    if not total:
        return amount(done, total)
    filled = BAR_COLUMNS * min(done, total) // total
    return f"[{'=' * filled}{' ' * (BAR_COLUMNS - filled)}] {amount(done, total)}"


def amount(done: int, total: int) -> str:
    """Return how much of how much: in MB once it is that much, else as counted."""
    if max(done, total) >= MEGABYTE:
        end = f" of {total // MEGABYTE} MB" if total else " MB"
        return f"{done // MEGABYTE}{end}"
    return f"{done} of {total}" if total else str(done)
