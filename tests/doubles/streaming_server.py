"""A server that streams known tokens with known usage, for those who measure servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

WORDS_BEFORE = 7  # what its chat template would add, in tokens


class StreamingServer:
    """Answers chat and completions with `max_tokens` tokens, "t0 t1 ...".  One word is a token.

    `requests` are the bodies it saw.  `keep_alive` is HTTP/1.1 with chunks; without it, answers
    end with the connection, as mlx_lm.server's do.  What stands in `refuse` is its answer to
    everything.
    """

    def __init__(self, *, keep_alive: bool = True, refuse: tuple[int, str] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self.num_connections = 0
        self.url = ""
        self._keep_alive = keep_alive
        self._refuse = refuse
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[StreamingServer]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=128)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        try:
            await task
        finally:
            self._serving.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length: ")[2].partition("\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                await self._answer(head.split()[1], json.loads(body or b"{}"), writer)
                if not self._keep_alive:
                    break

    async def _answer(self, path: str, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if self._refuse is not None:
            status, message = self._refuse
            await self._whole(writer, status, {"error": {"message": message}})
        elif path == "/v1/models":
            await self._whole(writer, 200, {"data": [{"id": "stub"}]})
        else:
            self.requests.append(asked)
            await self._stream(writer, asked)

    async def _whole(
        self, writer: asyncio.StreamWriter, status: int, content: dict[str, Any]
    ) -> None:
        body = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        version, framing = (
            ("1.1", "Transfer-Encoding: chunked\r\n") if self._keep_alive else ("1.0", "")
        )
        writer.write(f"HTTP/{version} 200 OK\r\n{framing}\r\n".encode())
        chat = "messages" in asked
        number = asked["max_tokens"]
        if chat:
            self._record(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for i in range(number):
            text = f"t{i} "
            choice = {"delta": {"content": text}} if chat else {"text": text}
            self._record(writer, {"choices": [choice]})
            await writer.drain()
            await asyncio.sleep(0)  # a token a turn of the loop
        end: dict[str, Any] = {"finish_reason": "length"}
        end["delta" if chat else "text"] = {} if chat else ""
        self._record(writer, {"choices": [end]})
        prompt = asked["messages"][0]["content"] if chat else asked["prompt"]
        usage = {"prompt_tokens": len(prompt.split()) + WORDS_BEFORE, "completion_tokens": number}
        self._record(writer, {"choices": [], "usage": usage})
        self._write(writer, b"data: [DONE]\n\n")
        if self._keep_alive:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _record(self, writer: asyncio.StreamWriter, record: dict[str, Any]) -> None:
        self._write(writer, f"data: {json.dumps(record)}\n\n".encode())

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self._keep_alive else data)
