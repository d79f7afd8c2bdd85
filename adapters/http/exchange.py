"""One request's answer on its way out under Granian: sent whole, or as a stream that is watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from granian.rsgi import HTTPProtocol, ProtocolClosed  # type: ignore[attr-defined]

from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.errors import error_answer, error_record
from mlxbun.adapters.http.front import Front, Opened
from mlxbun.adapters.http.in_flight import Flight
from mlxbun.adapters.http.request import Head, Request
from mlxbun.adapters.http.routing import Handler
from mlxbun.domain.refusal import Refused


class Transport(Protocol):
    """Granian's side of a stream."""

    async def send_bytes(self, data: bytes, /) -> None: ...


class Exchange:
    """One request's answer on its way out.

    A stream ends when its transport is dropped, so nothing but `_out` may hold it: a frame that
    does can outlive the request in a traceback.
    """

    def __init__(self, front: Front, head: Head, protocol: HTTPProtocol) -> None:
        self._front = front
        self._head = head
        self._protocol = protocol
        self._out: Transport | None = None
        self._broken: Callable[[Refused], bytes] = partial(error_record, head)
        self._last_sent = 0.0
        self._complete = False

    async def run(
        self, handler: Handler, request: Request, flight: Flight, keepalive_seconds: float
    ) -> None:
        """Answer `request`, or stop when its client leaves, which cancels `flight`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch_client, flight)
            answer = await self._front.respond(handler, request)
            if isinstance(answer, Answer):
                self.send(answer)
            else:
                await self._stream(answer, tasks, keepalive_seconds)
            tasks.cancel_scope.cancel()

    def send(self, answer: Answer) -> None:
        self._complete = True
        headers = self._front.dress(self._head, answer.headers)
        with suppress(ProtocolClosed):
            if self._head.method == "HEAD":
                headers.append(("content-length", str(len(answer.body))))
            if self._head.method == "HEAD" or not answer.body:
                self._protocol.response_empty(answer.status, headers)
            else:
                self._protocol.response_bytes(answer.status, headers, answer.body)

    async def end(self, refused: Refused) -> None:
        """Tell the client why its request was ended, in what words are left."""
        if self._complete:
            return
        if self._out is None:
            self.send(error_answer(self._head, refused))
            return
        with suppress(ProtocolClosed):
            await self._out.send_bytes(self._broken(refused))

    def close(self) -> None:
        self._out = None

    async def _stream(self, opened: Opened, tasks: TaskGroup, keepalive_seconds: float) -> None:
        headers = self._front.dress(self._head, opened.headers)
        self._broken = opened.broken
        async with aclosing(self._front.records(self._head, opened)) as records:
            with suppress(ProtocolClosed):  # a send may learn first that the client left
                self._out = self._protocol.response_stream(200, headers)
                tasks.start_soon(self._keep_alive, opened.heartbeat, keepalive_seconds)
                async for record in records:
                    await self._out.send_bytes(record)
                    self._last_sent = time.monotonic()
        self._complete = True

    async def _keep_alive(self, heartbeat: Callable[[], bytes], seconds: float) -> None:
        """Send a heartbeat whenever nothing else was sent for so long."""
        self._last_sent = time.monotonic()
        while self._out is not None:
            silent = time.monotonic() - self._last_sent
            if silent < seconds:
                await anyio.sleep(seconds - silent)
                continue
            with suppress(ProtocolClosed):  # the watcher hears of it too
                await self._out.send_bytes(heartbeat())
            self._last_sent = time.monotonic()

    async def _watch_client(self, flight: Flight) -> None:
        await self._protocol.client_disconnect()
        flight.scope.cancel()
