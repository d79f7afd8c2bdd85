"""Between steps: work on the engine's thread beside the rows, a piece a turn.

Whatever needs the model's device for long (embeddings) hands in pieces.  A turn of the engine
does one of them at most, whoever it belongs to, so that rows wait for one piece between two of
their tokens.  Those who wait take turns.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from mlxbun.domain.journal import Event

log = logging.getLogger("mlxbun.engine")


class Piece(Struct, frozen=True):
    """A piece that was done, and what is left of its work.

    Of "half" a thing the device's memory holds what was done, so it is done to its end before
    the work of others goes on.
    """

    left: Literal["nothing", "more", "half"]
    events: Sequence[Event] = ()


class Piecework(Protocol):
    """Work that is done in pieces."""

    def advance(self, *, alone: bool) -> Piece:
        """Do a piece on the engine's thread.

        `alone` says that no row waits for the device.  What it raises ends this work alone.
        """
        ...

    def ended(self, error: Exception | None) -> None:
        """Hear, on the event loop, that nothing more is done.  `error` is what went wrong."""
        ...


class BetweenSteps:
    """The work that waits.  All on the engine's thread."""

    def __init__(self) -> None:
        self._waiting = deque[Piecework]()
        self._ended: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, work: Piecework) -> None:
        self._waiting.append(work)

    def advance(self, *, alone: bool) -> Sequence[Event]:
        """Do one piece of whoever's turn it is."""
        if not self._waiting:
            return ()
        work = self._waiting.popleft()
        try:
            piece = work.advance(alone=alone)
        except Exception as error:  # its own work broke; rows and the others go on
            log.exception("work between steps failed")
            self._end(work, error)
            return ()
        match piece.left:
            case "nothing":
                self._end(work, None)
            case "more":
                self._waiting.append(work)
            case "half":
                self._waiting.appendleft(work)
        return piece.events

    def end(self, error: Exception) -> None:
        """End all that waits."""
        while self._waiting:
            self._end(self._waiting.popleft(), error)

    def take_ended(self) -> tuple[Callable[[], None], ...]:
        """Return, once, the calls by which those hear whose work is over."""
        taken, self._ended = tuple(self._ended), []
        return taken

    def _end(self, work: Piecework, error: Exception | None) -> None:
        self._ended.append(lambda: work.ended(error))
