"""Rounds of chaos on one server, and what must be so after each.

- Every request ends, with a proper answer or an error that says what is wrong.
- What must be the same is: greedy answers are those of a server that computes each alone.
- Afterwards nothing is held: no row, no descriptor, no thread, no memory that was not held before.
- A server that is told to stop answers or refuses everybody, and leaves with 0.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from chaos.cases import Case, Mix
from chaos.watched import Held, Watched, watched
from chaos.wire import Answer, Improper, Said, ask, judged

MAX_CLIENTS = 24  # at once
GROWTH = 64 << 20  # bytes that a process may grow by in the second half of many rounds
MANY = 8  # rounds, before which it still learns shapes, grammars and how to spread its heap
SPARE_DESCRIPTORS = 8  # connections that the system has not closed yet, files of the disk tier
SPARE_THREADS = 10  # of pools that keep what they started


LITTLE = ("--prompt-cache", "0.002", "--ssd-cache-max", "0.004")
WAYS: tuple[tuple[str, ...], ...] = (  # to run a server
    LITTLE,
    (*LITTLE, "--generation-checkpoint", "4"),
    ("--prompt-cache", "0.001", "--ssd-layout", "whole", "--ssd-demote-idle", "1"),
    (*LITTLE, "--batch", "3", "--max-waiting", "6", "--cache-retention", "cost-size"),
    ("--prompt-cache", "1", "--generation-checkpoint", "8", "--batch", "16"),
)


class Outcome(Struct):
    """What was found: how many of each kind of end, and what should not have been."""

    counts: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])

    def note(self, case: Case, fault: object) -> None:
        asked = (case.body or b"")[:100].decode(errors="replace")
        self.faults.append(f"{case.path} {asked}... {fault}")


class Reference:
    """What each certain question is answered by a server that has no cache, and asked alone."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._known: dict[tuple[str, bytes], Said] = {}

    async def answers(self, case: Case) -> Said:
        lonely = case.lonely
        assert lonely.body is not None
        key = lonely.path, lonely.body
        if key not in self._known:
            said = judged(lonely, await ask(self._server.port, lonely))
            assert said is not None, "it was answered before"
            self._known[key] = said
        return self._known[key]


async def round_of(server: Watched, cases: Sequence[Case], outcome: Outcome) -> list[Answer | None]:
    """Ask all, a number of them at once; return the answers in order."""
    limit = asyncio.Semaphore(MAX_CLIENTS)

    async def one(case: Case) -> Answer | None:
        async with limit:
            try:
                return await ask(server.port, case)
            except Improper as improper:
                outcome.note(case, improper)
                return None

    return await asyncio.gather(*map(one, cases))


async def judge(
    cases: Sequence[Case],
    answers: Sequence[Answer | None],
    reference: Reference,
    outcome: Outcome,
    *,
    stopping: bool = False,
) -> None:
    """Hold each answer against what it must be; a server that is `stopping` may refuse."""
    for case, answer in zip(cases, answers, strict=True):
        if answer is None:
            outcome.counts["broken off"] += 1
        elif answer.left:
            outcome.counts["left"] += 1
        elif stopping and (
            answer.refused or answer.status in (503, 529) or b"draining" in answer.body
        ):
            outcome.counts["refused"] += 1
        elif answer.refused:
            outcome.note(case, "nobody listens")
        else:
            try:
                said = judged(case, answer)
            except (Improper, LookupError, ValueError, TypeError) as error:
                outcome.note(case, f"{type(error).__name__}: {error}")
                continue
            outcome.counts[f"{case.protocol} {answer.status}"] += 1
            if said is not None and case.is_certain:
                expected = await reference.answers(case)
                if said != expected:
                    outcome.note(case, f"says {said}, alone {expected}")


