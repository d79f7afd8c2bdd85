"""Requests that wait for a disk: cancelled, refused, failed, drained, and told late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from doubles.compute import ScriptedCompute
from doubles.journal import ListJournal
from mlxbun.application import prefixes as prefixes_module
from mlxbun.application.engine import Engine
from mlxbun.application.prefixes import MAX_RESTORES, Prefixes
from mlxbun.application.requests import Outbox, RequestSpec
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Cuts, Tensor, boundary, chain
from mlxbun.domain.residency import BlocksRestored, Budget
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.scheduling import (
    Limits,
    RequestAdmitted,
    RequestCancelled,
    RequestHeld,
    RequestQueued,
    StepCommitted,
)
from mlxbun.domain.steps import Compute
from tier_driver import GREEDY, SPACE, Client

SECONDS = 20
SIZE = 4 * BLOCK


class Disk:
    """A disk that answers when a test does."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.wanted: list[Sequence[BlockInfo]] = []
        self.ahead: list[bool] = []
        self.cancelled: list[BlockKey] = []

    def write(self, blocks: Sequence[BlockInfo]) -> None: ...

    def learned(self, prefill_tokens_per_second: float) -> None: ...

    def holding(self) -> Sequence[BlockInfo]:
        return ()

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None:
        self.wanted.append(blocks)
        self.ahead.append(ahead)
        self.asked.release()

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        self.cancelled += keys

    def next_wanted(self) -> Sequence[BlockInfo]:
        assert self.asked.acquire(timeout=SECONDS), "nobody asked"
        return self.wanted[-1]


class Bench:
    """An engine on the scripted model, and a disk that has what a test says."""

    def __init__(
        self,
        ram_blocks: int = 100,
        cuts: Cuts = "block",
        max_rows: int = 2,
        mixed: bool = False,
    ) -> None:
        self.compute = ScriptedCompute(cuts=cuts, mixed=mixed)
        self.disk = Disk()
        self.prefixes = Prefixes(SPACE, Budget(ram_blocks * SIZE, True), self.disk)
        self.journal = ListJournal()
        self.engine = Engine(
            lambda: self.compute,
            Limits(max_rows=max_rows, max_chunk_tokens=128, adaptive_chunks=False),
            self.journal,
            open_prefixes=lambda: self.prefixes,
        )
        self._heard = threading.Condition()
        self._count = 0
        ready = threading.Event()
        self.engine.start(self._tell, ready.set, lambda _: None)
        assert ready.wait(SECONDS)

    def _tell(self, outbox: Outbox) -> None:
        with self._heard:
            for mailbox, item in outbox.items:
                mailbox.put(item)
            self._heard.notify_all()

    def has(self, ids: Sequence[int]) -> list[BlockInfo]:
        """Have the disk know all blocks of a prompt."""
        keys = chain(SPACE, tuple(map(TokenId, ids)))
        infos = [
            BlockInfo(key, keys[i - 1] if i else None, "block", i * BLOCK, BLOCK, SIZE)
            for i, key in enumerate(keys)
        ]
        self.engine.report(lambda blocks, compute: blocks.opened(compute, infos))
        return infos

    def has_state(self, ids: Sequence[int]) -> list[BlockInfo]:
        """Have the disk know the state after exactly `ids`: blocks, and a boundary after them."""
        infos, start = self.has(ids), len(ids) // BLOCK * BLOCK
        parent = infos[-1].key if infos else None
        key = boundary(SPACE, tuple(map(TokenId, ids)), after_blocks=True)
        num_tokens = len(ids) - start
        infos.append(BlockInfo(key, parent, "boundary", start, num_tokens, 4 * num_tokens + 100))
        self.engine.report(lambda blocks, compute: blocks.opened(compute, infos[-1:]))
        return infos

    def gives(self, blocks: Sequence[BlockInfo], ids: Sequence[int]) -> None:
        """Have the disk give the state of `ids`."""
        found = [
            (block, [_tensor(ids[block.start : block.start + block.num_tokens])])
            for block in blocks
        ]
        self.engine.report(lambda blocks, compute: blocks.restored(compute, found))

    def loses(self, blocks: Sequence[BlockInfo]) -> None:
        keys = [block.key for block in blocks]
        self.engine.report(lambda blocks, compute: blocks.not_restored(compute, keys, "gone"))

    def submit(self, ids: Sequence[int], max_tokens: int = 3) -> Client:
        self._count += 1
        client = Client(RequestId(f"r{self._count}"), tuple(ids), max_tokens)
        prompt = tuple(map(TokenId, ids))
        self.engine.submit(
            RequestSpec(client.request_id, prompt, max_tokens, frozenset(), GREEDY), client
        )
        return client

    def waits_for(self, kind: type, number: int = 1) -> None:
        """Wait until as many events of a kind were said."""

        def said() -> bool:
            events = [e for batch in self.journal.read() for e in batch.events]
            return sum(isinstance(e, kind) for e in events) >= number

        with self._heard:
            assert self._heard.wait_for(said, SECONDS)

    def goes_on(self) -> None:
        """Wait until the engine has taken some turns, and with them heard of all who came."""
        events = [e for batch in self.journal.read() for e in batch.events]
        number = sum(isinstance(e, StepCommitted) for e in events)
        self.waits_for(StepCommitted, number + 4)

    def stop(self) -> None:
        self.engine.stop()
        state = self.prefixes.blocks.state
        assert not state.lent and not state.computing
        assert not self.journal.scheduled().waiting
        in_ram = {key: block.info for key, block in state.blocks.items() if block.in_ram}
        assert set(self.compute.kept) == set(in_ram)
        assert state.ram_bytes == sum(info.num_bytes for info in in_ram.values())
        assert self.compute.num_rows == 0


