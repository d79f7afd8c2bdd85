#!/usr/bin/env python3
"""Measures the engine in this process, without HTTP, beside mlx-lm's BatchGenerator.

    .venv/bin/python scripts/bench/engine.py --model tiny-llama --rows 1,8,32 --json out.json

Arms take turns; figures are medians over the rounds, or the best of them with --best.
`host` is the CPU time of the thread that builds and submits steps, `hand` the same for the
shortest async loop over the model.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

from mlxbun.adapters.bench import cpu  # noqa: E402
from mlxbun.adapters.bench.baselines import Baselines  # noqa: E402
from mlxbun.adapters.bench.engine_steps import (  # noqa: E402
    WARM_STEPS,
    EngineSteps,
    StepCost,
    greedy_params,
    mixed_params,
    nucleus_params,
)
from mlxbun.adapters.bench.models import find_model  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.mlx_compute.compute import MlxCompute  # noqa: E402
from mlxbun.domain.sampling import TokenId  # noqa: E402
from mlxbun.domain.scheduling import Limits  # noqa: E402

SAMPLINGS = {"greedy": greedy_params, "nucleus": nucleus_params, "mixed": mixed_params}


def open_compute(folder: Path) -> MlxCompute:
    """Open the model as the server does.  Called on the engine's thread."""
    from mlxbun.adapters.mlx_compute.opening import open_mlx_compute

    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    opened = open_mlx_compute(folder, dtype="auto", l1=False, vocab_size=vocab_size, xtc_exempt=())
    return opened.compute


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--model", default="tiny-llama", help="folder, or tiny-NAME (default: %(default)s)"
    )
    parser.add_argument("--rows", default="1,8,32", help="batch sizes (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=100, help="decode steps a run (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each arm (default: %(default)s)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument(
        "--sampling",
        choices=tuple(SAMPLINGS),
        default="greedy",
        help="nucleus: temperature 0.7, top_p 0.9; mixed: rows differ (default: %(default)s)",
    )
    parser.add_argument("--best", action="store_true", help="the best round, not the median")
    parser.add_argument("--json", metavar="FILE", help="write the results there; - is stdout")
    args = parser.parse_args()

    folder = find_model(args.model)
    sizes = [int(size) for size in args.rows.split(",")]
    make_params = SAMPLINGS[args.sampling]
    prompt = [TokenId(5 + i % 200) for i in range(args.prompt_tokens)]
    opened: list[MlxCompute] = []

    def leave() -> None:
        from mlxbun.adapters.mlx_compute.opening import leave_thread

        leave_thread()

    def opening() -> MlxCompute:
        opened.append(open_compute(folder))
        return opened[0]

    results = []
    baselines = Baselines(folder)
    with EngineSteps(opening, Limits(max_rows=max(sizes)), leave) as engine:
        for size in sizes:
            ours: list[StepCost] = []
            theirs: list[StepCost] = []
            hand: list[StepCost] = []
            for steps in [WARM_STEPS] + [args.steps] * args.rounds:
                ours.append(engine.measure(make_params(size), prompt, steps))
                theirs.append(baselines.batch_generator(make_params(size), prompt, steps))
                hand.append(baselines.hand_loop(size, prompt, steps))
            for costs in (ours, theirs, hand):
                del costs[0]  # what a first run pays once is not measured
            figures = summary(size, ours, theirs, hand, best=args.best)
            results.append(figures | {"path": opened[0].path})
            print(line(results[-1]), file=sys.stderr)
    found = {
        "model": folder.name,
        "sampling": args.sampling,
        "machine": cpu.machine(),
        "blas": BLAS.kind,
        "load_average": cpu.load_average(),
        "results": results,
    }
    if args.json == "-":
        print(json.dumps(found))
    elif args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


def summary(
    size: int,
    ours: list[StepCost],
    theirs: list[StepCost],
    hand: list[StepCost],
    *,
    best: bool,
) -> dict[str, float | int | str]:
    def tokens(costs: list[StepCost]) -> float:
        return (max if best else median)([cost.tokens_per_second for cost in costs])

    def host(costs: list[StepCost]) -> float:
        return (min if best else median)([cost.host_ms_per_step for cost in costs])

    return {
        "rows": size,
        "ours_tps": tokens(ours),
        "theirs_tps": tokens(theirs),
        "hand_tps": tokens(hand),
        "ratio": tokens(ours) / tokens(theirs),
        "ours_host_ms": host(ours),
        "theirs_host_ms": host(theirs),
        "hand_host_ms": host(hand),
        "host_ratio": host(ours) / host(hand),
        "theirs_host_ratio": host(theirs) / host(hand),
    }


def line(result: dict[str, float | int | str]) -> str:
    form = (
        "{rows:>3} rows: {ours_tps:8.1f} tok/s, mlx-lm {theirs_tps:8.1f} ({ratio:.2f}x), "
        "hand loop {hand_tps:8.1f}; host ms a step {ours_host_ms:.2f}, mlx-lm "
        "{theirs_host_ms:.2f}, hand {hand_host_ms:.2f} ({host_ratio:.2f}x; path {path})"
    )
    return form.format_map(result)


if __name__ == "__main__":
    sys.exit(main())