def look(server: Watched, before: Held | None, outcome: Outcome) -> Held:
    """Look at a server at rest: does it hold what it should, and no more?"""
    stats = server.wait_idle()
    ended = stats["finished"] + stats["cancelled"] + stats["failed"]
    faults = outcome.faults
    if stats["submitted"] != ended:
        faults.append(f"{stats['submitted']} rows were submitted, {ended} ended")
    if stats["failed"]:
        faults.append(f"{stats['failed']} rows failed")
    memory, cache = stats["memory"], stats["prompt_cache"]
    parts = ("weights", "live_kv", "prefix_cache", "writing", "draft", "other")
    if sum(memory[f"{part}_bytes"] for part in parts) != memory["active_bytes"]:
        faults.append(f"the ledger does not sum: {memory}")
    if memory["prefix_cache_bytes"] != cache["bytes"]:
        faults.append(f"the ledger has another prefix cache: {memory} {cache}")
    held = server.held()
    if before is not None:
        if held.descriptors > before.descriptors + SPARE_DESCRIPTORS:
            faults.append(f"descriptors: {before.descriptors}, then {held.descriptors}")
        if held.threads > before.threads + SPARE_THREADS:
            faults.append(f"threads: {before.threads}, then {held.threads}")
    return held


class Plan(Struct, frozen=True):
    """How a server is treated: so many lives of so many rounds of so many requests.

    Requests of a round begin within `spread_seconds`.  All lives but the last end in the middle of
    a round.  `words` are options of `mlxbun serve`.
    """

    seed: int
    num_lives: int = 2
    num_rounds: int = 3
    num_cases: int = 60
    spread_seconds: float = 1.5
    words: tuple[str, ...] = LITTLE


def run(
    model: Path, embedder: Path | None, plan: Plan, say: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Run chaos on a server of `model`; return what was found.  `say` hears how it goes."""
    outcome = Outcome()
    mix = Mix(plan.seed, embeds=embedder is not None)
    beside = ["--embedding-model", str(embedder)] if embedder is not None else []
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        alone = [str(model), *beside, "--prompt-cache", "0", "--batch", "1"]
        chaotic = [str(model), *beside, "--ssd-cache", str(here / "ssd"), *plan.words]
        with watched(alone, here / "alone.log") as server:
            reference = Reference(server)
            for life in range(plan.num_lives):
                with watched(chaotic, here / f"{life}.log") as server:
                    _live(server, mix, reference, outcome, plan, say)
                    _end(server, mix, reference, outcome, plan, is_last=life == plan.num_lives - 1)
    return outcome


def _live(
    server: Watched,
    mix: Mix,
    reference: Reference,
    outcome: Outcome,
    plan: Plan,
    say: Callable[[str], None],
) -> None:
    seen: list[Held] = []
    for number in range(plan.num_rounds):
        cases = mix.cases(plan.num_cases, spread_seconds=plan.spread_seconds)
        answers = asyncio.run(round_of(server, cases, outcome))
        asyncio.run(judge(cases, answers, reference, outcome))
        seen.append(look(server, seen[0] if seen else None, outcome))
        say(f"round {number + 1}: {seen[-1]}, {len(outcome.faults)} faults so far")
    half = seen[len(seen) // 2]
    if len(seen) >= MANY and seen[-1].resident > half.resident + GROWTH:
        outcome.faults.append(f"it grew from {half.resident} to {seen[-1].resident} bytes")


def _end(
    server: Watched,
    mix: Mix,
    reference: Reference,
    outcome: Outcome,
    plan: Plan,
    *,
    is_last: bool,
) -> None:
    """Tell a server to stop, in the middle of a round unless it is the last."""
    if is_last:
        server.terminate()
    else:
        cases = mix.cases(plan.num_cases, spread_seconds=plan.spread_seconds)
        answers = asyncio.run(_cut_short(server, cases, outcome, plan.spread_seconds / 2))
        asyncio.run(judge(cases, answers, reference, outcome, stopping=True))
    status = server.gone()
    if status:
        outcome.faults.append(f"the server left with {status}")
    outcome.faults += [f"the log, to its end: {line}" for line in server.complaints]


async def _cut_short(
    server: Watched, cases: Sequence[Case], outcome: Outcome, seconds: float
) -> list[Answer | None]:
    asked = asyncio.create_task(round_of(server, cases, outcome))
    await asyncio.sleep(seconds)
    server.terminate()
    return await asked
