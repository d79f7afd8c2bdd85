"""Requests in flight, and work that outlives its request: how they are told to end.

One event loop; no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager

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
        self._tasks: set[asyncio.Task[None]] = set()  # the loop alone does not keep them

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

    def start(
        self, work: Callable[[], Awaitable[None]], ended: Callable[[Refused], object]
    ) -> None:
        """Begin `work`, in flight as a request is; `ended` hears why the server ended it."""
        stack = ExitStack()
        flight = stack.enter_context(self.enter())
        flight.started = True

        async def fly() -> None:
            with stack:
                with flight.scope:
                    await work()
                if flight.ended_by is not None:
                    ended(flight.ended_by)

        task = asyncio.get_running_loop().create_task(fly())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self, refused: Refused, which: Callable[[Flight], bool] = lambda flight: True) -> None:
        """Cancel the flights that `which` picks; each tells its client `refused`."""
        for flight in filter(which, tuple(self._flights)):
            flight.end(refused)

    async def wait_empty(self) -> None:
        while self._flights:
            self._empty = anyio.Event()
            await self._empty.wait()
