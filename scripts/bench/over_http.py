#!/usr/bin/env python3
"""Measures what HTTP costs: streaming clients against the engine alone, on one random model.

    .venv/bin/python scripts/bench/over_http.py --model random:qwen3-tiny --json out.json

The model is written to a folder, `mlxbun serve` opens it, and scripts/bench/engine.py's loop
opens it in a process of its own; arms take turns, and figures are medians of the rounds.
`ratio` is tokens a second of all clients together over the engine's with as many rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench import cpu, random_models
from mlxbun.adapters.bench.client import Client
from mlxbun.adapters.bench.generation import Generation, generate
from mlxbun.adapters.bench.percentiles import median
from mlxbun.adapters.bench.prompts import Prompts
from mlxbun.adapters.bench.servers import ServerProcess, start_ours

PROMPT_WORDS = 24
PROMPT_TOKENS = 140  # about what those words are, a character each
START_SECONDS = 400.0


class Failed(RuntimeError):
    """An answer is not what was asked for; the message says how."""


def write(model: str, folder: str) -> None:
    from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils

    mlx_lm_utils()  # mlx-lm as the server imports it
    from mlxbun.adapters.bench.random_folder import write_folder

    write_folder(random_models.shape_of(model), Path(folder))


def engine_alone(folder: str, sizes: list[int], tokens: int, orders: Any, answers: Any) -> None:
    """Measure on order, in a process of its own: `orders` brings a number of rows, None ends.

    Rows are as long as the clients' at either end.
    """
    from mlxbun.adapters.mlx_compute.blas import load_fast_blas
    from mlxbun.adapters.mlx_compute.heap import keep_freed_memory

    load_fast_blas()  # before anything imports MLX, as the server does
    keep_freed_memory()
    from mlxbun.adapters.bench.engine_steps import EngineSteps, greedy_params
    from mlxbun.adapters.mlx_compute import opening
    from mlxbun.domain.sampling import TokenId
    from mlxbun.domain.scheduling import Limits

    vocab_size = json.loads((Path(folder) / "config.json").read_text())["vocab_size"]

    def compute() -> Any:
        return opening.open_mlx_compute(
            Path(folder), dtype="auto", l1=False, vocab_size=vocab_size, xtc_exempt=()
        ).compute

    prompt = [TokenId(5 + i % 200) for i in range(PROMPT_TOKENS)]
    with EngineSteps(compute, Limits(max_rows=max(sizes)), opening.leave_thread) as engine:
        answers.put(0.0)
        while (rows := orders.get()) is not None:
            answers.put(engine.measure(greedy_params(rows), prompt, tokens).tokens_per_second)


async def load(server: ServerProcess, clients: int, tokens: int, seed: int) -> tuple[float, float]:
    """Return the tokens a second of all clients, and the p99 gap between records in ms."""
    prompts = Prompts(PROMPT_WORDS, seed)
    asked = [
        {"prompt": prompts.next(), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        for _ in range(clients)
    ]

    async def one(payload: dict[str, Any]) -> Generation:
        async with Client(server.endpoint) as client:
            return await generate(client, "/v1/completions", payload)

    answers = await asyncio.gather(*map(one, asked))
    for answer in answers:
        if answer.error or answer.completion_tokens != tokens:
            raise Failed(answer.error or f"{answer.completion_tokens} tokens, not {tokens}")
    # All rows run from the last first text to the first end.
    begun = max(answer.arrivals[0] for answer in answers)
    over = min(answer.arrivals[-1] for answer in answers)
    shown = sum(sum(begun < at <= over for at in answer.arrivals) for answer in answers)
    per_record = sum(a.completion_tokens for a in answers) / sum(len(a.arrivals) for a in answers)
    gaps = sorted(gap for answer in answers for gap in answer.gaps_seconds)
    return shown * per_record / (over - begun), 1000 * gaps[int(0.99 * len(gaps))]


def keep(path: str | None, found: dict[str, Any]) -> None:
    """Write what there is: a run that is cut keeps the sizes that it had."""
    if path:
        Path(path).write_text(json.dumps(found, indent=2) + "\n")


async def measure(args: argparse.Namespace, folder: str, found: dict[str, Any]) -> None:
    sizes = [int(size) for size in args.clients.split(",")]
    spawn = multiprocessing.get_context("spawn")
    orders, answers = spawn.Queue(), spawn.Queue()
    alone = spawn.Process(
        target=engine_alone, args=(folder, sizes, args.tokens, orders, answers), daemon=True
    )
    server = start_ours(folder, ["--batch", str(max(sizes)), "--prompt-cache", "0"])
    try:
        await server.ready(START_SECONDS)
        alone.start()
        answers.get(timeout=START_SECONDS)
        for size in sizes:
            http, engine, gaps = list[float](), list[float](), list[float]()
            for number in range(args.rounds + 1):
                speed, gap = await load(server, size, args.tokens, 100 * size + number)
                orders.put(size)
                engine_speed = answers.get(timeout=START_SECONDS)
                if number:  # the first of each is warming
                    http.append(speed)
                    gaps.append(gap)
                    engine.append(engine_speed)
            result = {
                "clients": size,
                "http_tps": median(http),
                "engine_tps": median(engine),
                "ratio": median([a / b for a, b in zip(http, engine, strict=True)]),
                "gap_p99_ms": median(gaps),
                "load_average": cpu.load_average(),
            }
            found["results"].append(result)
            print(json.dumps(result), file=sys.stderr)
            keep(args.json, found)
        orders.put(None)
    finally:
        server.stop()
        if alone.is_alive():
            alone.join(30)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="random:qwen3-tiny", help="a random model (default: %(default)s)")
    add("--clients", default="8,32", help="streams at once (default: %(default)s)")
    add("--tokens", type=int, default=256, help="an answer's tokens (default: %(default)s)")
    add("--rounds", type=int, default=2, help="runs of each arm (default: %(default)s)")
    add("--json", metavar="FILE", help="write the results there after each size")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    random_models.shape_of(args.model)  # an unknown one is refused before anything starts
    found: dict[str, Any] = {
        "model": args.model,
        "tokens": args.tokens,
        "machine": cpu.machine(),
        "date": time.strftime("%Y-%m-%d"),
        "mlx": version("mlx"),
        "results": [],
    }
    with tempfile.TemporaryDirectory() as home:
        folder = str(Path(home) / args.model.rpartition(":")[2])
        writing = multiprocessing.get_context("spawn").Process(
            target=write, args=(args.model, folder)
        )
        writing.start()
        writing.join()
        if writing.exitcode:
            return 1
        asyncio.run(measure(args, folder, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
