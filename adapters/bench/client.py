"""One HTTP/1.1 connection at a time to a server under measurement, at little cost.

asyncio's raw protocol rather than its streams or an HTTP library: what arrives is stamped and
split in one call, and the client shares two cores with the server it measures.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench.http_stream import BadResponse, ResponseReader

OnBody = Callable[[float, bytes], None]


class Endpoint(Struct, frozen=True):
    """Where a server is.  `api_key` is sent as a bearer token unless it is empty."""

    url: str = "http://127.0.0.1:8080"
    api_key: str = ""

    def address(self) -> tuple[str, int, bool]:
        """Return host, port, and whether TLS is wanted."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        return parts.hostname or "127.0.0.1", parts.port or (443 if secure else 80), secure

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Return the bytes of one request.  `path` starts with a slash."""
        parts = urlsplit(self.url)
        lines = [f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc}"]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body


class Reply(Struct, frozen=True):
    """A response that was read whole.  `status` 0 means that none came, and `error` says why."""

    status: int
    body: bytes
    error: str = ""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Client:
    """Sends one request after another, keeping the connection while the server does."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float = 300) -> None:
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._protocol: _Protocol | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await asyncio.sleep(0)  # the transport's turn to let go of its socket

    async def send(self, method: str, path: str, payload: Any = None) -> Reply:
        """Send a request and read the whole answer."""
        pieces: list[bytes] = []
        status, error = await self.stream(
            method, path, payload, lambda _, piece: pieces.append(piece)
        )
        return Reply(status, b"".join(pieces), error)

    async def stream(
        self, method: str, path: str, payload: Any, on_body: OnBody
    ) -> tuple[int, str]:
        """Send a request; `on_body` gets each piece with its arrival (time.perf_counter).

        Returns status and what went wrong with the connection, "" if nothing did.
        """
        body = b"" if payload is None else msgspec.json.encode(payload)
        request = self._endpoint.request(method, path, body)
        status = 0
        try:
            async with asyncio.timeout(self._timeout_seconds):
                protocol = await self._connected()
                reader = ResponseReader()
                await protocol.exchange(request, reader, on_body)
                status = reader.status
                if not reader.keep_alive:
                    self.close()
        except TimeoutError:
            self.close()
            return status, f"no answer in {self._timeout_seconds:g} s"
        except (OSError, BadResponse) as error:
            self.close()
            return status, f"{type(error).__name__}: {error}"
        return status, ""

    def close(self) -> None:
        """Drop the connection, at whatever point it is."""
        if self._protocol is not None:
            self._protocol.abort()
            self._protocol = None

    async def _connected(self) -> _Protocol:
        if self._protocol is None or self._protocol.closed:
            host, port, secure = self._endpoint.address()
            tls = ssl.create_default_context() if secure else None
            loop = asyncio.get_running_loop()
            _, self._protocol = await loop.create_connection(_Protocol, host, port, ssl=tls)
        return self._protocol


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._on_body: OnBody | None = None
        self._done: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, reader: ResponseReader, on_body: OnBody) -> None:
        """Send `request`, read the response into `reader`.  Raises OSError, BadResponse."""
        if self._transport is None or self.closed:
            raise ConnectionResetError("the server closed the connection")
        self._reader, self._on_body = reader, on_body
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._done

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._done is None or self._done.done() or self._on_body is None:
            return  # nobody waits: it timed out, or the server talks out of turn
        try:
            body = self._reader.feed(data)
            if body:
                self._on_body(now, body)
        except Exception as error:  # whoever waits for the answer gets it
            self._done.set_exception(error)
            return
        if self._reader.done:
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._done is None or self._done.done():
            return
        if exc is not None:
            self._done.set_exception(exc)
            return
        try:
            self._reader.close()
        except BadResponse as error:
            self._done.set_exception(error)
        else:
            self._done.set_result(None)
