"""Sessions, idle state and short memory, from the engine down to the model's copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from doubles.compute import OTHER_BYTES, WEIGHTS_BYTES, WHOLE_BYTES, ScriptedCompute
from doubles.journal import ListJournal
from mlxbun.application.engine import Engine
from mlxbun.application.memory_watch import EVERY_SECONDS, MemoryWatch
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Outbox, RequestSpec
from mlxbun.application.stats import StatsProjection
from mlxbun.application.upkeep import Released, session_id
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Cuts
from mlxbun.domain.memory import MemoryMeasured
from mlxbun.domain.residency import Budget, Event
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.scheduling import Limits, RequestFinished
from tier_driver import GREEDY, SPACE, Client

SECONDS = 20
SIZE = 4 * BLOCK


class Disk:
    """A disk that has written what it was given at once, and says so when it is asked to."""

    def __init__(self) -> None:
        self.given: list[BlockInfo] = []
        self.held: list[BlockInfo] = []

    def write(self, blocks: Sequence[BlockInfo]) -> None:
        self.given += blocks

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None: ...

    def cancel(self, keys: Sequence[BlockKey]) -> None: ...

    def learned(self, prefill_tokens_per_second: float) -> None: ...

    def holding(self) -> Sequence[BlockInfo]:
        return self.held


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Bench:
    """An engine on the scripted model."""

    def __init__(
        self,
        budget: Budget,
        now: Callable[[], float],
        disk: Disk | None = None,
        compute: ScriptedCompute | None = None,
    ) -> None:
        self.compute = compute or ScriptedCompute()
        self.prefixes = Prefixes(SPACE, budget, disk, now)
        self.journal = ListJournal()
        self._told = threading.Condition()
        self._count = 0
        limits = Limits(max_rows=4, max_chunk_tokens=512, adaptive_chunks=False)
        self.engine = Engine(
            lambda: self.compute,
            limits,
            self.journal,
            now,
            open_prefixes=lambda: self.prefixes,
        )
        ready = threading.Event()
        self.engine.start(self._tell, ready.set, lambda _: None)
        assert ready.wait(SECONDS)

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)
        with self._told:
            self._told.notify_all()

    def ask(self, letter: str, length: int = 2 * BLOCK + 8, session: str | None = None) -> Client:
        self._count += 1
        client = Client(RequestId(f"r{self._count}"), (), 2)
        prompt = tuple([TokenId(ord(letter))] * length)
        spec = RequestSpec(client.request_id, prompt, 2, frozenset(), GREEDY, session=session)
        self.engine.submit(spec, client)
        assert client.over.wait(SECONDS)
        return client

    def do(self, work: Callable[[Prefixes, ScriptedCompute], list[Event]]) -> list[Event]:
        """Do something on the engine's thread; return the events that it brought."""
        done, events = threading.Event(), list[Event]()

        def reported(*_: object) -> list[Event]:
            events.extend(work(self.prefixes, self.compute))
            done.set()
            return events

        self.engine.report(reported)
        assert done.wait(SECONDS)
        return events

    def close_session(self, name: str) -> Released:
        done, answers = threading.Event(), list[Released]()

        def answer(released: Released) -> None:
            answers.append(released)
            done.set()

        self.engine.close_session(name, answer)
        assert done.wait(SECONDS)
        return answers[0]

    def await_event(self, kind: type) -> object:
        """Wait until an event of a kind was told; return the first."""

        def found() -> object:
            batches = self.journal.read()
            return next((e for b in batches for e in b.events if isinstance(e, kind)), None)

        with self._told:
            assert self._told.wait_for(found, SECONDS)
        return found()


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def bench(*said: object, **named: object) -> Bench:
        made.append(Bench(*said, **named))  # type: ignore[arg-type]
        return made[-1]

    yield bench
    for one in made:
        one.engine.stop()
        state = one.prefixes.blocks.state
        assert set(one.compute.kept) == {key for key, b in state.blocks.items() if b.in_ram}


Make = Callable[..., Bench]


def test_a_session_outlives_what_others_ask_until_it_is_closed(make: Make) -> None:
    bench = make(Budget(4 * SIZE), Clock())
    bench.ask("x", session="mine")
    for letter in "abcd":
        bench.ask(letter)
    assert bench.ask("x", session="mine").reused == 2 * BLOCK
    assert bench.close_session("mine") == Released(2, 2 * SIZE)
    for letter in "efgh":
        bench.ask(letter)
    assert bench.ask("x").reused == 0