def _tensor(ids: Sequence[int]) -> Tensor:
    data = b"".join(one.to_bytes(4, "little") for one in ids)
    return Tensor("ids", "I32", (len(ids),), data)


def text(length: int, letter: str = "x") -> list[int]:
    return [ord(letter)] * length


def ended(client: Client) -> str | None:
    assert client.over.wait(SECONDS), "a request waits for ever"
    return client.reason


Make = Callable[..., Bench]
Found = list[tuple[BlockInfo, list[Tensor]]]
Events = list[residency.Event]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Bench] = []

    def bench(
        ram_blocks: int = 100,
        cuts: Cuts = "block",
        max_rows: int = 2,
        mixed: bool = False,
    ) -> Bench:
        made.append(Bench(ram_blocks, cuts, max_rows, mixed))
        return made[-1]

    yield bench
    for one in made:
        one.stop()


def test_who_waits_begins_with_what_the_disk_gives(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    client = bench.submit(text(700))
    bench.gives(bench.disk.next_wanted(), text(700))
    assert (ended(client), client.reused) == ("length", 2 * BLOCK)


def test_others_go_first_while_one_waits(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    held = bench.submit(text(700))
    wanted = bench.disk.next_wanted()
    assert ended(bench.submit(text(300, "y"))) == "length"
    assert not held.tokens
    bench.gives(wanted, text(700))
    assert ended(held) == "length"


def test_what_comes_for_a_request_that_was_cancelled_is_kept_for_others(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    gone = bench.submit(text(700))
    wanted = bench.disk.next_wanted()
    bench.engine.cancel(gone.request_id)
    bench.waits_for(RequestCancelled)
    bench.gives(wanted, text(700))
    client = bench.submit(text(700))
    assert (ended(client), client.reused) == ("length", 2 * BLOCK)
    assert not gone.tokens


def test_who_hears_that_a_block_is_lost_computes_it(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    client = bench.submit(text(700))
    bench.loses(bench.disk.next_wanted())
    assert (ended(client), client.reused) == ("length", 0)


def test_the_disk_may_give_the_beginning_and_lose_the_rest(make: Make) -> None:
    bench = make()
    bench.has(text(900))
    client = bench.submit(text(900))
    first, *rest = bench.disk.next_wanted()
    bench.gives([first], text(900))
    bench.loses(rest)
    assert (ended(client), client.reused) == ("length", BLOCK)


def test_state_that_cannot_be_taken_in_costs_no_request(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()

    def broken(*_: object) -> BlockInfo:
        raise MemoryError("no room")

    monkeypatch.setattr(bench.compute, "adopt", broken)
    bench.has(text(700))
    client, other = bench.submit(text(700)), bench.submit(text(300, "y"))
    bench.gives(bench.disk.next_wanted(), text(700))
    assert (ended(client), client.reused) == ("length", 0)
    assert ended(other) == "length"


def test_a_step_that_breaks_leaves_alone_who_waits(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    held = bench.submit(text(700))
    wanted = bench.disk.next_wanted()
    assert ended(bench.submit([*b"[break step]", *text(300, "y")], 9)) == "failed"
    bench.gives(wanted, text(700))
    assert (ended(held), held.reused) == ("length", 2 * BLOCK)


def test_who_waits_when_the_drain_begins_is_served(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    held = bench.submit(text(700))
    wanted = bench.disk.next_wanted()
    bench.engine.drain()
    assert ended(bench.submit(text(5))) == "rejected"
    bench.gives(wanted, text(700))
    assert (ended(held), held.reused) == ("length", 2 * BLOCK)


def test_who_waits_when_the_engine_stops_is_let_go(make: Make) -> None:
    bench = make()
    bench.has(text(700))
    held = bench.submit(text(700))
    wanted = bench.disk.next_wanted()
    bench.waits_for(RequestHeld)
    bench.engine.stop()
    bench.gives(wanted, text(700))
    assert not held.tokens


@pytest.mark.parametrize("ram_blocks", [0, 1, 2])
def test_a_ram_that_is_too_small_keeps_nobody_waiting(make: Make, ram_blocks: int) -> None:
    bench = make(ram_blocks)
    bench.has(text(900))
    client = bench.submit(text(900))
    if ram_blocks:
        wanted = bench.disk.next_wanted()
        assert len(wanted) == ram_blocks, "what does not fit is not asked for"
        bench.gives(wanted, text(900))
    assert (ended(client), client.reused) == ("length", ram_blocks * BLOCK)


def test_who_is_given_nothing_often_enough_computes(make: Make) -> None:
    """The disk's blocks leave RAM again before the request is admitted."""
    bench = make()
    bench.has(text(700))
    client = bench.submit(text(700))

    for _ in range(MAX_RESTORES):
        found = [(b, [_tensor(text(b.num_tokens))]) for b in bench.disk.next_wanted()]

        def come_and_go(blocks: ResidentBlocks, compute: Compute, found: Found = found) -> Events:
            come = blocks.restored(compute, found)
            return [*come, *blocks.decide(compute, residency.Relieve(1 << 40))]

        bench.engine.report(come_and_go)
    assert (ended(client), client.reused) == ("length", 0)


def test_a_disk_that_does_not_answer_is_not_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefixes_module, "LEAST_PATIENCE_SECONDS", 0.02)
    monkeypatch.setattr(prefixes_module, "PATIENCE", 0)
    bench = make()
    blocks = bench.has(text(700))
    bench.has(text(700, "y"))
    client = bench.submit(text(700))
    assert bench.disk.next_wanted() == blocks[:2]
    assert (ended(client), client.reused) == ("length", 0)
    later = bench.submit(text(700, "y"))
    assert (ended(later), later.reused) == ("length", 0)
    assert len(bench.disk.wanted) == 1, "nobody asks it again"

    bench.gives(blocks, text(700))  # late, and of no use any more
    bench.has(text(700, "z"))
    monkeypatch.setattr(prefixes_module, "LEAST_PATIENCE_SECONDS", SECONDS)
    again = bench.submit(text(700, "z"))
    bench.gives(bench.disk.next_wanted(), text(700, "z"))
    assert (ended(again), again.reused) == ("length", 2 * BLOCK)


def test_nobody_waits_for_a_copy_that_cannot_be_made(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shares the prompt of a long answer goes on once the prompt is read."""
    bench = make(cuts="boundary")
    monkeypatch.setattr(bench.compute, "keep", lambda *_: ())
    long = bench.submit([*text(400), *b"[forever]"], 100_000)
    short = bench.submit([*text(400), *b"[forever]"], 2)
    assert ended(short) == "length"
    assert not long.over.is_set()
    bench.engine.cancel(long.request_id)


def test_a_whole_prompt_of_the_disk_is_not_the_whole_of_a_row(make: Make) -> None:
    bench = make()
    bench.has(text(2 * BLOCK))
    client = bench.submit(text(2 * BLOCK))
    wanted = bench.disk.next_wanted()
    assert len(wanted) == 1
    bench.gives(wanted, text(2 * BLOCK))
    assert (ended(client), client.reused) == ("length", BLOCK)
    one = bench.submit(text(1))
    assert (ended(one), one.reused) == ("length", 0)


def test_a_boundary_of_the_whole_prompt_is_not_lent(make: Make) -> None:
    bench = make(cuts="boundary")
    ids = tuple(map(TokenId, text(400)))
    known = BlockInfo(boundary(SPACE, ids), None, "boundary", 0, 400, 1600)
    bench.engine.report(lambda blocks, compute: blocks.opened(compute, [known]))
    client = bench.submit(text(400))
    assert (ended(client), client.reused) == ("length", 0)
    assert not bench.disk.wanted


FOREVER = [*b"[forever]", *text(20, "y")]


def queue(bench: Bench, *prompts: Sequence[int]) -> list[Client]:
    """Occupy the only row for good, and queue up behind it."""
    running = bench.submit(FOREVER, 100_000)
    bench.waits_for(RequestAdmitted)
    return [running, *(bench.submit(prompt) for prompt in prompts)]


def test_the_disk_reads_for_the_third_while_the_first_decodes(make: Make) -> None:
    bench = make(max_rows=1)
    bench.has(text(700))
    running, second, third = queue(bench, text(300, "z"), text(700))
    wanted = bench.disk.next_wanted()
    assert bench.disk.ahead == [True] and len(wanted) == 2
    bench.gives(wanted, text(700))
    bench.waits_for(BlocksRestored)
    assert not running.over.is_set() and not second.tokens and not third.tokens
    bench.engine.cancel(running.request_id)
    assert ended(second) == "length"
    assert (ended(third), third.reused) == ("length", 2 * BLOCK)
    assert len(bench.disk.wanted) == 1, "what was read ahead is not asked for again"


def test_who_comes_to_its_turn_waits_for_what_is_read_ahead(make: Make) -> None:
    bench = make(max_rows=1)
    bench.has(text(700))
    running, second = queue(bench, text(700))
    wanted = bench.disk.next_wanted()
    bench.engine.cancel(running.request_id)
    bench.waits_for(RequestHeld)
    bench.gives(wanted, text(700))
    assert (ended(second), second.reused) == ("length", 2 * BLOCK)
    assert not bench.disk.cancelled


def test_who_leaves_the_queue_has_its_blocks_read_no_more(make: Make) -> None:
    bench = make(max_rows=1)
    infos = bench.has(text(700))
    running, second = queue(bench, text(700))
    bench.disk.next_wanted()
    bench.engine.cancel(second.request_id)
    bench.waits_for(RequestCancelled)
    keys = [info.key for info in infos]
    assert bench.disk.cancelled == keys
    bench.engine.report(lambda blocks, compute: blocks.not_read(compute, keys))
    third = bench.submit(text(700))
    bench.gives(bench.disk.next_wanted(), text(700))
    bench.engine.cancel(running.request_id)
    assert (ended(third), third.reused) == ("length", 2 * BLOCK)


def test_what_another_waits_for_is_read_all_the_same(make: Make) -> None:
    bench = make(max_rows=1)
    infos = bench.has(text(900))
    _, second, third = queue(bench, text(900), text(600))
    wanted = bench.disk.next_wanted()
    bench.waits_for(RequestQueued, 3)
    bench.goes_on()
    bench.engine.cancel(second.request_id)
    bench.waits_for(RequestCancelled)
    assert bench.disk.cancelled == [infos[2].key], "the others share the first two"
    bench.gives(wanted[:2], text(900))
    bench.engine.report(lambda blocks, compute: blocks.not_read(compute, [infos[2].key]))
    bench.engine.cancel(third.request_id)


def test_who_is_held_and_leaves_has_its_blocks_read_no_more(make: Make) -> None:
    bench = make()
    infos = bench.has(text(700))
    held = bench.submit(text(700))
    bench.disk.next_wanted()
    bench.waits_for(RequestHeld)
    bench.engine.cancel(held.request_id)
    bench.waits_for(RequestCancelled)
    assert bench.disk.cancelled == [info.key for info in infos]


def test_little_of_ram_is_filled_ahead_of_need(make: Make) -> None:
    bench = make(ram_blocks=8, max_rows=1)
    bench.has(text(1100))
    bench.has(text(1100, "z"))
    running, second, _ = queue(bench, text(1100), text(1100, "z"))
    bench.waits_for(RequestQueued, 3)
    bench.goes_on()
    first = bench.disk.next_wanted()
    assert len(first) == 2, "a quarter of what fits"
    assert bench.disk.wanted == [first], "and nothing for whoever is behind it"
    bench.gives(first, text(1100))
    bench.engine.cancel(running.request_id)
    rest = bench.disk.next_wanted()
    assert bench.disk.ahead[:2] == [True, False], "the rest is asked for at its turn"
    assert [block.start // BLOCK for block in bench.disk.wanted[1]] == [2, 3]
    bench.gives(bench.disk.wanted[1], text(1100))
    assert (ended(second), second.reused) == ("length", 4 * BLOCK) and rest


def test_a_boundary_is_read_ahead_too(make: Make) -> None:
    bench = make(cuts="boundary", max_rows=1)
    ids = tuple(map(TokenId, text(400)))
    known = BlockInfo(boundary(SPACE, ids), None, "boundary", 0, 400, 1600)
    bench.engine.report(lambda blocks, compute: blocks.opened(compute, [known]))
    running, second = queue(bench, text(420))
    bench.gives(bench.disk.next_wanted(), text(420))
    bench.engine.cancel(running.request_id)
    assert (ended(second), second.reused) == ("length", 400)


@pytest.mark.parametrize("length", [400, 700, 2 * BLOCK])
def test_a_state_in_blocks_is_read_ahead_whole(make: Make, length: int) -> None:
    bench = make(cuts="boundary", mixed=True, max_rows=1)
    infos = bench.has_state(text(length))
    running, second = queue(bench, text(length + 20))
    wanted = bench.disk.next_wanted()
    assert list(wanted) == infos and bench.disk.ahead == [True]
    bench.gives(wanted, text(length))
    bench.engine.cancel(running.request_id)
    assert (ended(second), second.reused) == ("length", length)


def test_whoever_leaves_has_a_state_in_blocks_read_no_more(make: Make) -> None:
    bench = make(cuts="boundary", mixed=True)
    infos = bench.has_state(text(700))
    held = bench.submit(text(720))
    bench.disk.next_wanted()
    bench.waits_for(RequestHeld)
    bench.engine.cancel(held.request_id)
    bench.waits_for(RequestCancelled)
    assert bench.disk.cancelled == [info.key for info in infos]


def test_a_state_whose_blocks_the_disk_lost_is_computed(make: Make) -> None:
    bench = make(cuts="boundary", mixed=True)
    infos = bench.has_state(text(700))
    client = bench.submit(text(720))
    bench.gives(bench.disk.next_wanted()[:1], text(700))
    bench.loses(infos[1:])
    assert (ended(client), client.reused) == ("length", 0)


def test_whole_states_of_earlier_versions_are_left_alone_where_layers_are_mixed(
    make: Make,
) -> None:
    """They have other keys, so that what is kept now is never put after or before them."""
    bench = make(cuts="boundary", mixed=True)
    ids = tuple(map(TokenId, text(400)))
    old = BlockInfo(boundary(SPACE, ids), None, "boundary", 0, 400, 1600)
    bench.engine.report(lambda blocks, compute: blocks.opened(compute, [old]))
    client = bench.submit(text(401))
    assert (ended(client), client.reused) == ("length", 0)
    assert not bench.disk.wanted
    again = bench.submit(text(420))
    assert (ended(again), again.reused) == ("length", 400)
