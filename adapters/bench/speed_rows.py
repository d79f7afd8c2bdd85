"""Rows of the acceptance table about speed: the engine's step, throughput, waiting times."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from mlxbun.adapters.bench import latency
from mlxbun.adapters.bench.load import LoadRun, RequestShape
from mlxbun.adapters.bench.rows import Row, Samples, best_of, each, sides
from mlxbun.adapters.bench.workbench import SIDES, Side, Size, Workbench


class StepFigures(Struct, frozen=True):
    """What scripts/bench/engine.py says of one batch size; see there."""

    rows: int
    ours_host_ms: float
    theirs_host_ms: float
    hand_host_ms: float

    @property
    def ours_ratio(self) -> float:
        return self.ours_host_ms / self.hand_host_ms

    @property
    def theirs_ratio(self) -> float:
        return self.theirs_host_ms / self.hand_host_ms


MeasureSteps = Callable[[Path, Sequence[int]], Sequence[StepFigures]]
Scenario = Callable[[Workbench], Awaitable[list[Row]]]


def engine_step(measure: MeasureSteps) -> Scenario:
    """Return the scenario of host CPU a step; `measure` runs it in a process of its own."""

    async def scenario(bench: Workbench) -> list[Row]:
        return [
            Row(
                "engine-step",
                f"host CPU of a step over the plain async loop, {found.rows} rows, all sampled "
                "differently",
                "at most 1.2x",
                found.ours_ratio,
                found.theirs_ratio,
                "x",
                found.ours_ratio <= 1.2,
                note=f"{found.ours_host_ms:.2f} ms; loop {found.hand_host_ms:.2f}; "
                f"BatchGenerator {found.theirs_host_ms:.2f}",
            )
            for found in measure(bench.folder("tiny"), (8, 32))
        ]

    return scenario


async def throughput(bench: Workbench) -> list[Row]:
    rows: list[Row] = []
    shape = bench.shape("tiny", 48, 128)
    for num_clients, batch in ((8, 8), (32, 32)):
        runs = await _turns(bench, "tiny", shape, num_clients, 2, batch)
        speed = _read(runs, _speed)
        cost = _read(runs, _cpu_ms)
        ratio = max(speed["ours"]) / max(speed["theirs"])
        cheapest = min(cost["ours"])
        name = f"tiny llama, {num_clients} clients"
        rows += [
            best_of("throughput", f"tokens a second, {name}", "at least 1.8x theirs", speed,
                 "tok/s", max, ratio >= 1.8, f"{ratio:.2f}x"),
            best_of("throughput", f"server CPU a token, {name}", "at most 0.25 ms", cost,
                 "ms", min, cheapest <= 0.25),
        ]  # fmt: skip
    return rows


async def ttft_beside(bench: Workbench) -> list[Row]:
    rows: list[Row] = []
    cases: tuple[tuple[Size, float, int, int], ...] = (
        ("tiny", 25.0, 20, 30_000),
        ("real", 200.0, 6, 700),
    )
    for size, limit_ms, num_requests, stream_tokens in cases:
        running = bench.shape(size, 40, 64)
        short = msgspec.structs.replace(running, chat=False, prompt_tokens=8)
        samples, chats = sides(), sides()
        for round_number in range(bench.rounds):
            for side in SIDES:
                server = await bench.server(side, size)
                found = await latency.ttft_beside_stream(
                    server.endpoint,
                    running,
                    await bench.prompts(server, size, running),
                    [
                        (short, await bench.prompts(server, size, short), num_requests),
                        # What a chat's template adds is prompt too: said beside, once.
                        (running, await bench.prompts(server, size, running), 3),
                    ][: 2 if round_number == 0 else 1],
                    stream_tokens=stream_tokens,
                )
                samples[side].append(found[0].p50)
                chats[side] += [of_chat.p50 for of_chat in found[1:]]
        with_chat = [chats[side][0] for side in SIDES]
        note = "with a chat of 40 tokens {:.0f} ms; theirs {:.0f}".format(*with_chat)
        rows.append(
            best_of("ttft", f"first text of an 8-token prompt beside a stream, {_name(size)}",
                    f"at most {limit_ms:g} ms", samples, "ms", min,
                    min(samples["ours"]) <= limit_ms, note)
        )  # fmt: skip
    return rows


async def joining(bench: Workbench) -> list[Row]:
    short, long = bench.shape("tiny", 40, 64), bench.shape("tiny", 1500, 2)
    gaps, prefills = sides(), sides()
    for _ in range(bench.rounds):
        for side in SIDES:
            server = await bench.server(side, "tiny", 32)
            found = await latency.join(
                server.endpoint,
                short,
                await bench.prompts(server, "tiny", short),
                await bench.prompts(server, "tiny", long),
                num_joining=8,
                stream_tokens=30_000,
            )
            gaps[side].append(1000 * found.worst_gap_seconds)
            prefills[side].append(1000 * found.prefill_seconds)
    ratio = min(prefills["ours"]) / min(prefills["theirs"])
    return [
        best_of("join", "worst gap of a running stream while eight 1,500-token prompts join",
             "at most 100 ms", gaps, "ms", min, min(gaps["ours"]) <= 100),
        best_of("join", "until the last of them has its first text", "at most 1.2x theirs",
             prefills, "ms", min, ratio <= 1.2, f"{ratio:.2f}x"),
    ]  # fmt: skip


async def seeded(bench: Workbench) -> list[Row]:
    free = RequestShape(prompt_tokens=48, max_tokens=96, temperature=0.8)
    fixed = RequestShape(prompt_tokens=48, max_tokens=96, temperature=0.8, seeded=True)
    return [
        await _share(bench, "seeded", "tiny", "eight seeded clients against eight unseeded",
                     free, fixed)
    ]  # fmt: skip


async def sampled(bench: Workbench) -> list[Row]:
    greedy = bench.shape("real", 48, 64)
    drawn = RequestShape(
        prompt_tokens=48,
        max_tokens=64,
        temperature=0.7,
        top_p=0.9,
        ignore_eos=True,
        end_ids=greedy.end_ids,
    )
    speeds = {"greedy": sides(), "drawn": sides()}
    for _ in range(bench.rounds):
        for name, shape in (("greedy", greedy), ("drawn", drawn)):
            for side in SIDES:
                run = await bench.load(side, "real", shape, 8, 1)
                speeds[name][side].append(_speed(run))
    share = each(lambda side: [max(speeds["drawn"][side]) / max(speeds["greedy"][side]) * 100])
    ratio = max(speeds["drawn"]["ours"]) / max(speeds["drawn"]["theirs"])
    return [
        best_of("sampled", "SmolLM2, 8 clients: temperature 0.7, top_p 0.9 against greedy",
             "at least 90 %", share, "%", max, share["ours"][0] >= 90),
        best_of("sampled", "the same in tokens a second", "at least 1.3x theirs", speeds["drawn"],
             "tok/s", max, ratio >= 1.3, f"{ratio:.2f}x"),
    ]  # fmt: skip


async def single(bench: Workbench) -> list[Row]:
    runs = await _turns(bench, "real", bench.shape("real", 48, 64), 1, 1, 8)
    speed = _read(runs, _speed)
    ratio = max(speed["ours"]) / max(speed["theirs"])
    return [
        best_of("single", "SmolLM2, 1 client, greedy", "not below theirs (3 % is noise)", speed,
             "tok/s", max, ratio >= 0.97, f"{ratio:.2f}x")
    ]  # fmt: skip


async def _turns(
    bench: Workbench,
    size: Size,
    shape: RequestShape,
    num_clients: int,
    num_requests: int,
    batch: int,
) -> dict[Side, list[LoadRun]]:
    runs: dict[Side, list[LoadRun]] = {"ours": [], "theirs": []}
    for _ in range(bench.rounds):
        for side in SIDES:
            runs[side].append(await bench.load(side, size, shape, num_clients, num_requests, batch))
    return runs


def _read(runs: dict[Side, list[LoadRun]], read: Callable[[LoadRun], float]) -> Samples:
    return each(lambda side: [read(run) for run in runs[side]])


async def _share(
    bench: Workbench,
    scenario: str,
    size: Size,
    quantity: str,
    free: RequestShape,
    fixed: RequestShape,
) -> Row:
    """Compare the speed of `fixed` with that of `free` on each side, in %."""
    speeds = {"free": sides(), "fixed": sides()}
    for _ in range(bench.rounds):
        for name, shape in (("free", free), ("fixed", fixed)):
            for side in SIDES:
                speeds[name][side].append(_speed(await bench.load(side, size, shape, 8, 1)))
    share = each(lambda side: [100 * max(speeds["fixed"][side]) / max(speeds["free"][side])])
    note = f"{max(speeds['fixed']['ours']):.0f} tok/s; theirs {max(speeds['fixed']['theirs']):.0f}"
    return best_of(
        scenario, quantity, "at least 90 %", share, "%", max, share["ours"][0] >= 90, note
    )


def _speed(run: LoadRun) -> float:
    """Return tokens a second.  Raises ScenarioFailed when a request failed."""
    for answer in run.answers:
        if answer.error:
            raise latency.ScenarioFailed(answer.error)
    return run.completion_tokens / run.seconds


def _cpu_ms(run: LoadRun) -> float:
    assert run.server_cpu_seconds is not None, "servers on the workbench have a known process"
    return 1000 * run.server_cpu_seconds / run.completion_tokens


def _name(size: Size) -> str:
    return "tiny llama" if size == "tiny" else "SmolLM2"