def test_another_session_begins_with_the_same_tokens(make: Make) -> None:
    bench = make(Budget(8 * SIZE), Clock())
    bench.ask("x", session="mine")
    assert bench.ask("x", session="yours").reused == 2 * BLOCK
    assert bench.close_session("mine") == Released(0, 0), "the other session holds it"
    assert bench.close_session("yours") == Released(2, 2 * SIZE)
    assert bench.close_session("nobody's") == Released(0, 0)


def test_a_sessions_next_turn_takes_the_place_of_its_last(make: Make) -> None:
    bench = make(Budget(8 * SIZE), Clock())
    bench.ask("x", session="mine")
    bench.ask("x", 5 * BLOCK + 8, session="mine")
    (session,) = bench.prefixes.blocks.state.sessions.values()
    assert len(session.keys) == 5 and set(bench.prefixes.blocks.state.held.values()) == {1}


def test_a_session_is_over_an_hour_after_its_last_request(make: Make) -> None:
    clock = Clock()
    bench = make(Budget(4 * SIZE), clock)
    bench.ask("x", session="mine")
    clock.seconds += 3599
    bench.ask("y")
    assert bench.prefixes.blocks.state.sessions
    clock.seconds += 1
    bench.ask("z")
    assert not bench.prefixes.blocks.state.sessions


def test_what_a_client_calls_its_session_is_not_kept(make: Make) -> None:
    bench = make(Budget(8 * SIZE), Clock())
    bench.ask("x", session="somebody's name")
    assert list(bench.prefixes.blocks.state.sessions) == [session_id("somebody's name")]
    assert "somebody" not in repr(bench.prefixes.blocks.state)
    assert "somebody" not in repr(list(bench.journal.read()))


def test_an_idle_engine_wakes_and_lets_go_of_what_the_disk_has(make: Make) -> None:
    """The only clock here is the real one: what is idle for 50 ms leaves, a second later."""
    disk = Disk()
    idle = Budget(100 * SIZE, True, idle_seconds=0.05)
    bench = make(idle, time.monotonic, disk)
    bench.ask("x")
    written = [block.key for block in disk.given]
    assert len(written) == 2
    bench.do(lambda prefixes, compute: prefixes.blocks.written(compute, written))
    event = bench.await_event(residency.BlocksEvicted)
    assert isinstance(event, residency.BlocksEvicted)
    assert (set(event.keys), event.num_lost, event.cause) == (set(written), 0, "idle")
    assert not bench.compute.kept and bench.prefixes.upkeep.idle_seconds() is None


def test_state_that_was_used_after_a_rest_is_not_idle(make: Make) -> None:
    clock, disk = Clock(), Disk()
    bench = make(Budget(100 * SIZE, True, idle_seconds=300.0), clock, disk)
    bench.ask("x")
    written = [block.key for block in disk.given]
    bench.do(lambda prefixes, compute: prefixes.blocks.written(compute, written))
    clock.seconds += 299
    assert bench.ask("x").reused == 2 * BLOCK
    clock.seconds += 299
    assert not bench.do(lambda prefixes, compute: prefixes.upkeep.relieve(compute, 0))
    bench.do(lambda prefixes, compute: prefixes.upkeep.pass_time(compute))
    assert set(bench.compute.kept) == set(written)
    clock.seconds += 2
    bench.do(lambda prefixes, compute: prefixes.upkeep.pass_time(compute))
    assert not bench.compute.kept


def test_memory_is_measured_when_the_engine_rests(make: Make) -> None:
    bench = make(Budget(100 * SIZE), Clock())
    bench.ask("x")
    bench.do(lambda *_: [])
    bench.ask("y")
    bench.engine.stop()
    measured = [
        event
        for batch in bench.journal.read()
        for event in batch.events
        if isinstance(event, MemoryMeasured)
    ]
    last = measured[-1]
    assert (last.weights_bytes, last.live_kv_bytes) == (WEIGHTS_BYTES, 0)
    assert (last.prefix_cache_bytes, last.other_bytes) == (4 * SIZE, OTHER_BYTES)
    assert len(measured) <= 5, "at the start, and each time as the cache grew and at rest"


