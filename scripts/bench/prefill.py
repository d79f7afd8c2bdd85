#!/usr/bin/env python3
"""Measures prompts that are read together beside the same prompts read one by one.

    .venv/bin/python scripts/bench/prefill.py --model tiny-llama --rows 8,32 --json out.json

`forwards` is the prefill alone, as the engine orders it, in plans of 2,048 tokens at most;
`burst` is the time through the engine from simultaneous requests to everyone's first token.
Arms take turns; figures are medians over the rounds, `ratio` the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

from mlxbun.adapters.bench import cpu, random_models  # noqa: E402
from mlxbun.adapters.bench.models import find_model  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.journal import RingJournal  # noqa: E402
from mlxbun.adapters.mlx_compute.compute import MlxCompute  # noqa: E402
from mlxbun.application.engine import Engine  # noqa: E402
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec  # noqa: E402
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId  # noqa: E402
from mlxbun.domain.scheduling import Limits  # noqa: E402
from mlxbun.domain.steps import StepPlan  # noqa: E402

GREEDY = SamplingParams(temperature=0.0)
PLAN_TOKENS = 2048
LONGEST = 2048  # the shared arm's bound, so that the figures say where the rule's should be
ANSWER_TOKENS = 16
Prompts = Sequence[tuple[TokenId, ...]]


def open_compute(model: str) -> MlxCompute:
    """Open a folder or a random model as the server does.  Called on the engine's thread."""
    from mlxbun.adapters.mlx_compute import opening
    from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils

    if random_models.is_random(model):
        mlx_lm_utils()  # mlx-lm as the server imports it
        shape = random_models.shape_of(model)
        made = random_models.make(shape)
        vocab_size = shape.vocab_size
        return opening.open_loaded(made, l1=False, vocab_size=vocab_size, xtc_exempt=()).compute
    folder = find_model(model)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    return opening.open_mlx_compute(
        folder, dtype="auto", l1=False, vocab_size=vocab_size, xtc_exempt=()
    ).compute


def prompts(num_rows: int, length: str, seed: int) -> Prompts:
    """Return random prompts of `length` tokens and the last one; "16-64" is any in between."""
    draw = random.Random(seed)
    least, _, most = length.partition("-")
    lengths = [draw.randint(int(least), int(most or least)) for _ in range(num_rows)]
    return [tuple(TokenId(draw.randrange(5, 400)) for _ in range(n + 1)) for n in lengths]


def plans(rows: Prompts) -> list[list[int]]:
    """Return which rows each plan reads, as many as fit into it."""
    found: list[list[int]] = [[]]
    room = PLAN_TOKENS
    for number, row in enumerate(rows):
        if len(row) - 1 > room:
            found.append([])
            room = PLAN_TOKENS
        found[-1].append(number)
        room -= len(row) - 1
    return found


def read(compute: MlxCompute, rows: Prompts) -> float:
    """Return the seconds that the prefill of all rows takes."""
    ids = [RequestId(f"row-{number}") for number in range(len(rows))]
    for row_id, row in zip(ids, rows, strict=True):
        compute.open_row(row_id, row, GREEDY)
    started = time.perf_counter()
    for step, numbers in enumerate(plans(rows)):
        chunks = tuple((ids[number], len(rows[number]) - 1) for number in numbers)
        failures = [*compute.dispatch(StepPlan(step, prefill=chunks)), *compute.wait_prefill()]
        assert not failures, failures
        compute.collect()
    seconds = time.perf_counter() - started
    for row_id in ids:
        compute.close_row(row_id)
    return seconds


class Burst:
    """Simultaneous requests: when each got its first token, and whether all are over."""

    def __init__(self, num_rows: int) -> None:
        self.over = threading.Event()
        self.first_token = 0.0  # of the last row to get one
        self._waiting, self._live = num_rows, num_rows

    def hear(self, item: Item, *, first: bool) -> None:
        if isinstance(item, Drawn) and first:
            self._waiting -= 1
            if not self._waiting:
                self.first_token = time.perf_counter()
        if isinstance(item, Ended):
            assert item.refusal is None, item.refusal
            self._live -= 1
            if not self._live:
                self.over.set()


class Box:
    """A row's mailbox.  Items are put on the engine's thread, as there is no event loop."""

    def __init__(self, burst: Burst) -> None:
        self._burst = burst
        self._heard = False

    def put(self, item: Item) -> None:
        self._burst.hear(item, first=not self._heard)
        self._heard = self._heard or isinstance(item, Drawn)


