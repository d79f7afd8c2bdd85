"""Any timeline of arrivals, departures, faults and a moody disk: everybody is answered in the end.

The engine's turns are taken one by one, on one thread and by a clock of the test's own, so that a
timeline that fails is found again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.compute import ScriptedCompute
from doubles.journal import ListJournal
from mlxbun.application.deciders import Deciders
from mlxbun.application.kept_state import KeptState
from mlxbun.application.outgoing import Outgoing
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Outbox, RequestSpec
from mlxbun.application.stepping import Stepping, limits_within
from mlxbun.domain import scheduling
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Tensor
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import RowFailure, StepPlan, StepResult
from tier_driver import GREEDY, SPACE, Client

SIZE = 4 * BLOCK
LONG = 1000.0  # seconds: whoever waits for a disk has waited enough


class Moody(ScriptedCompute):
    """Breaks where it is told to, once."""

    def __init__(self, **said: Any) -> None:
        super().__init__(**said)
        self.breaks_at: str | None = None

    def _may_break(self, where: str) -> None:
        if self.breaks_at == where:
            self.breaks_at = None
            raise RuntimeError(f"{where} broke")

    def open_row(self, *said: Any, **more: Any) -> None:
        self._may_break("open_row")
        super().open_row(*said, **more)

    def keep(self, request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        self._may_break("keep")
        return super().keep(request_id, blocks)

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        self._may_break("dispatch")
        return super().dispatch(plan)

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        self._may_break("wait_prefill")
        return super().wait_prefill()

    def collect(self) -> StepResult:
        self._may_break("collect")
        return super().collect()


class Disk:
    """Remembers what it is asked, and does it when a test says, or never."""

    def __init__(self) -> None:
        self.written: dict[BlockKey, tuple[BlockInfo, Sequence[Tensor]]] = {}
        self.to_write: list[BlockInfo] = []
        self.to_read: list[BlockInfo] = []
        self.cancelled: list[BlockKey] = []

    def write(self, blocks: Sequence[BlockInfo]) -> None:
        self.to_write += blocks

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None:
        self.to_read += blocks

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        self.cancelled += [block.key for block in self.to_read if block.key in keys]
        self.to_read = [block for block in self.to_read if block.key not in keys]

    def learned(self, prefill_tokens_per_second: float) -> None: ...

    def holding(self) -> Sequence[BlockInfo]:
        return ()


class Timeline:
    """An engine without its thread."""

    def __init__(
        self, *, cuts: Any, mixed: bool, ram_blocks: int, max_rows: int, working_set: int
    ) -> None:
        self.seconds = 0.0
        self.compute = Moody(cuts=cuts, mixed=mixed)
        self.compute.working_set_bytes = working_set
        self.disk = Disk()
        budget = Budget(ram_blocks * SIZE, True, idle_seconds=30.0)
        self.prefixes = Prefixes(SPACE, budget, self.disk, lambda: self.seconds)
        outgoing = Outgoing(self._tell, ListJournal(), lambda: ())
        limits = Limits(max_rows, 64, 128, min_chunk_tokens=16)
        self.deciders = Deciders(limits_within(self.compute, limits), outgoing.note)
        kept = KeptState(self.compute, self.prefixes, None, outgoing.note)
        self.stepping = Stepping(self.compute, self.deciders, kept, outgoing, lambda: self.seconds)
        self.outgoing = outgoing
        self.clients: list[Client] = []
        self.gone: set[RequestId] = set()  # who hears nothing more, as it wished

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("submit", letter, length, max_tokens, session):
                ids = [ord(letter)] * length
                name = RequestId(f"r{len(self.clients)}")
                client = Client(name, tuple(ids), max_tokens)
                self.clients.append(client)
                prompt = tuple(map(TokenId, ids))
                boundaries = (BLOCK,) if length > BLOCK + 1 else ()
                self.stepping.submit(
                    RequestSpec(
                        name, prompt, max_tokens, frozenset(), GREEDY,
                        session=session, boundaries=boundaries,
                    ),
                    client,
                )  # fmt: skip
            case ("leave", number) if self.clients:
                client = self.clients[number % len(self.clients)]
                if client.reason is None:
                    self.gone.add(client.request_id)
                self.stepping.release(scheduling.Cancel(client.request_id))
            case ("break", where):
                self.compute.breaks_at = where
            case ("turn", count):
                for _ in range(count):
                    self.turn()
            case ("pass", seconds):
                self.seconds += seconds
            case ("disk", what):
                self.hear_disk(what)
            case _:
                pass

    def hear_disk(self, what: str) -> None:
        disk, compute, blocks = self.disk, self.compute, self.prefixes.blocks
        match what:
            case "writes":
                for block in disk.to_write:
                    if block.key in compute.kept:
                        disk.written[block.key] = block, compute.tensors(block.key)
                there = [block.key for block in disk.to_write if block.key in disk.written]
                late = [block.key for block in disk.to_write if block.key not in disk.written]
                disk.to_write = []
                blocks.written(compute, there)
                blocks.not_written(compute, late, "late")
            case "fails":
                keys, disk.to_write = [block.key for block in disk.to_write], []
                blocks.not_written(compute, keys, "full")
            case "gives" if disk.to_read:
                block = disk.to_read.pop(0)
                blocks.restored(compute, [(block, disk.written[block.key][1])])
            case "loses" if disk.to_read:
                keys, disk.to_read = [block.key for block in disk.to_read], []
                blocks.not_restored(compute, keys, "gone")
            case _:
                keys, disk.cancelled = disk.cancelled, []
                blocks.not_read(compute, keys)

    def turn(self) -> None:
        """Take a turn as the engine's thread does."""
        if self.stepping.idle:
            self.stepping.kept.pass_time()
            return
        try:
            self.stepping.read_first()
            self.stepping.turn()
        except AssertionError:
            raise  # the double's: the model was asked for what cannot be
        except Exception as error:
            self.stepping.fail_step(error)
        self.outgoing.flush()
        self.seconds += 0.01

    def rest(self) -> None:
        """Let it go on until nothing is left to do, however the disk behaves."""
        for _ in range(3000):
            if self.stepping.idle:
                if not self.deciders.scheduling.waiting:
                    return
                self.seconds += LONG
            self.turn()
        raise AssertionError(f"it never comes to rest: {self.deciders.scheduling}")


