#!/usr/bin/env python3
"""Measures the engine in this process, without HTTP, beside mlx-lm's BatchGenerator in another.

    .venv/bin/python scripts/bench/engine.py --model tiny-llama --rows 1,8,32 --json out.json

Arms take turns; figures are medians over the rounds, or the best of them with --best;
`paired_ratio` is the median of the rounds' own ratios.
`host` is the CPU time of the thread that builds and submits steps, `hand` the same for the
shortest async loop over the model, `bare` the shortest loop over our own steps, without an engine.
"""

from __future__ import annotations

import os

ENVIRONMENT = dict(os.environ)  # as the user had it: what the peer gets

import argparse  # noqa: E402
import importlib  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import sys  # noqa: E402
from importlib.metadata import version  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import msgspec  # noqa: E402

from mlxbun.adapters.mlx_compute.blas import load_fast_blas  # noqa: E402
from mlxbun.adapters.mlx_compute.heap import keep_freed_memory  # noqa: E402

BLAS = load_fast_blas()  # before anything imports MLX
keep_freed_memory()  # as the server does

from mlxbun.adapters.bench import bare_steps, cpu, random_models  # noqa: E402
from mlxbun.adapters.bench.engine_steps import (  # noqa: E402
    SAMPLINGS,
    WARM_STEPS,
    EngineSteps,
    StepCost,
)
from mlxbun.adapters.bench.models import find_model  # noqa: E402
from mlxbun.adapters.bench.peer_process import Order, Peer  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.mlx_compute.compute import MlxCompute  # noqa: E402
from mlxbun.domain.sampling import TokenId  # noqa: E402
from mlxbun.domain.scheduling import Limits  # noqa: E402

if TYPE_CHECKING:
    from mlxbun.adapters.mlx_compute.opening import OpenedCompute

PEER = Path(__file__).with_name("peer.py")
FOLDER_PROMPT, RANDOM_PROMPT = 16, 128  # tokens, unless asked otherwise


def open_compute(model: str) -> OpenedCompute:
    """Open a folder or a random model as the server does.  Called on the engine's thread."""
    from mlxbun.adapters.mlx_compute import opening
    from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils

    if random_models.is_random(model):
        opening.settle_device()  # before the first weight is made
        mlx_lm_utils()  # mlx-lm as the server imports it
        shape = random_models.shape_of(model)
        made = random_models.make(shape)
        return opening.open_loaded(made, l1=False, vocab_size=shape.vocab_size, xtc_exempt=())
    folder = Path(model)
    config = json.loads((folder / "config.json").read_text())
    vocab_size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    return opening.open_mlx_compute(
        folder, dtype="auto", l1=False, vocab_size=vocab_size, xtc_exempt=()
    )


def leave() -> None:
    from mlxbun.adapters.mlx_compute.opening import leave_thread

    leave_thread()


