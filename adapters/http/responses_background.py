"""A response that goes on without its client, and can be read again from any of its events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import anyio

from mlxbun.adapters.http.answers import EventStream, Headers
from mlxbun.adapters.http.responses_events import Keepalive, record
from mlxbun.adapters.http.responses_run import Run
from mlxbun.adapters.http.responses_types import Response
from mlxbun.application.event_log import EventLog
from mlxbun.domain.refusal import Refused

log = logging.getLogger("mlxbun.http")


class BackgroundRun:
    """Reads a run to its end into a log of its records.  `over` hears when both are complete."""

    def __init__(self, run: Run, over: Callable[[], None]) -> None:
        self.log = EventLog()
        self._run = run
        self._over = over
        self._begun = anyio.Event()
        self._first: Response | Refused | None = None  # what it began as, or why it did not

    async def work(self) -> None:
        try:
            async with aclosing(self._run.events()) as events:
                async for some in events:
                    for event in some:
                        self.log.add(event.sequence_number, record(event))
                    if self._first is None:
                        self._first = self._run.response
                        self._begun.set()
        except Refused as refused:
            self.broken(refused)
        except Exception as error:  # as at the edge of a request: the others go on
            log.error("the response %s broke", self._run.id, exc_info=error)
            message = f"something broke in the server; its log has more of {self._run.id}"
            self.broken(Refused("engine_failed", message))
        else:
            self.log.close()
            self._over()

    async def begun(self) -> Response:
        """Return what it began as, once it did.  Raises the Refused of one that cannot begin."""
        try:
            await self._begun.wait()
        except BaseException:  # its client left without its id: nobody can ask for it
            self._run.cancel()
            raise
        if isinstance(self._first, Refused):
            raise self._first
        assert self._first is not None
        return self._first

    def broken(self, refused: Refused) -> bytes:
        """End it as failed, unless it is over; return its last record."""
        if self.log.last < 0:
            self._first = refused
            self._begun.set()
            return b""
        if not self.log.closed:
            said = self._run.broken(refused)
            self.log.add(self._run.num_events - 1, said)
            self.log.close()
            self._over()
        return self.log.read(self.log.last - 1)[-1][1]

    def stream(self, after: int, headers: Headers = ()) -> EventStream:
        """Return the stream of its events with larger numbers than `after`, old ones and new."""
        return EventStream(records(self.log, after), headers, self._run.heartbeat, self.broken)


async def records(log: EventLog, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the records of `log` with larger numbers than `after`.

    A heartbeat is first where the next record is still to come, so that the status goes out.
    """
    if not log.closed and not log.read(after):
        yield record(Keepalive(sequence_number=max(log.last, 0)))
    async for some in log.follow(after):
        yield b"".join(said for _, said in some)
