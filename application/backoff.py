"""Backoff: when to try again what a disk refused, ever more rarely."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS = 1.0
MOST_SECONDS = 300.0


class Backoff:
    """One thing that is tried again after `first` seconds, then twice as many, up to `most`.

    `now` is a monotonic clock's seconds.  The caller sees to it that one thread calls at a time.
    """

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        most: float = MOST_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._most, self._now = first, most, now
        self._pause = 0.0
        self._due: float | None = None

    def failed(self) -> None:
        """Note a failure.  What fails meanwhile puts nothing off."""
        if self._due is None:
            self._pause = min(2 * self._pause or self._first, self._most)
            self._due = self._now() + self._pause

    def worked(self) -> None:
        """Begin anew with the next failure."""
        self._pause, self._due = 0.0, None

    def hurry(self) -> None:
        """Have what failed be due now; nothing is where nothing failed."""
        if self._due is not None:
            self._due = self._now()

    def left(self) -> float | None:
        """Return the seconds until it is due, 0 if it is; None where nothing failed."""
        return None if self._due is None else max(0.0, self._due - self._now())

    def take(self) -> bool:
        """Return whether it is due; only once."""
        if self.left() != 0.0:
            return False
        self._due = None
        return True
