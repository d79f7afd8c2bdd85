"""What one user feels of another: first text beside a running stream, gaps while others join."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.adapters.bench import percentiles
from mlxbun.adapters.bench.client import Client, Endpoint
from mlxbun.adapters.bench.generation import Generation, generate
from mlxbun.adapters.bench.load import RequestShape
from mlxbun.adapters.bench.percentiles import Percentiles
from mlxbun.adapters.bench.prompts import Prompts

FLOWING = 16  # records after which a stream counts as running
START_SECONDS = 60.0


class ScenarioFailed(RuntimeError):
    """The server did not do what the scenario needs; the message says what."""


class Stream:
    """A long answer in the background.  Its records' arrivals are readable while it runs."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.answer: Generation | None = None


class JoinCost(Struct, frozen=True):
    """Long prompts joining a running stream.  Seconds, counted from their being sent.

    `usual_gap` is the running stream's median before; `prefill` ends with the last prompt's
    first text, `alone` is the same without a running stream.
    """

    worst_gap_seconds: float
    usual_gap_seconds: float
    prefill_seconds: float
    prefill_alone_seconds: float
    prompt_tokens: int


@contextlib.asynccontextmanager
async def running_stream(
    endpoint: Endpoint, shape: RequestShape, prompt: str, max_tokens: int
) -> AsyncGenerator[Stream]:
    """Keep a stream running inside; its client goes away at the end.

    Raises ScenarioFailed if it does not start, or ends by itself before the end.
    """
    stream, flowing, client = Stream(), asyncio.Event(), Client(endpoint, 600)

    def on_text() -> None:
        stream.arrivals.append(time.perf_counter())
        if len(stream.arrivals) == FLOWING:
            flowing.set()

    async def run() -> None:
        payload = shape.payload(prompt, 1) | {"max_tokens": max_tokens}
        stream.answer = await generate(client, shape.path, payload, on_text)
        flowing.set()

    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(START_SECONDS):
            await flowing.wait()
        if stream.answer is not None:
            raise ScenarioFailed(f"the running stream ended early: {_end(stream.answer)}")
        yield stream
        if stream.answer is not None:
            raise ScenarioFailed(f"the running stream ended early: {_end(stream.answer)}")
    except TimeoutError:
        raise ScenarioFailed(f"no stream was running after {START_SECONDS:g} s") from None
    finally:
        client.close()
        await task
        await asyncio.sleep(0)


async def ttft_beside_stream(
    endpoint: Endpoint,
    running: RequestShape,
    running_prompts: Prompts,
    short: Sequence[tuple[RequestShape, Prompts, int]],
    *,
    stream_tokens: int,
) -> list[Percentiles]:
    """Send short requests one after another beside a running stream; milliseconds.

    `short` are kinds of requests and how many of each, one summary a kind.  Raises
    ScenarioFailed when one fails.
    """
    found: list[Percentiles] = []
    async with (
        running_stream(endpoint, running, running_prompts.next(), stream_tokens),
        Client(endpoint) as client,
    ):
        for shape, prompts, number in short:
            samples: list[float] = []
            for i in range(number):
                payload = shape.payload(prompts.next(), i) | {"max_tokens": 4}
                answer = await generate(client, shape.path, payload)
                samples.append(1000 * _checked(answer).ttft_seconds)
            summary = percentiles.of(samples)
            assert summary is not None, "each kind needs a request"
            found.append(summary)
    return found


async def join(
    endpoint: Endpoint,
    shape: RequestShape,
    short: Prompts,
    long: Prompts,
    *,
    num_joining: int,
    stream_tokens: int,
) -> JoinCost:
    """Let `num_joining` long prompts join a running stream at the same instant.

    Raises ScenarioFailed when one fails.
    """
    alone, _ = await _prefill(endpoint, shape, long, num_joining)
    async with running_stream(endpoint, shape, short.next(), stream_tokens) as stream:
        await asyncio.sleep(0.3)
        before = len(stream.arrivals)
        sent = time.perf_counter()
        beside, tokens = await _prefill(endpoint, shape, long, num_joining)
        await asyncio.sleep(0.1)
        arrivals = [*stream.arrivals, time.perf_counter()]  # a stall may last until now
    usual = [b - a for a, b in zip(arrivals[: before - 1], arrivals[1:before], strict=True)]
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:], strict=False) if b > sent]
    return JoinCost(max(gaps), percentiles.median(usual), beside, alone, tokens)


async def _prefill(
    endpoint: Endpoint, shape: RequestShape, prompts: Prompts, num_prompts: int
) -> tuple[float, int]:
    """Return when the last of several prompts had its first text, and their tokens."""
    payloads = [shape.payload(prompts.next(), i) | {"max_tokens": 2} for i in range(num_prompts)]

    async def one(payload: dict[str, Any]) -> Generation:
        async with Client(endpoint) as client:
            return await generate(client, shape.path, payload)

    started = time.perf_counter()
    answers = await asyncio.gather(*map(one, payloads))
    last = max(_checked(a).started + a.ttft_seconds for a in answers) - started
    return last, sum(answer.prompt_tokens for answer in answers)


def _checked(answer: Generation) -> Generation:
    if answer.error:
        raise ScenarioFailed(answer.error)
    return answer


def _end(answer: Generation) -> str:
    return answer.error or f"{answer.finish_reason} after {answer.completion_tokens} tokens"
