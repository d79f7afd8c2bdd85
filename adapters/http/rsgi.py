"""The RSGI application: bytes in and out under Granian, and the life of the worker process.

With `exchange`, all that knows Granian.  What holds there: sends never wait (a slow reader is
bounded by max_tokens), an exception in mid-stream would end it as if it were complete, a
client that left shows at `client_disconnect` or at the next send, whichever is first, and
nothing is told to handlers when the server stops; so all of that is done here.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio
from granian.rsgi import HTTPProtocol, ProtocolClosed, Scope  # type: ignore[attr-defined]

from mlxbun.adapters.http.access import Access
from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.errors import Failed, error_answer
from mlxbun.adapters.http.exchange import Exchange
from mlxbun.adapters.http.front import DRAINING, Front, request_id
from mlxbun.adapters.http.in_flight import InFlight
from mlxbun.adapters.http.request import Head, Request, read_body, tidy
from mlxbun.adapters.http.routes import routes
from mlxbun.adapters.http.routing import Router
from mlxbun.application.model_store import LoadFailed
from mlxbun.application.service import Service
from mlxbun.domain.refusal import Refused

log = logging.getLogger("mlxbun.http")

_CUT = Refused("draining", "the server shut down before the answer was complete")
_SEND_SECONDS = 0.25  # that Granian gets to send what it was given; it does not say when it has
_LAST_WORDS_SECONDS = 5.0  # for what was cancelled to say so
_LAST_WRITES_SECONDS = 2.0  # for the SSD, though what ran took all the time there was


class RsgiApp:
    """Serves `service`.  Import and construct freely: what opens, opens in `__rsgi_init__`.

    `keepalive_seconds` is how long a stream may be silent, `body_seconds` how long a client may
    be silent inside its body, `shutdown_seconds` how long running requests may go on after
    SIGTERM or SIGINT.  `template_arguments` are the chat template's unless a request says
    otherwise.  `address` is where clients find this, for the log.  `exit` ends the process.
    """

    def __init__(
        self,
        service: Service,
        *,
        max_body_bytes: int = 64_000_000,
        api_key: str | None = None,
        allow_origins: tuple[str, ...] = (),
        template_arguments: Mapping[str, Any] | None = None,
        keepalive_seconds: float = 10.0,
        body_seconds: float = 30.0,
        shutdown_seconds: float = 120.0,
        load_seconds: float = 600.0,
        address: str = "",
        exit: Callable[[int], object] = os._exit,
    ) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._keepalive_seconds = keepalive_seconds
        self._body_seconds = body_seconds
        self._shutdown_seconds = shutdown_seconds
        self._stop_by = 0.0  # on time.monotonic's clock, once stopping began
        self._address = address
        self._exit = exit
        self._in_flight = InFlight()
        table = routes(
            service,
            lambda: self._front.draining,
            template_arguments or {},
            load_seconds,
            self._in_flight,
        )
        self._front = Front(Router(table), Access(api_key, allow_origins))
        self._heard: set[int] = set()
        self._patience: anyio.CancelScope | None = None
        self._told = False  # Granian knows that it must stop
        self._over = False
        self._tasks: list[asyncio.Task[None]] = []

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # A thread that comes back from the model waits this long for the interpreter.
        sys.setswitchinterval(0.0005)
        self._loop = loop
        self._service.start(loop.call_soon_threadsafe)
        # Granian listens to SIGTERM and SIGINT alike.  SIGTERM becomes ours; SIGINT is left to
        # Granian, to be told by it, and heard beside it (asyncio learns of signals through a
        # file descriptor, whatever the Python handler).
        loop.add_signal_handler(signal.SIGTERM, self._on_signal, signal.SIGTERM)
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._tasks.append(loop.create_task(self._await_model()))

    def __rsgi_del__(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in self._tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        if self._service.loaded is None and self._service.failure is None:
            log.info("stopped while the model was loading")
            self._leave(0)  # loading cannot be interrupted, and holds nothing that lasts
        left = self._stop_by - time.monotonic() if self._stop_by else self._shutdown_seconds
        self._service.stop(max(left, _LAST_WRITES_SECONDS))

    async def __rsgi__(self, scope: Scope, protocol: HTTPProtocol) -> None:
        if scope.proto != "http":
            protocol.close(404)  # type: ignore[attr-defined]  # a websocket's
            return
        said = request_id(scope.headers)
        head = Head(scope.method, tidy(scope.path), scope.headers, said, scope.query_string)
        exchange = Exchange(self._front, head, protocol)
        found = self._front.open(head)
        if isinstance(found, Answer):
            exchange.send(found)
            return
        with self._in_flight.enter() as flight:
            with flight.scope:  # cancelled when the client leaves, and when the server ends it
                body = await self._body(head, protocol)
                if isinstance(body, Answer):
                    exchange.send(body)
                elif body is not None:
                    flight.started = True
                    await exchange.run(found, Request(head, body), flight, self._keepalive_seconds)
            if flight.ended_by is not None:
                await exchange.end(flight.ended_by)
            exchange.close()

    async def _body(self, head: Head, protocol: HTTPProtocol) -> bytes | Answer | None:
        """Return the body, the answer to one too long or too slow, or None: nobody is there."""
        if head.method in ("GET", "HEAD"):
            return b""
        try:
            with anyio.fail_after(self._body_seconds) as patience:
                chunks = _patient(protocol, patience, self._body_seconds)
                async with aclosing(chunks):
                    return await read_body(chunks, head.headers, self._max_body_bytes)
        except Refused as refused:
            return error_answer(head, refused)
        except TimeoutError:
            message = f"nothing of the body came for {self._body_seconds:g} seconds"
            return error_answer(head, Failed("timeout", message))
        except ProtocolClosed:
            return None

    async def _await_model(self) -> None:
        """Say how loading went; without a model there is nothing to live for."""
        try:
            model = await self._service.model()
        except Exception as error:  # whatever loading raised
            known = isinstance(error, LoadFailed)
            log.critical("cannot load the model: %s", error, exc_info=None if known else error)
            anyone = len(self._in_flight) > 0
            with anyio.move_on_after(1.0):  # for those who waited for it to be told
                await self._in_flight.wait_empty()
            if anyone:
                await anyio.sleep(_SEND_SECONDS)
            self._leave(1)
            return
        gc.collect()
        gc.freeze()  # what loading made stays: collections need not look at it again
        log.info("serving %s%s", model.card.id, self._address and f" on {self._address}")

    def _on_interrupt(self, signum: int, frame: object) -> None:
        self._loop.call_soon_threadsafe(self._heard_interrupt)

    def _heard_interrupt(self) -> None:
        self._told = True
        self._tasks.append(self._loop.create_task(self._keep_interrupts()))
        self._on_signal(signal.SIGINT)

    async def _keep_interrupts(self) -> None:
        """Keep further SIGINTs from Granian, which hangs when it is told a third time."""
        for _ in range(3):  # until the loop has handed this one on
            await asyncio.sleep(0)
        self._loop.add_signal_handler(signal.SIGINT, self._on_signal, signal.SIGINT)

    def _on_signal(self, signum: int) -> None:
        """Begin to drain; at a second signal of the same kind stop waiting.

        (A Ctrl-C brings both kinds: one from the terminal, one from Granian's supervisor.)
        """
        if self._over:
            return
        if signum in self._heard and self._patience is not None:
            self._patience.cancel()
        elif not self._heard:
            log.info("stopping: %d requests in flight", len(self._in_flight))
            self._tasks.append(self._loop.create_task(self._drain()))
        self._heard.add(signum)

    async def _drain(self) -> None:
        """Admit nobody, let what runs finish, end the rest, then let Granian stop."""
        self._front.draining = True
        self._stop_by = time.monotonic() + self._shutdown_seconds
        self._service.engine.drain()
        loading = self._service.loaded is None
        self._in_flight.end(DRAINING, lambda flight: loading or not flight.started)
        with anyio.move_on_after(self._shutdown_seconds) as self._patience:
            await self._in_flight.wait_empty()
        self._in_flight.end(_CUT)
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await self._in_flight.wait_empty()
        self._over = True
        if not self._told:
            os.kill(os.getpid(), signal.SIGINT)

    def _leave(self, status: int) -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(status)


async def _patient(
    protocol: HTTPProtocol, patience: anyio.CancelScope, seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield the body's chunks, with as much patience for each as for the first."""
    async for chunk in protocol:
        yield chunk
        patience.deadline = anyio.current_time() + seconds
