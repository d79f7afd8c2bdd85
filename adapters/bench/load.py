"""Load on a running server: clients that each send one streamed request after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mlxbun.adapters.bench import cpu, percentiles
from mlxbun.adapters.bench.client import Client, Endpoint
from mlxbun.adapters.bench.generation import Generation, generate
from mlxbun.adapters.bench.percentiles import Percentiles
from mlxbun.adapters.bench.prompts import Prompts

MAX_ERRORS_SHOWN = 3


class RequestShape(Struct, frozen=True):
    """What every request of a load asks; None is "not said".  `model` "" lets the server choose.

    `end_ids` are pushed down by logit_bias, so that a model does not end early.
    """

    model: str = ""
    chat: bool = True
    prompt_tokens: int = 64
    max_tokens: int = 128
    temperature: float | None = None
    top_p: float | None = None
    seeded: bool = False
    ignore_eos: bool = False
    end_ids: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def payload(self, prompt: str, seed: int) -> dict[str, Any]:
        """Return the body of one request."""
        asked: dict[str, Any] = {"max_tokens": self.max_tokens}
        if self.chat:
            asked["messages"] = [{"role": "user", "content": prompt}]
        else:
            asked["prompt"] = prompt
        if self.model:
            asked["model"] = self.model
        if self.temperature is not None:
            asked["temperature"] = self.temperature
        if self.top_p is not None:
            asked["top_p"] = self.top_p
        if self.seeded:
            asked["seed"] = seed
        if self.ignore_eos:
            asked["ignore_eos"] = True
            if self.end_ids:
                asked["logit_bias"] = {str(token): -100.0 for token in self.end_ids}
        return asked


class LoadRun(Struct, frozen=True):
    """One load as it happened.  CPU is None where the server's process is not known."""

    num_clients: int
    answers: list[Generation]
    seconds: float
    server_cpu_seconds: float | None
    client_cpu_seconds: float
    load_average: float

    @property
    def completion_tokens(self) -> int:
        return sum(answer.completion_tokens for answer in self.answers)


class LoadResult(Struct, frozen=True):
    """Several runs of one load in numbers.  Latencies are of all answers without error."""

    num_clients: int
    num_requests: int
    num_errors: int
    errors: tuple[str, ...]  # the first few
    prompt_tokens: int
    completion_tokens: int
    tokens_per_second: float  # median of the runs
    ttft_ms: Percentiles | None
    gap_ms: Percentiles | None
    server_cpu_ms_per_token: float | None
    client_cpu_ms_per_token: float | None
    load_average: float  # of the machine, one minute, at the end


async def run_load(
    endpoint: Endpoint,
    shape: RequestShape,
    prompts: Prompts,
    *,
    num_clients: int,
    num_requests: int,
    pid: int | None = None,
    timeout_seconds: float = 300,
) -> LoadRun:
    """Run `num_clients` clients at once, each sending `num_requests` requests.

    Raises NoSuchProcess when `pid` is not, or no longer, there.
    """
    payloads = [
        [shape.payload(prompts.next(), 1000 * i + j) for j in range(num_requests)]
        for i in range(num_clients)
    ]

    async def work(todo: list[dict[str, Any]]) -> list[Generation]:
        async with Client(endpoint, timeout_seconds) as client:
            return [await generate(client, shape.path, payload) for payload in todo]

    server_before = cpu.cpu_seconds(pid) if pid is not None else 0.0
    own_before, started = time.process_time(), time.perf_counter()
    answers = await asyncio.gather(*map(work, payloads))
    seconds, own = time.perf_counter() - started, time.process_time() - own_before
    server = cpu.cpu_seconds(pid) - server_before if pid is not None else None
    flat = [answer for some in answers for answer in some]
    return LoadRun(num_clients, flat, seconds, server, own, cpu.load_average())


def summarise(runs: Sequence[LoadRun]) -> LoadResult:
    """Fold runs of one load, at least one, into its result."""
    answers = [answer for run in runs for answer in run.answers]
    good = [answer for answer in answers if not answer.error]
    errors = [answer.error for answer in answers if answer.error]
    tokens = sum(run.completion_tokens for run in runs)
    server = [s for run in runs if (s := run.server_cpu_seconds) is not None]

    def per_token(cpu_seconds: list[float]) -> float | None:
        return (
            1000 * sum(cpu_seconds) / tokens if tokens and len(cpu_seconds) == len(runs) else None
        )

    return LoadResult(
        runs[0].num_clients,
        len(answers),
        len(errors),
        tuple(errors[:MAX_ERRORS_SHOWN]),
        sum(answer.prompt_tokens for answer in answers),
        tokens,
        percentiles.median([run.completion_tokens / run.seconds for run in runs]),
        percentiles.of([a.ttft_seconds for a in good], 1000),
        percentiles.of([gap for a in good for gap in a.gaps_seconds], 1000),
        per_token(server),
        per_token([run.client_cpu_seconds for run in runs]),
        runs[-1].load_average,
    )
