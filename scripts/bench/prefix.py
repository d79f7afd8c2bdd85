#!/usr/bin/env python3
"""Measures what the prefix cache is worth: a chat's turns, a restart, and what it costs unused.

    .venv/bin/python scripts/bench/prefix.py --model demo --tokens 4000 --json out.json

Starts `mlxbun serve` with an SSD folder, and `mlx_lm.server` beside it on the same model with the
same BLAS.  Times are to the first text, in milliseconds, greedy; nothing else runs at the same
time.  `cold` is the last turn's prompt on a server that keeps nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench import cpu
from mlxbun.adapters.bench.client import Client
from mlxbun.adapters.bench.generation import Generation, generate
from mlxbun.adapters.bench.models import find_model
from mlxbun.adapters.bench.percentiles import median
from mlxbun.adapters.bench.prompts import Prompts
from mlxbun.adapters.bench.servers import ServerProcess, start_mlx_lm, start_ours
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, Namespace, chain
from mlxbun.domain.sampling import RequestId, TokenId

TURNS = 5
ANSWER = 16  # tokens


class Failed(RuntimeError):
    """A server did not answer; the message has what it said."""


async def answered(client: Client, messages: Sequence[dict[str, str]]) -> Generation:
    """Stream one greedy answer.  Raises Failed."""
    payload = {"messages": list(messages), "max_tokens": ANSWER, "temperature": 0}
    answer = await generate(client, "/v1/chat/completions", payload)
    if answer.error:
        raise Failed(answer.error)
    return answer


async def chat(
    server: ServerProcess, words: int
) -> tuple[list[float], list[int], list[dict[str, str]]]:
    """Hold a chat; return the turns' times to first text, their tokens, and the last prompt."""
    prompts, messages = Prompts(words, seed=7), list[dict[str, str]]()
    times, tokens = list[float](), list[int]()
    async with Client(server.endpoint) as client:
        for turn in range(TURNS):
            messages.append({"role": "user", "content": prompts.next()})
            answer = await answered(client, messages)
            times.append(1000 * answer.ttft_seconds)
            tokens.append(answer.prompt_tokens)
            if turn < TURNS - 1:
                messages.append({"role": "assistant", "content": answer.text})
    return times, tokens, messages


async def once(server: ServerProcess, messages: Sequence[dict[str, str]]) -> tuple[float, str]:
    async with Client(server.endpoint) as client:
        answer = await answered(client, messages)
    return 1000 * answer.ttft_seconds, answer.text


async def unrelated(server: ServerProcess, words: int, count: int, seed: int) -> list[float]:
    """Return the times to first text of prompts that share nothing."""
    prompts = Prompts(words, seed)
    async with Client(server.endpoint) as client:
        return [
            1000
            * (await answered(client, [{"role": "user", "content": prompts.next()}])).ttft_seconds
            for _ in range(count)
        ]


async def get(server: ServerProcess, method: str, path: str) -> Any:
    async with Client(server.endpoint) as client:
        return json.loads((await client.send(method, path)).body)


def lookup_ms(num_blocks: int) -> float:
    """Return what one lookup of a 100-block prompt takes among `num_blocks` kept blocks."""
    space = Namespace("00" * 32)
    state = residency.Residency(residency.Budget(1 << 40))
    for number in range(num_blocks // 100):
        keys = chain(space, [TokenId(number)] * (100 * BLOCK))
        blocks = tuple(
            BlockInfo(key, keys[i - 1] if i else None, "block", i * BLOCK, BLOCK, 1)
            for i, key in enumerate(keys)
        )
        for event in residency.decide(state, residency.Publish(RequestId("p"), blocks)):
            residency.evolve(state, event)
    prompt = [TokenId(3)] * (100 * BLOCK + 1)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        keys = chain(space, prompt)
        find = residency.Find(RequestId("r"), tuple(keys), (), len(prompt) - 1, tuple(keys))
        events = residency.decide(state, find)
        times.append(1000 * (time.perf_counter() - started))
        assert isinstance(events[-1], residency.PrefixLent)
    return median(times)


async def measure(folder: str, tokens: int) -> dict[str, Any]:
    words = max(8, int(0.72 * tokens / TURNS))
    with tempfile.TemporaryDirectory() as scratch:
        ssd = ["--ssd-cache", str(Path(scratch) / "ssd")]
        ours = start_ours(folder, ssd)
        theirs = start_mlx_lm(folder)
        try:
            await ours.ready()
            await theirs.ready()
            our_times, our_tokens, messages = await chat(ours, words)
            their_times, their_tokens, _ = await chat(theirs, words)
            flushed = await get(ours, "POST", "/admin/cache/flush")
        finally:
            ours.stop()
            theirs.stop()
        ours = start_ours(folder, ssd)
        try:
            await ours.ready()
            restarted, restarted_text = await once(ours, messages)
            from_ram, _ = await once(ours, messages)
            cache = (await get(ours, "GET", "/stats"))["prompt_cache"]
            with_cache = await unrelated(ours, words, 6, seed=1)
        finally:
            ours.stop()
        bare = start_ours(folder, ["--prompt-cache", "0"])
        try:
            await bare.ready()
            cold, cold_text = await once(bare, messages)
            without_cache = await unrelated(bare, words, 6, seed=2)
        finally:
            bare.stop()
    return {
        "turns_ms": our_times,
        "turns_tokens": our_tokens,
        "mlx_lm_turns_ms": their_times,
        "mlx_lm_turns_tokens": their_tokens,
        "cold_ms": cold,
        "restarted_ms": restarted,
        "ram_ms": from_ram,
        "cold_over_restarted": cold / restarted,
        "cold_over_ram": cold / from_ram,
        "same_answer": restarted_text == cold_text,
        "restored_blocks": cache["restored"],
        "bytes_written": flushed["bytes_written"],
        "no_reuse_ms": median(with_cache),
        "no_reuse_without_cache_ms": median(without_cache),
        "no_reuse_ratio": median(with_cache) / median(without_cache),
        "lookup_ms_of_10000_blocks": lookup_ms(10_000),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="as for engine.py (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=4000, help="of the last turn, about (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    args = parser.parse_args()
    folder = find_model(args.model)
    found = {"model": folder.name, "machine": cpu.machine(), "load_average": cpu.load_average()}
    found |= asyncio.run(measure(str(folder), args.tokens))
    print(json.dumps(found, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