@pytest.mark.parametrize("cuts", ["block", "boundary"])
def test_what_is_told_at_once_of_what_is_kept_agrees(make: Make, cuts: Cuts) -> None:
    clock, disk = Clock(), Disk()
    compute = ScriptedCompute(cuts=cuts)
    bench = make(Budget(4 * SIZE, True, idle_seconds=300.0), clock, disk, compute=compute)
    for letter in "abcab":  # more than fits
        bench.ask(letter)
    bench.do(lambda prefixes, compute: prefixes.upkeep.relieve(compute, SIZE))
    written = [block.key for block in disk.given]
    bench.do(lambda prefixes, compute: prefixes.blocks.written(compute, written))
    clock.seconds += 302
    bench.do(lambda prefixes, compute: prefixes.upkeep.pass_time(compute))
    bench.ask("e")
    bench.engine.stop()
    projection, seen = StatsProjection(), set[int]()
    for batch in bench.journal.read():
        projection.apply(batch, 0.0)
        told = projection.stats.prompt_cache.bytes
        assert projection.stats.memory["prefix_cache_bytes"] == told
        seen.add(told)
    assert len(seen) > 1


def test_the_ledger_of_a_rest_is_told_with_the_answer_before_it(make: Make) -> None:
    bench = make(Budget(100 * SIZE), Clock())
    bench.ask("x")
    bench.engine.stop()
    (last,) = (
        batch.events
        for batch in bench.journal.read()
        if any(isinstance(event, RequestFinished) for event in batch.events)
    )
    (ledger,) = (event for event in last if isinstance(event, MemoryMeasured))
    assert (ledger.live_kv_bytes, ledger.prefix_cache_bytes) == (0, 2 * SIZE)


def test_what_is_kept_is_given_back_while_memory_is_short(make: Make) -> None:
    bench = make(Budget(100 * SIZE), Clock())
    fits = OTHER_BYTES + WEIGHTS_BYTES + 5 * SIZE  # that may be in use: a row, and two blocks
    bench.compute.working_set_bytes = int(fits / 0.85) + 1
    for letter in "abcd":
        assert bench.ask(letter).reason == "length"
    event = bench.await_event(residency.PressureRelieved)
    assert isinstance(event, residency.PressureRelieved) and event.freed_bytes >= event.short_bytes
    bench.engine.stop()
    assert bench.compute.memory().active_bytes <= 0.85 * bench.compute.working_set_bytes
    assert len(bench.compute.kept) == 2


def test_memory_is_looked_at_once_a_second() -> None:
    clock, compute = Clock(), ScriptedCompute()
    watch = MemoryWatch(clock)
    assert len(watch.look(compute, None)) == 1
    looks, count = compute.memory, 0

    def counted() -> object:
        nonlocal count
        count += 1
        return looks()

    compute.memory = counted  # type: ignore[method-assign,assignment]
    for _ in range(100):
        assert not watch.look(compute, None)
    assert count == 0
    clock.seconds += EVERY_SECONDS
    assert not watch.look(compute, None), "nothing changed"
    assert count == 1


def test_memory_is_looked_at_when_the_cache_holds_less(make: Make) -> None:
    clock = Clock()
    bench = make(Budget(100 * SIZE), clock)
    bench.ask("x")
    bench.engine.stop()
    watch = MemoryWatch(clock)
    (before,) = watch.look(bench.compute, bench.prefixes)
    assert not watch.look(bench.compute, bench.prefixes)
    bench.prefixes.upkeep.relieve(bench.compute, 1)
    (after,) = watch.look(bench.compute, bench.prefixes)
    assert isinstance(before, MemoryMeasured) and isinstance(after, MemoryMeasured)
    assert (before.prefix_cache_bytes, after.prefix_cache_bytes) == (2 * SIZE, SIZE)


def test_what_left_ram_while_it_is_written_is_counted_where_it_is(make: Make) -> None:
    disk = Disk()
    bench = make(Budget(100 * SIZE, True), Clock(), disk)
    bench.ask("x")
    disk.held = list(disk.given)
    assert bench.prefixes.blocks.writing_bytes == 0, "it is in the cache's own count"
    bench.do(lambda prefixes, compute: prefixes.upkeep.relieve(compute, 1))
    assert bench.prefixes.blocks.writing_bytes == SIZE


def test_a_session_holds_the_blocks_of_its_state_too(make: Callable[..., Bench]) -> None:
    compute = ScriptedCompute(cuts="boundary", mixed=True)
    bench = make(Budget(4 * SIZE), Clock(), compute=compute)
    bench.ask("x", 700, session="mine")
    for letter in "abcd":
        bench.ask(letter)
    assert bench.ask("x", 720).reused == 699
    assert len(bench.prefixes.blocks.state.held) == 3, "two blocks, and what cannot be cut"
    released = bench.close_session("mine")
    assert (released.num_blocks, released.num_bytes) == (3, 2 * SIZE + 4 * 187 + WHOLE_BYTES)
    for letter in "abcd":
        bench.ask(letter)
    assert bench.ask("x", 720).reused == 0
