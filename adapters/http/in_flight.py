"""Requests in flight: who is here, and how they are told to end.

One event loop; no locks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio

from mlxbun.domain.refusal import Refused


class Flight:
    """One request from its head to its last byte.

    `ended_by` is why the server ended it, None when it ended by itself or its client left.
    `started` is when its body is whole and its handler runs.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended_by: Refused | None = None
        self.started = False

    def end(self, refused: Refused) -> None:
        if self.ended_by is None:
            self.ended_by = refused
            self.scope.cancel()


class InFlight:
    def __init__(self) -> None:
        self._flights: set[Flight] = set()
        self._empty: anyio.Event | None = None

    def __len__(self) -> int:
        return len(self._flights)

    @contextmanager
    def enter(self) -> Generator[Flight, None, None]:
        flight = Flight()
        self._flights.add(flight)
        try:
            yield flight
        finally:
            self._flights.discard(flight)
            if not self._flights and self._empty is not None:
                self._empty.set()

    def end(self, refused: Refused, which: Callable[[Flight], bool] = lambda flight: True) -> None:
        """Cancel the flights that `which` picks; each tells its client `refused`."""
        for flight in filter(which, tuple(self._flights)):
            flight.end(refused)

    async def wait_empty(self) -> None:
        while self._flights:
            self._empty = anyio.Event()
            await self._empty.wait()
