"""Rows of the acceptance table about promises: nobody is lost, nothing kills, stops are obeyed."""

from __future__ import annotations

from mlxbun.adapters.bench import robustness, stop_checks
from mlxbun.adapters.bench.rows import Row, best_of, each, sides
from mlxbun.adapters.bench.servers import StartTimes
from mlxbun.adapters.bench.workbench import SIDES, Side, Workbench


async def burst(bench: Workbench) -> list[Row]:
    lost, notes = sides(), list[str]()
    for side in SIDES:
        server = await bench.server(side, "tiny")
        found = await robustness.burst(server.endpoint, 64)
        lost[side].append(found.num_lost)
        notes.append(f"{side} {found.num_answered} answered, {found.num_refused} refused")
    return [
        best_of("burst", "64 connections at the same instant: lost", "none", lost, "", max,
             lost["ours"] == [0.0], "; ".join(notes))
    ]  # fmt: skip


async def killers(bench: Workbench) -> list[Row]:
    deaths, notes, failures = sides(), list[str](), list[str]()
    for side in SIDES[:1] if bench.quick else SIDES:
        dead: list[str] = []
        for name in robustness.KILLERS:
            server = await bench.server(side, "tiny")
            found = await robustness.kill(server.endpoint, name)
            if not found.survived:
                dead.append(name)
                bench.forget(server)
            if side == "ours" and not all(200 <= status < 500 for status in found.statuses):
                failures.append(f"{name} was answered with {found.statuses}")
        deaths[side].append(len(dead))
        notes += [f"{side}: {', '.join(dead)}"] if dead else []
    reached = deaths["ours"] == [0] and not failures
    return [
        best_of("killers", "requests of seven that end the server", "none", deaths, "", max,
                reached, "; ".join(notes + failures))
    ]  # fmt: skip


async def stops(bench: Workbench) -> list[Row]:
    right, notes = sides(), list[str]()
    for side in SIDES[:1] if bench.quick else SIDES:
        server = await bench.server(side, "tiny")
        plain = await stop_checks.check_stop_strings(server.endpoint, chat=False, number=60)
        chat = await stop_checks.check_stop_strings(server.endpoint, chat=True, number=68)
        right[side].append(plain.num_right + chat.num_right)
        if side == "ours":
            notes += [*plain.wrong, *chat.wrong]
    return [
        best_of("stop-strings", "128 stop strings: right", "128", right, "", max,
             right["ours"] == [128], details=notes)
    ]  # fmt: skip


async def start(bench: Workbench) -> list[Row]:
    times: dict[Side, list[StartTimes]] = {"ours": [], "theirs": []}
    for _ in range(bench.rounds):
        for side in SIDES:
            server = bench.fresh(side, "tiny")
            try:
                times[side].append(await server.ready())
            finally:
                server.stop()
    listening = each(lambda side: [t.listening for t in times[side]])
    healthy = each(lambda side: [t.healthy for t in times[side]])
    answered = min(t.answered for t in times["ours"])
    return [
        best_of("start", "process start to listening", "at most 0.3 s", listening, "s", min,
             min(listening["ours"]) <= 0.3),
        best_of("start", "process start to ready (/health 200), tiny llama", "at most 1.5 s",
             healthy, "s", min, min(healthy["ours"]) <= 1.5,
             f"first answer after {answered:.2f} s; theirs "
             f"{min(t.answered for t in times['theirs']):.2f}"),
    ]  # fmt: skip
