#!/usr/bin/env python3
"""Measures every row of the acceptance table beside mlx_lm.server, in one run.

    .venv/bin/python scripts/bench/table.py                      all of it, under 12 minutes
    .venv/bin/python scripts/bench/table.py --only ttft,join --quick --no-write

Writes docs/benchmarks/DATE-MACHINE.json and .svg, and the table between the markers of
docs/benchmarks.md.  Run from the root of a checkout, on a machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from mlxbun.adapters.bench import cpu, promise_rows, speed_rows
from mlxbun.adapters.bench.latency import ScenarioFailed
from mlxbun.adapters.bench.models import ModelNotFound
from mlxbun.adapters.bench.prompts import CannotProbe
from mlxbun.adapters.bench.rows import Row, failed, markdown
from mlxbun.adapters.bench.servers import DidNotStart
from mlxbun.adapters.bench.speed_rows import Scenario, StepFigures
from mlxbun.adapters.bench.stop_checks import AnswerUnusable
from mlxbun.adapters.bench.workbench import Workbench

FAILURES = (AnswerUnusable, CannotProbe, DidNotStart, ModelNotFound, ScenarioFailed,
            cpu.NoSuchProcess, subprocess.CalledProcessError)  # fmt: skip
PAGE = Path("docs/benchmarks.md")
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def measure_steps(model: Path, sizes: Sequence[int]) -> list[StepFigures]:
    """Run the engine's bench in a process of its own, whose thread clocks nobody shares."""
    done = subprocess.run(
        [sys.executable, "scripts/bench/engine.py", "--model", str(model), "--sampling", "mixed",
         "--rows", ",".join(map(str, sizes)), "--best", "--rounds", "6",
         "--steps", "60", "--json", "-"],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    results = json.loads(done.stdout)["results"]
    return [msgspec.convert(result, StepFigures) for result in results]


SCENARIOS: dict[str, Scenario] = {
    "engine-step": speed_rows.engine_step(measure_steps),
    "throughput": speed_rows.throughput,
    "ttft": speed_rows.ttft_beside,
    "join": speed_rows.joining,
    "seeded": speed_rows.seeded,
    "sampled": speed_rows.sampled,
    "single": speed_rows.single,
    "burst": promise_rows.burst,
    "killers": promise_rows.killers,
    "stop-strings": promise_rows.stops,
    "start": promise_rows.start,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(SCENARIOS), help="(default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one round, and fewer of theirs")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--tiny", default="tiny-llama", help="(default: %(default)s)")
    parser.add_argument("--real", default="demo", help="folder, or demo (default: %(default)s)")
    parser.add_argument("--no-write", action="store_true", help="print the table, write nothing")
    args = parser.parse_args()
    chosen = args.only.split(",")
    if unknown := set(chosen) - set(SCENARIOS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")

    started, load_before = time.monotonic(), cpu.load_average()
    rows = asyncio.run(measure(args, chosen))
    seconds = time.monotonic() - started
    print(markdown(rows))
    found = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": cpu.machine(),
        "python": platform.python_version(),
        "commit": commit(),
        "seconds": round(seconds),
        "rounds": 1 if args.quick else args.rounds,
        "load_average": [load_before, cpu.load_average()],
        "rows": msgspec.to_builtins(rows),
    }
    if not args.no_write:
        write(found, rows)
    return 0 if all(row.reached for row in rows) else 1


async def measure(args: argparse.Namespace, chosen: Sequence[str]) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="mlxbun-table-") as scratch:
        rounds = 1 if args.quick else args.rounds
        bench = Workbench(args.tiny, args.real, Path(scratch), rounds, quick=args.quick)
        try:
            for name in chosen:
                begun = time.monotonic()
                try:
                    rows += await SCENARIOS[name](bench)
                except FAILURES as error:
                    rows.append(failed(name, name, error))
                took = time.monotonic() - begun
                print(f"{name}: {took:.0f} s, load {cpu.load_average():.1f}", file=sys.stderr)
        finally:
            bench.close()
    return rows


def write(found: dict[str, object], rows: Sequence[Row]) -> None:
    """Keep the numbers, and put the table into the page."""
    name = f"{found['date']}-{platform.machine()}-{platform.system().lower()}"
    folder = PAGE.parent / "benchmarks"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    caption = (
        f"{found['date']}, {found['machine']}, commit {found['commit']}, best of "
        f"{found['rounds']} rounds, load average {cpu.load_average():.1f} at the end; every "
        f"number: [benchmarks/{name}.json](benchmarks/{name}.json)."
    )
    PAGE.write_text(f"{before}{BEGIN}\n{caption}\n\n{markdown(rows)}\n{END}{after}")


def commit() -> str:
    """Return the checkout's commit, marked if files differ from it; "unknown" without git."""
    asked = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
