"""One streamed answer of an OpenAI-compatible server: its tokens, its text, its times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench.client import Client
from mlxbun.adapters.bench.http_stream import SseReader


class Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(Struct, frozen=True):
    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(Struct, frozen=True):
    """What a load client reads of a stream's record, chat's or completion's."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw | None = None


class Generation(Struct):
    """One streamed answer.  Times are seconds of time.perf_counter.

    `arrivals` are of records that brought text (or reasoning, or a call), in order.
    """

    started: float
    ended: float = 0.0
    arrivals: list[float] = msgspec.field(default_factory=list[float])
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    error: str = ""

    @property
    def ttft_seconds(self) -> float:
        """Time to first text; that of the whole answer if it brought no text."""
        return (self.arrivals[0] if self.arrivals else self.ended) - self.started

    @property
    def gaps_seconds(self) -> list[float]:
        """Times between records with text."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [later - earlier for earlier, later in pairs]


_decode = msgspec.json.Decoder(Chunk).decode


async def generate(
    client: Client, path: str, payload: dict[str, Any], on_text: Callable[[], None] | None = None
) -> Generation:
    """Stream one answer and time every record.  Never raises: `error` says what went wrong.

    `payload` is a chat or completion request; stream and usage are asked for here.  `on_text`
    is called at each record with text.
    """
    sse, answer, texts, raw = (
        SseReader(),
        Generation(time.perf_counter()),
        list[str](),
        list[bytes](),
    )
    saw_usage = False

    def on_body(now: float, body: bytes) -> None:
        nonlocal saw_usage
        if len(raw) < 4:  # what a refusal says
            raw.append(body)
        for record in sse.feed(body):
            if record == b"[DONE]":
                continue
            chunk = _decode(record)
            if chunk.usage is not None:
                saw_usage = True
                answer.prompt_tokens = chunk.usage.prompt_tokens
                answer.completion_tokens = chunk.usage.completion_tokens
            if chunk.error is not None:
                answer.error = bytes(chunk.error).decode()[:200]
            for choice in chunk.choices:
                if text := _text(choice):
                    texts.append(text)
                    answer.arrivals.append(now)
                    if on_text is not None:
                        on_text()
                if choice.finish_reason:
                    answer.finish_reason = choice.finish_reason

    asked = {**payload, "stream": True, "stream_options": {"include_usage": True}}
    try:
        status, error = await client.stream("POST", path, asked, on_body)
    except msgspec.DecodeError as wrong:
        client.close()
        status, error = 0, f"a record is not a chunk: {wrong}"
    answer.ended = time.perf_counter()
    answer.text = "".join(texts)
    if error:
        answer.error = error
    elif status != 200:
        answer.error = f"{status}: {b''.join(raw)[:200].decode('utf-8', 'replace')}"
    elif not saw_usage and not answer.error:
        answer.error = "the stream ended without usage"
    return answer


def _text(choice: Choice) -> str:
    if choice.text:
        return choice.text
    delta = choice.delta
    if delta is None:
        return ""
    if delta.tool_calls:
        return " "
    return delta.content or delta.reasoning or delta.reasoning_content or ""