def burst_seconds(engine: Engine, name: str, rows: Prompts) -> float:
    """Return the seconds from the first request to everyone's first token."""
    burst = Burst(len(rows))
    started = time.perf_counter()
    for number, row in enumerate(rows):
        spec = RequestSpec(RequestId(f"{name}-{number}"), row, ANSWER_TOKENS, frozenset(), GREEDY)
        engine.submit(spec, Box(burst))
    if not burst.over.wait(300):
        raise TimeoutError(f"burst {name} is not over after 300 s")
    return burst.first_token - started


def summary(alone: Sequence[float], together: Sequence[float]) -> dict[str, float]:
    return {
        "alone_ms": 1000 * median(alone),
        "together_ms": 1000 * median(together),
        "ratio": median([one / both for one, both in zip(alone, together, strict=True)]),
    }


def tell(outbox: Outbox) -> None:
    for mailbox, item in outbox.items:
        mailbox.put(item)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="tiny-llama", help="(default: %(default)s)")
    parser.add_argument("--rows", default="8,32", help="(default: %(default)s)")
    parser.add_argument(
        "--lengths", default="16,64,256,16-64", help="prompt tokens (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--burst", default="64", help="prompt tokens of bursts, or none (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="add the results to that file")
    args = parser.parse_args()
    sizes = [int(size) for size in args.rows.split(",")]
    results: list[dict[str, object]] = []
    opened: list[MlxCompute] = []
    rules: list[int] = []

    def say(kind: str, size: int, length: str, seconds: dict[int, list[float]]) -> None:
        found = summary(seconds[0], seconds[1])
        results.append({"kind": kind, "rows": size, "prompt_tokens": length, **found})
        form = "{:<8} {:>3} x {:<7} alone {alone_ms:9.1f} ms, together {together_ms:9.1f}: "
        print((form + "{ratio:.2f}x").format(kind, size, length, **found), flush=True)

    def opening() -> MlxCompute:
        """Open the model and measure its forwards, on the engine's thread."""
        compute = open_compute(args.model)
        opened.append(compute)
        rules.append(compute.prompts.longest_shared)
        for size in sizes:
            for length in args.lengths.split(","):
                seconds: dict[int, list[float]] = {0: [], 1: []}
                for round_number in range(args.rounds + 1):  # the first warms
                    rows = prompts(size, length, round_number)
                    for arm in (0, 1) if round_number % 2 else (1, 0):
                        compute.prompts.longest_shared = LONGEST * arm
                        seconds[arm].append(read(compute, rows))
                say("forwards", size, length, {arm: s[1:] for arm, s in seconds.items()})
        return compute

    def leave() -> None:
        from mlxbun.adapters.mlx_compute.opening import leave_thread

        leave_thread()

    failures: list[Exception] = []
    ready = threading.Event()

    def failed(error: Exception) -> None:
        failures.append(error)
        ready.set()

    engine = Engine(opening, Limits(max_rows=max(sizes)), RingJournal(10), leave_thread=leave)
    engine.start(tell, ready.set, failed)
    try:
        ready.wait()
        if failures:
            raise failures[0]
        for size in sizes if args.burst != "none" else ():
            seconds: dict[int, list[float]] = {0: [], 1: []}
            for round_number in range(3 * args.rounds + 1):
                rows = prompts(size, args.burst, round_number)
                for arm in (0, 1) if round_number % 2 else (1, 0):
                    opened[0].prompts.longest_shared = rules[0] * arm
                    name = f"{size}-{round_number}-{arm}"
                    seconds[arm].append(burst_seconds(engine, name, rows))
            say("burst", size, args.burst, {arm: s[1:] for arm, s in seconds.items()})
    finally:
        engine.stop()
    if args.json:
        path = Path(args.json)
        kept = json.loads(path.read_text()) if path.is_file() else {"runs": []}
        run = {
            "model": Path(args.model).name,
            "path": opened[0].path,
            "mlx": version("mlx"),
            "blas": BLAS.kind,
            "device": "cpu" if not opened[0].runs_apart else "gpu",
            "rounds": args.rounds,
            "load_average": cpu.load_average(),
            "longest_shared": rules[0],
            "results": results,
        }
        kept["runs"].append(run)
        path.write_text(json.dumps(kept, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