def test_who_is_held_for_want_of_memory_and_leaves_leaves_nothing_to_do() -> None:
    timeline = Timeline(cuts="block", mixed=False, ram_blocks=0, max_rows=3, working_set=10_000)
    long = 4 * BLOCK + 3
    script = [("submit", "x", long, 50, None), ("turn", 12), ("pass", 5.0), ("turn", 1)]
    for step in (*script, ("submit", "y", long, 5, None), ("turn", 3)):
        timeline.do(step)
    first, second = timeline.clients
    assert list(timeline.deciders.scheduling.waiting) == [second.request_id], "no room for it"
    timeline.do(("leave", 1))
    timeline.rest()
    assert first.reason == "length" and timeline.stepping.idle


LETTERS = st.sampled_from("xy")
LENGTHS = st.sampled_from([1, 40, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 60, 4 * BLOCK + 3])
STEPS = st.one_of(
    st.tuples(st.just("submit"), LETTERS, LENGTHS, st.integers(1, 5), st.sampled_from([None, "s"])),
    st.tuples(st.just("turn"), st.integers(1, 6)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(
        st.just("break"),
        st.sampled_from(["open_row", "keep", "dispatch", "wait_prefill", "collect"]),
    ),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 5.0, 40.0])),
    st.tuples(
        st.just("disk"), st.sampled_from(["writes", "fails", "gives", "gives", "loses", "says"])
    ),
)
LAYOUTS = st.sampled_from([("block", False), ("boundary", False), ("boundary", True)])


@given(
    st.lists(STEPS, max_size=40),
    LAYOUTS,
    st.sampled_from([0, 2, 5, 50]),
    st.integers(1, 3),
    st.sampled_from([0, 1, 10_000, 20_000]),
)
@settings(max_examples=150)
def test_everybody_is_answered_and_nothing_is_held(
    steps: list[tuple[Any, ...]],
    layout: tuple[Any, bool],
    ram_blocks: int,
    max_rows: int,
    working_set: int,
) -> None:
    cuts, mixed = layout
    timeline = Timeline(
        cuts=cuts,
        mixed=mixed,
        ram_blocks=ram_blocks,
        max_rows=max_rows,
        working_set=working_set,
    )
    for step in steps:
        timeline.do(step)
    timeline.rest()
    for client in timeline.clients:
        if client.request_id in timeline.gone:
            assert client.reason is None, "who left hears nothing"
            continue
        assert client.reason in ("length", "failed", "rejected"), client.items
        if client.reason == "length":
            assert len(client.tokens) == client.max_tokens
    state = timeline.prefixes.blocks.state
    assert not state.lent and not state.computing
    assert timeline.compute.num_rows == 0
    assert not timeline.deciders.sampling.sessions
    in_ram = {key: block.info for key, block in state.blocks.items() if block.in_ram}
    assert set(timeline.compute.kept) == set(in_ram)
    assert state.ram_bytes == sum(info.num_bytes for info in in_ram.values())
    restoring = [block.info for block in state.blocks.values() if block.restoring]
    assert state.restoring_bytes == sum(info.num_bytes for info in restoring)