def device() -> str:
    """Return the GPU's name, or how many cores there are."""
    mx: Any = importlib.import_module("mlx.core")
    if mx.default_device() == mx.Device(mx.cpu):
        return f"cpu, {cpu.num_cores()} cores"
    return str(mx.device_info(mx.default_device())["device_name"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--model",
        default="tiny-llama",
        help=f"folder, demo, tiny-NAME, or one of random weights: "
        f"{', '.join(random_models.PREFIX + name for name in random_models.SHAPES)} "
        "(default: %(default)s)",
    )
    parser.add_argument("--rows", default="1,8,32", help="batch sizes (default: %(default)s)")
    parser.add_argument(
        "--steps", type=int, default=100, help="decode steps a run (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each arm (default: %(default)s)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        help=f"(default: {FOLDER_PROMPT}; of random models {RANDOM_PROMPT})",
    )
    parser.add_argument(
        "--sampling",
        choices=tuple(SAMPLINGS),
        default="greedy",
        help="nucleus: temperature 0.7, top_p 0.9; mixed: rows differ (default: %(default)s)",
    )
    parser.add_argument("--best", action="store_true", help="the best round, not the median")
    parser.add_argument(
        "--json", metavar="FILE", help="write the results there after each size; - is stdout"
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    is_random = random_models.is_random(args.model)
    if is_random:
        random_models.shape_of(args.model)  # an unknown one is refused before anything starts
    model = args.model if is_random else str(find_model(args.model))
    sizes = [int(size) for size in args.rows.split(",")]
    make_params = SAMPLINGS[args.sampling]
    length = args.prompt_tokens or (RANDOM_PROMPT if is_random else FOLDER_PROMPT)
    prompt = [TokenId(5 + i % 200) for i in range(length)]
    opened: list[OpenedCompute] = []
    bare: dict[int, StepCost] = {}

    def opening() -> MlxCompute:
        opened.append(open_compute(model))
        for size in sizes:
            for steps in (WARM_STEPS, args.steps):
                compute = opened[0].compute
                bare[size] = bare_steps.measure(compute, make_params(size), prompt, steps)
        return opened[0].compute

    found: dict[str, Any] = {
        "model": args.model if is_random else Path(model).name,
        "sampling": args.sampling,
        "prompt_tokens": length,
        "steps": args.steps,
        "rounds": args.rounds,
        "machine": cpu.machine(),
        "os": platform.system(),
        "architecture": platform.machine(),
        "blas": BLAS.kind,
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "results": [],
    }
    with (
        Peer([sys.executable, str(PEER), model], ENVIRONMENT) as peer,
        EngineSteps(opening, Limits(max_rows=max(sizes)), leave) as engine,
    ):
        for size in sizes:
            ours: list[StepCost] = []
            theirs: list[StepCost] = []
            hand: list[StepCost] = []
            for steps in [WARM_STEPS] + [args.steps] * args.rounds:
                batch = Order("batch_generator", size, args.sampling, tuple(prompt), steps)
                ours.append(engine.measure(make_params(size), prompt, steps))
                theirs.append(peer.measure(batch))
                hand.append(peer.measure(msgspec.structs.replace(batch, loop="hand")))
            for costs in (ours, theirs, hand):
                del costs[0]  # what a first run pays once is not measured
            figures = summary(size, ours, theirs, hand, best=args.best)
            alone = {"bare_tps": bare[size].tokens_per_second, "path": opened[0].compute.path}
            found["results"].append(figures | alone)
            found |= {
                "device": device(),
                "effective": {note.name: note.value for note in opened[0].notes},
                "variables": {k: v for k, v in os.environ.items() if k.startswith("MLX_")},
                "load_average": cpu.load_average(),
            }
            print(line(found["results"][-1]), file=sys.stderr)
            if args.json and args.json != "-":
                write(Path(args.json), found)
    if args.json == "-":
        print(json.dumps(found))
    return 0


def write(path: Path, found: dict[str, Any]) -> None:
    """Write all of it or nothing: a run that is cut keeps the sizes that it had."""
    aside = path.with_name(path.name + ".part")
    aside.write_text(json.dumps(found, indent=2) + "\n")
    aside.replace(path)


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
        "paired_ratio": median(
            [
                one.tokens_per_second / other.tokens_per_second
                for one, other in zip(ours, theirs, strict=True)
            ]
        ),
        "ours_host_ms": host(ours),
        "theirs_host_ms": host(theirs),
        "hand_host_ms": host(hand),
        "host_ratio": host(ours) / host(hand),
        "theirs_host_ratio": host(theirs) / host(hand),
    }


def line(result: dict[str, float | int | str]) -> str:
    form = (
        "{rows:>3} rows: {ours_tps:8.1f} tok/s, mlx-lm {theirs_tps:8.1f} ({ratio:.2f}x), "
        "hand loop {hand_tps:8.1f}, bare steps {bare_tps:8.1f}; "
        "host ms a step {ours_host_ms:.2f}, mlx-lm {theirs_host_ms:.2f}, "
        "hand {hand_host_ms:.2f} ({host_ratio:.2f}x; path {path})"
    )
    return form.format_map(result)


if __name__ == "__main__":
    sys.exit(main())
