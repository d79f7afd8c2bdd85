"""Persistence over stores that work, fail, hang and lose: what is written, and what is said."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from doubles.block_store import DictBlockStore
from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.kept_ids_store import DictKeptIds
from mlxbun.application.backoff import Backoff
from mlxbun.application.persistence import SAMPLE_BYTES, Persistence
from mlxbun.application.restorer import Report
from mlxbun.application.writer import BATCH
from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockLost,
    Committed,
    Namespace,
    StoreFailed,
    Tensor,
)
from mlxbun.domain.kept_ids import MAX_TEXTS, KeptIds, bounded, kept_as

SECONDS = 20
SOON = 0.05  # for waits that must not succeed


class Prefixes:
    """Stands for the prefix cache: it only remembers what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.again: Callable[[int], list[Any]] = lambda most: []

    def written(self, _: object, keys: Sequence[BlockKey]) -> list[Any]:
        self.heard += [("written", one) for one in keys]
        return []

    def not_written(self, _: object, keys: Sequence[BlockKey], cause: str) -> list[Any]:
        self.heard += [("not written", one, cause) for one in keys]
        return []

    def restored(
        self, _: object, blocks: Sequence[tuple[Any, Sequence[Tensor]]], _seconds: float = 0.0
    ) -> list[Any]:
        self.heard += [("restored", info.key, plain(tensors)) for info, tensors in blocks]
        return []

    def not_restored(self, _: object, keys: Sequence[BlockKey], cause: str) -> list[Any]:
        self.heard += [("not restored", one, cause) for one in keys]
        return []

    def not_read(self, _: object, keys: Sequence[BlockKey]) -> list[Any]:
        self.heard += [("not read", one) for one in keys]
        return []

    def write_again(self, _: object, most: int) -> list[Any]:
        return self.again(most)

    def measured(self, _: object, num_bytes: int, seconds: float) -> list[Any]:
        self.heard.append(("measured", num_bytes, seconds))
        return []

    def pruned(self, _: object, keys: Sequence[BlockKey]) -> list[Any]:
        self.heard += [("pruned", one) for one in keys]
        return []


class Store(DictBlockStore):
    """A store whose calls a test can hold, count and have raise."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.busy = threading.Event()
        self.commits: list[list[BlockKey]] = []
        self.raises: dict[str, Exception] = {}

    def _enter(self, call: str) -> None:
        if call in self.raises:
            raise self.raises[call]

    def commit(self, namespace: Namespace, blocks: Any) -> Committed:
        self.busy.set()
        assert self.open.wait(SECONDS)
        self._enter("commit")
        committed = super().commit(namespace, blocks)
        self.commits.append([info.key for info, _ in blocks])
        return committed

    def read(self, namespace: Namespace, key: BlockKey) -> Sequence[Tensor]:
        self.busy.set()
        assert self.open.wait(SECONDS)
        self._enter("read")
        return super().read(namespace, key)

    def known(self, namespace: Namespace) -> Sequence[BlockInfo]:
        self._enter("known")
        return super().known(namespace)

    def used(self, namespace: Namespace, keys: Sequence[BlockKey]) -> None:
        self._enter("used")
        super().used(namespace, keys)

    def shrink(self, max_bytes: int) -> Sequence[tuple[Namespace, BlockKey]]:
        self._enter("shrink")
        return super().shrink(max_bytes)

    def num_bytes(self) -> int:
        if hasattr(self, "raises"):
            self._enter("num_bytes")
        return super().num_bytes()


class Bench:
    """Persistence, its store, what is in RAM, and who hears."""

    def __init__(self, **limits: Any) -> None:
        self.store = Store()
        self.prefixes = Prefixes()
        self.num_seen = 0
        self.ram: dict[BlockKey, list[Tensor]] = {}
        self.known: dict[BlockKey, BlockInfo] = {}
        self.changed = threading.Condition()
        self.disk = Persistence(self.store, ONE, tensors=self.tensors, report=self.report, **limits)
        self.disk.start()

    def tensors(self, of: BlockKey) -> list[Tensor]:
        if of not in self.ram:
            raise BlockLost("it left RAM")
        return self.ram[of]

    def report(self, report: Report) -> None:
        with self.changed:
            report(self.prefixes, None)  # type: ignore[arg-type]
            self.changed.notify_all()

    def write(self, *numbers: int, after: int | None = None) -> None:
        """Put a chain of blocks into RAM, and have them written."""
        infos = []
        for number in numbers:
            info, self.ram[key(number)] = block(number, after)
            infos.append(info)
            self.known[info.key] = info
            after = number
        self.disk.write(infos)

    def again(self, most: int) -> list[BlockInfo]:
        """Have written what was not, and is in RAM, as the prefix cache would."""
        last = {h[1]: h[0] for h in self.prefixes.heard}
        owed = [
            info for of, info in self.known.items() if of in self.ram and last.get(of) != "written"
        ]
        self.disk.write(owed[:most])
        return owed[:most]

    def read(self, *numbers: int, ahead: bool = False) -> None:
        chain = zip(numbers, [None, *numbers], strict=False)
        self.disk.read([block(number, after)[0] for number, after in chain], ahead)

    def reading(self, *numbers: int) -> None:
        """Have the disk begin to read a chain, and hang at its first block."""
        self.store.open.clear()
        self.store.busy.clear()
        self.read(*numbers, ahead=True)
        assert self.store.busy.wait(SECONDS)

    def hears(self, number: int) -> list[tuple[Any, ...]]:
        """Return what was heard, once it is as much as `number`."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.prefixes.heard) >= number, SECONDS)
            return list(self.prefixes.heard)

    def waits(self, *outcomes: str) -> None:
        """Wait until one of `outcomes` is heard; nothing that was heard before counts again."""
        with self.changed:

            def heard() -> bool:
                rest = self.prefixes.heard[self.num_seen :]
                return any(h[0] in outcomes for h in rest)

            assert self.changed.wait_for(heard, SECONDS)
            self.num_seen = len(self.prefixes.heard)

    def is_alive(self) -> bool:
        """Return whether both threads still work."""
        self.store.raises.clear()
        self.store.failing = None
        self.write(9001)
        self.waits("written")
        self.read(9001)
        self.waits("restored")
        return True


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Bench] = []

    def bench(**limits: Any) -> Bench:
        made.append(Bench(**limits))
        return made[-1]

    yield bench
    for one in made:
        one.store.open.set()
        one.disk.close(SECONDS)
        assert one.store.closed


def test_what_is_written_is_durable_and_said(make: Make) -> None:
    bench = make()
    bench.write(1, 2)
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.written_blocks, report.pending_blocks) == (True, 2, 0)
    assert report.bytes_written == report.bytes_on_disk == bench.store.num_bytes() > 0
    assert bench.hears(2) == [("written", key(1)), ("written", key(2))]
    assert plain(bench.store.read(ONE, key(2))) == plain(block(2)[1])


def test_writing_and_reading_wait_for_no_disk(make: Make) -> None:
    bench = make()
    bench.store.open.clear()
    bench.write(1)
    assert bench.store.busy.wait(SECONDS)
    bench.write(2, after=1)
    bench.read(1)
    report = bench.disk.flush(SOON)
    assert (report.durable, report.pending_blocks) == (False, 2)
    assert report.pending_bytes == block(1)[0].num_bytes + block(2)[0].num_bytes
    assert not bench.prefixes.heard
    bench.store.open.set()
    assert bench.disk.flush(SECONDS).durable


def test_batches_are_bounded_and_keep_parents_before_children(make: Make) -> None:
    bench = make()
    bench.store.open.clear()
    numbers = range(1, 2 * BATCH + 10)
    bench.write(*numbers)
    bench.store.open.set()
    assert bench.disk.flush(SECONDS).durable
    assert all(len(commit) <= BATCH for commit in bench.store.commits)
    assert [one for commit in bench.store.commits for one in commit] == list(map(key, numbers))


def test_what_left_ram_too_early_is_said_with_what_comes_after_it(make: Make) -> None:
    bench = make()
    bench.store.open.clear()
    bench.write(50)
    assert bench.store.busy.wait(SECONDS)
    bench.write(1, 2, 3)
    bench.write(7)
    del bench.ram[key(2)]
    bench.store.open.set()
    report = bench.disk.flush(SECONDS)
    assert not report.durable
    assert (report.failed_blocks, report.written_blocks) == (2, 3)
    heard = bench.hears(5)
    assert {h[1] for h in heard if h[0] == "not written"} == {key(2), key(3)}
    assert {h[1] for h in heard if h[0] == "written"} == {key(50), key(1), key(7)}


def test_a_failing_disk_is_said_once_until_it_works_again(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    with caplog.at_level(logging.WARNING, "mlxbun.persistence"):
        for _ in range(2):
            bench.store.failing = StoreFailed("no space left")
            for number in (1, 2, 3):
                bench.write(number)
                assert not bench.disk.flush(SECONDS).durable
            bench.store.failing = None
            bench.write(1)
            bench.disk.flush(SECONDS)
    said = [record.getMessage() for record in caplog.records]
    full = "1 blocks are in RAM only, if at all: no space left"
    assert [s for s in said if "takes" in s or "RAM" in s] == [
        full, "the disk takes blocks again"
    ] * 2  # fmt: skip
    failed = [h for h in bench.hears(8) if h[0] == "not written"]
    assert failed == [("not written", key(n), "no space left") for n in (1, 2, 3)] * 2


def test_what_failed_is_not_durable_until_it_is_written_after_all(make: Make) -> None:
    bench = make()
    bench.store.failing = StoreFailed("no space left")
    bench.write(1)
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.failed_blocks) == (False, 1)
    assert report.last_error is not None and "no space left" in report.last_error
    bench.store.failing = None
    bench.write(2)
    assert not bench.disk.flush(SECONDS).durable, "the first is still not there"
    bench.write(1)
    assert bench.disk.flush(SECONDS).durable


def test_a_disk_that_fails_late_is_said_though_blocks_left_ram_before(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.write(1)
    bench.ram.clear()
    with caplog.at_level(logging.WARNING, "mlxbun.persistence"):
        bench.disk.write([block(2)[0]])
        bench.disk.flush(SECONDS)
        bench.store.failing = StoreFailed("no space left")
        bench.write(3)
        bench.disk.flush(SECONDS)
    said = [record.getMessage() for record in caplog.records]
    assert any("left RAM" in sentence for sentence in said)
    assert any("no space left" in sentence for sentence in said)


def test_a_block_after_one_that_is_not_there_harms_no_other(make: Make) -> None:
    """Its parent failed, was pruned or was lost in an earlier batch."""
    bench = make()
    bench.store.open.clear()
    bench.write(50)
    assert bench.store.busy.wait(SECONDS)
    bench.write(2, 3, after=1)
    bench.write(7, 8)
    bench.store.open.set()
    bench.disk.flush(SECONDS)
    heard = bench.hears(6)
    assert {h[1] for h in heard if h[0] == "written"} == {key(50), key(7), key(8)}
    assert {h[1] for h in heard if h[0] == "not written"} == {key(2), key(3)}
    assert {h[1] for h in heard if h[0] == "not restored"} == {key(1)}, "it is not on the disk"


def test_the_queue_s_bound_refuses_and_never_waits(make: Make) -> None:
    size = block(1)[0].num_bytes
    bench = make(queue_bytes=2 * size)
    bench.store.open.clear()
    bench.write(50)
    assert bench.store.busy.wait(SECONDS)
    bench.write(1, 2, 3)
    heard = bench.hears(2)
    assert [h[:2] for h in heard] == [("not written", key(2)), ("not written", key(3))]
    assert "slower" in heard[0][2]
    bench.store.open.set()
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.written_blocks, report.failed_blocks) == (False, 2, 2)
    bench.write(2, 3, after=1)
    assert bench.disk.flush(SECONDS).durable, "there is room again"


def test_what_is_read_comes_back_as_it_was(make: Make) -> None:
    bench = make()
    bench.write(1, 2)
    bench.disk.flush(SECONDS)
    bench.read(1, 2)
    heard = bench.hears(4)[2:]
    assert heard == [("restored", key(n), plain(block(n)[1])) for n in (1, 2)]
    assert bench.disk.flush(SECONDS).restored_blocks == 2


def test_reading_stops_at_the_first_that_is_lost(make: Make) -> None:
    bench = make()
    bench.write(1, 2, 3)
    bench.disk.flush(SECONDS)
    bench.store.damage(ONE, key(2))
    bench.read(1, 2, 3)
    heard = bench.hears(6)[3:]
    assert [h[:2] for h in heard] == [
        ("restored", key(1)), ("not restored", key(2)), ("not restored", key(3))
    ]  # fmt: skip
    report = bench.disk.flush(SECONDS)
    assert (report.restored_blocks, report.lost_blocks) == (1, 2)
    assert not report.durable, "what was lost is not durable"
    bench.write(2, 3, after=1)
    assert bench.disk.flush(SECONDS).durable


def test_the_cap_is_kept_and_said_of_our_own_blocks_alone(make: Make) -> None:
    size = block(1)[0].num_bytes
    bench = make(max_bytes=3 * size)
    theirs, data = block(900)
    bench.store.commit(OTHER, [(theirs, data)])
    for number in (1, 2, 3, 4):
        bench.write(number)
        bench.disk.flush(SECONDS)
    assert bench.store.num_bytes() <= 3 * size
    assert [h for h in bench.hears(5) if h[0] == "pruned"] == [("pruned", key(1))]
    assert [info.key for info in bench.store.known(OTHER)] == []


@pytest.mark.parametrize("call", ["commit", "read", "used", "shrink", "num_bytes"])
@pytest.mark.parametrize(
    "error", [StoreFailed("no disk"), RuntimeError("a fault")], ids=["disk", "own"]
)
def test_no_failure_of_the_store_ends_a_thread(make: Make, call: str, error: Exception) -> None:
    bench = make(max_bytes=block(1)[0].num_bytes)
    bench.write(1)
    bench.disk.flush(SECONDS)
    bench.store.raises[call] = error
    bench.write(2)
    bench.disk.flush(SECONDS)
    for _ in range(2):
        bench.read(2)
        bench.waits("restored", "not restored")
    assert {h[0] for h in bench.prefixes.heard if h[1] == key(2)} & {"written", "not written"}
    assert bench.disk.flush(SECONDS).last_error is not None
    assert bench.is_alive()


def test_what_was_restored_is_given_though_its_use_cannot_be_noted(make: Make) -> None:
    bench = make()
    bench.write(1)
    bench.disk.flush(SECONDS)
    bench.store.raises["used"] = StoreFailed("read-only")
    bench.read(1)
    assert bench.hears(2)[-1][:2] == ("restored", key(1))


def test_state_that_cannot_be_read_from_the_model_ends_no_thread(make: Make) -> None:
    bench = make()

    class Broken(dict[BlockKey, list[Tensor]]):
        def __getitem__(self, of: BlockKey) -> list[Tensor]:
            if of == key(1):
                raise RuntimeError("no stream on this thread")
            return super().__getitem__(of)

    bench.ram = Broken()
    bench.write(1)
    assert bench.hears(1)[0][:2] == ("not written", key(1))
    assert bench.is_alive()


def test_closing_writes_what_waits_and_is_done_once(make: Make) -> None:
    bench = make()
    bench.write(*range(1, 200))
    report = bench.disk.close(SECONDS)
    assert (report.durable, report.written_blocks) == (True, 199)
    assert bench.store.closed
    again = bench.disk.close(SECONDS)
    assert (again.durable, again.written_blocks) == (True, 199)


def test_closing_what_never_wrote_or_never_started_is_well(make: Make) -> None:
    assert make().disk.close(SECONDS).durable
    store = DictBlockStore()
    never = Persistence(store, ONE, tensors=lambda _: [], report=lambda _: None)
    assert never.close(SECONDS).durable
    assert store.closed


def test_closing_gives_up_on_what_a_slow_disk_has_not_written(make: Make) -> None:
    bench = make()
    bench.store.open.clear()
    bench.write(1)
    assert bench.store.busy.wait(SECONDS)
    bench.write(2)
    report = bench.disk.close(0.0)
    assert (report.durable, report.pending_blocks) == (False, 2)
    assert not bench.store.closed, "its thread still uses it"
    bench.store.open.set()
    assert {h[:2] for h in bench.hears(2)} == {("written", key(1)), ("not written", key(2))}


def test_whoever_asks_after_the_close_is_told_so(make: Make) -> None:
    """A request that waits for a block must hear that it does not come."""
    bench = make()
    bench.write(1)
    bench.disk.close(SECONDS)
    bench.read(1)
    bench.write(2)
    assert [h[:2] for h in bench.hears(3)[1:]] == [
        ("not restored", key(1)),
        ("not written", key(2)),
    ]


def test_what_waits_to_be_read_when_the_server_closes_is_told_so(make: Make) -> None:
    bench = make()
    bench.write(1)
    bench.disk.flush(SECONDS)
    bench.store.open.clear()
    bench.store.busy.clear()
    bench.read(1)
    assert bench.store.busy.wait(SECONDS)
    bench.read(1)
    bench.disk.close(0.0)
    bench.store.open.set()
    assert {h[:2] for h in bench.hears(3)[1:]} == {("restored", key(1)), ("not restored", key(1))}


def test_a_disk_that_never_answers_does_not_hold_up_the_close() -> None:
    class Hangs(DictBlockStore):
        def __init__(self) -> None:
            super().__init__()
            self.open = threading.Event()
            self.released = threading.Event()

        def num_bytes(self) -> int:
            if hasattr(self, "open"):
                assert self.open.wait(SECONDS)
            return super().num_bytes()

        def close(self) -> None:
            assert self.open.wait(SECONDS)
            super().close()
            self.released.set()

    store = Hangs()
    disk = Persistence(store, ONE, tensors=lambda _: [], report=lambda _: None)
    disk.start()
    assert disk.close(SOON).durable, "there was nothing to write"
    assert disk.close(SOON).durable and not store.closed
    store.open.set()
    assert store.released.wait(SECONDS)


def test_what_is_read_ahead_gives_way_to_what_somebody_waits_for(make: Make) -> None:
    bench = make()
    bench.write(1, 2, 3)
    bench.write(8, 9)
    bench.disk.flush(SECONDS)
    before = len(bench.hears(5))
    bench.reading(1, 2, 3)
    bench.read(8, 9)
    bench.store.open.set()
    heard = bench.hears(before + 5)[before:]
    assert [(h[0], h[1]) for h in heard] == [("restored", key(n)) for n in (1, 8, 9, 2, 3)]


def test_what_nobody_wants_any_more_is_not_read_and_said_so(make: Make) -> None:
    bench = make()
    bench.write(1, 2, 3)
    bench.write(8, 9)
    bench.disk.flush(SECONDS)
    before = len(bench.hears(5))
    bench.reading(1, 2, 3)
    bench.read(8, 9, ahead=True)
    bench.disk.cancel([key(2), key(3), key(8), key(9), key(77)])
    bench.store.open.set()
    heard = {(h[0], h[1]) for h in bench.hears(before + 5)[before:]}
    assert heard == {("restored", key(1)), *(("not read", key(n)) for n in (2, 3, 8, 9))}
    assert bench.disk.flush(SECONDS).durable, "what was not read is still there"


def test_a_flush_says_what_is_on_the_disk_and_what_is_missing(make: Make) -> None:
    bench = make(known=[block(7)[0]])
    bench.write(1, 2)
    report = bench.disk.flush(SECONDS)
    assert (report.entries, report.flushed_blocks, report.missing_blocks) == (3, 2, 0)
    assert report.longest_durable_prefix_tokens == 8 * BLOCK
    bench.store.raises["commit"] = StoreFailed("full")
    bench.write(3)
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.missing_blocks, report.flushed_blocks) == (False, 1, 0)
    assert (report.failed_blocks, report.dropped_blocks) == (1, 0)
    again = bench.disk.flush(SECONDS)
    assert (again.durable, again.missing_blocks) == (False, 1), "what was lost stays missing"


FULL = StoreFailed(errno.ENOSPC, "no space left")
BROKEN = StoreFailed(errno.EIO, "I/O error")


def soon() -> Backoff:
    return Backoff(0.001, 0.01)


def never() -> Backoff:
    return Backoff(1e9, 1e9)


def failing(make: Make, *numbers: int, **limits: Any) -> Bench:
    """Return a bench whose full disk refused blocks, each apart, which are in RAM."""
    bench = make(**limits)
    bench.prefixes.again = bench.again
    bench.store.raises["commit"] = FULL
    bench.write(*numbers)
    bench.waits("not written")
    return bench


def outcomes(bench: Bench) -> dict[BlockKey, str]:
    return {h[1]: h[0] for h in bench.prefixes.heard}


def test_what_was_refused_is_written_while_nobody_asks_and_said_once(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mlxbun.persistence"):
        bench = failing(make, *range(1, 200), again=soon())
        bench.waits("not written")
        bench.store.raises["commit"] = BROKEN
        bench.waits("not written")
        bench.waits("not written")
        bench.store.raises.clear()
        with bench.changed:
            assert bench.changed.wait_for(
                lambda: set(outcomes(bench).values()) == {"written"}, SECONDS
            )
        assert bench.disk.flush(SECONDS).durable
    assert len(outcomes(bench)) == 199
    assert [len(commit) for commit in bench.store.commits] == [1, 64, 64, 64, 6]
    said = [record.getMessage() for record in caplog.records]
    assert [sentence.rpartition(": ")[2] for sentence in said] == [
        "[Errno 28] no space left", "[Errno 5] I/O error", "the disk takes blocks again"
    ]  # fmt: skip


def test_a_flush_tries_what_was_refused_at_once(make: Make) -> None:
    bench = failing(make, 1, 2, 3, again=never())
    assert not bench.disk.flush(SECONDS).durable
    bench.store.raises.clear()
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.flushed_blocks, report.missing_blocks) == (True, 3, 0)


def test_what_left_ram_is_not_tried_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    bench = failing(make, 1, 2, again=never())
    bench.ram.clear()
    bench.store.raises.clear()
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.missing_blocks) == (False, 2)
    assert not bench.store.commits and "takes blocks again" not in caplog.text


def test_a_refused_block_that_works_again_takes_the_rest_along(make: Make) -> None:
    """Whoever publishes next finds out that the disk works."""
    bench = failing(make, 1, 2, again=never())
    bench.store.raises.clear()
    bench.write(7)
    with bench.changed:
        assert bench.changed.wait_for(lambda: set(outcomes(bench).values()) == {"written"}, SECONDS)
    assert [sorted(commit) for commit in bench.store.commits] == [[key(7)], [key(1), key(2)]]


def test_what_there_was_no_room_for_is_written_when_there_is(make: Make) -> None:
    bench = make(queue_bytes=2 * block(1)[0].num_bytes, again=never())
    bench.prefixes.again = bench.again
    bench.store.open.clear()
    bench.write(50)
    assert bench.store.busy.wait(SECONDS)
    bench.write(1, 2, 3)
    bench.store.open.set()
    with bench.changed:
        assert bench.changed.wait_for(lambda: set(outcomes(bench).values()) == {"written"}, SECONDS)
    assert bench.disk.flush(SECONDS).durable


def test_a_disk_that_fails_for_ever_holds_up_no_close(make: Make) -> None:
    bench = failing(make, 1, 2, again=soon())
    report = bench.disk.close(SECONDS)
    assert (report.durable, report.missing_blocks) == (False, 2)
    assert bench.store.closed


def test_an_engine_that_hears_nothing_holds_up_no_close() -> None:
    store = Store()
    store.raises["commit"] = FULL
    disk = Persistence(store, ONE, tensors=lambda _: block(1)[1], report=lambda _: None)
    disk.start()
    disk.write([block(1)[0]])
    assert not disk.close(SECONDS).durable
    assert store.closed


# -- kept ids --

A, B, C = (kept_as(text, [number]) for number, text in enumerate("abc"))


def keeping(make: Make, **limits: Any) -> tuple[Bench, DictKeptIds]:
    ids = DictKeptIds()
    return make(kept_ids=ids, **limits), ids


def test_kept_ids_are_durable_when_a_flush_says_so(make: Make) -> None:
    bench, ids = keeping(make)
    bench.disk.keep(KeptIds((A, B)))
    bench.disk.keep(KeptIds((B, C)))
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.pending_texts, report.bytes_written) == (True, 0, 8)
    assert list(ids.load(ONE)) == [B, C]


def test_that_a_text_was_used_writes_nothing(make: Make) -> None:
    bench, ids = keeping(make)
    bench.disk.keep(KeptIds((A, B)))
    assert bench.disk.flush(SECONDS).durable
    bench.disk.keep(KeptIds((B, A)))
    assert bench.disk.flush(SECONDS).durable
    assert ids.num_saves == 1


def test_kept_ids_of_earlier_are_there_and_of_others_are_not() -> None:
    ids = DictKeptIds()
    ids.save(OTHER, [A], [])
    many = [kept_as(str(number), [number]) for number in range(MAX_TEXTS + 9)]
    ids.save(ONE, many, [])
    disk = Persistence(
        DictBlockStore(), ONE, tensors=lambda _: [], report=lambda _: None, kept_ids=ids
    )
    disk.start()
    assert disk.kept_ids == bounded(many) and len(disk.kept_ids.texts) == MAX_TEXTS
    assert disk.close(SECONDS).durable
    assert list(ids.load(ONE)) == many[9:], "what is beyond the bounds has gone"
    assert list(ids.load(OTHER)) == [A]


def test_kept_ids_that_cannot_be_read_are_none_and_end_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ids = DictKeptIds()
    ids.save(ONE, [A], [])
    ids.fail()
    disk = Persistence(
        DictBlockStore(), ONE, tensors=lambda _: [], report=lambda _: None, kept_ids=ids
    )
    disk.start()
    assert disk.kept_ids == KeptIds() and "kept ids cannot be read" in caplog.text
    ids.failing = None
    disk.keep(KeptIds((B,)))
    assert disk.close(SECONDS).durable


@pytest.mark.parametrize("error", [FULL, RuntimeError("a fault")], ids=["disk", "own"])
def test_kept_ids_that_were_refused_are_not_durable_until_they_are_written(
    make: Make, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bench, ids = keeping(make, again=never())
    ids.failing = error
    bench.disk.keep(KeptIds((A,)))
    report = bench.disk.flush(SECONDS)
    assert (report.durable, report.pending_texts) == (False, 1)
    bench.disk.keep(KeptIds((A, B)))
    assert bench.disk.flush(SECONDS).pending_texts == 2
    ids.failing = None
    assert bench.disk.flush(SECONDS).durable and list(ids.load(ONE)) == [A, B]
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 2 and said[0].startswith("1 texts have their ids in RAM only: ")
    assert said[1] == "the disk takes kept ids again"


def test_kept_ids_are_written_while_nobody_asks(make: Make) -> None:
    bench, ids = keeping(make, again=soon())
    saved = threading.Event()
    ids.fail()
    bench.disk.keep(KeptIds((A,)))
    bench.disk.flush(SECONDS)
    ids.on_save = saved.set
    ids.failing = None
    assert saved.wait(SECONDS)
    assert bench.disk.flush(SECONDS).durable and list(ids.load(ONE)) == [A]


def test_closing_tries_kept_ids_once_more(make: Make) -> None:
    bench, ids = keeping(make, again=never())
    ids.fail()
    bench.disk.keep(KeptIds((A,)))
    assert not bench.disk.flush(SECONDS).durable
    ids.failing = None
    assert bench.disk.close(SECONDS).durable and list(ids.load(ONE)) == [A]
    bench.disk.keep(KeptIds((A, B)))
    assert bench.disk.close(SECONDS).durable, "nobody keeps anything after the close"


def test_blocks_are_written_though_kept_ids_are_not(make: Make) -> None:
    bench, ids = keeping(make, again=never())
    ids.fail()
    bench.disk.keep(KeptIds((A,)))
    bench.write(1, 2)
    report = bench.disk.flush(SECONDS)
    assert (report.written_blocks, report.missing_blocks, report.pending_texts) == (2, 0, 1)


def test_why_a_disk_refuses_is_what_is_said(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk cannot say either what it has: that is not the cause."""
    bench = make(again=never())
    bench.store.raises["commit"] = FULL
    bench.store.raises["known"] = StoreFailed(errno.ENOSPC, "the manifests cannot be read")
    bench.write(1)
    assert bench.disk.flush(SECONDS).last_error == "[Errno 28] no space left"
    assert "manifests" not in caplog.text


def large(number: int) -> tuple[BlockInfo, list[Tensor]]:
    """Return a block that is enough to measure a disk by."""
    info, _ = block(number)
    data = bytes([number]) * SAMPLE_BYTES
    tensors = [Tensor("state", "U8", (SAMPLE_BYTES,), data)]
    return msgspec.structs.replace(info, num_bytes=SAMPLE_BYTES), tensors


def opened_on(store: Store, *known: BlockInfo) -> tuple[Persistence, Prefixes]:
    prefixes = Prefixes()
    disk = Persistence(
        store,
        ONE,
        tensors=lambda _: (),
        report=lambda report: report(prefixes, None),  # type: ignore[arg-type]
        known=known,
    )
    disk.start()
    return disk, prefixes


def test_the_disk_is_measured_by_the_block_that_was_used_last() -> None:
    store, (old, old_data), (new, new_data) = Store(), large(1), large(2)
    store.commit(ONE, [(old, old_data), (new, new_data)])
    disk, prefixes = opened_on(store, old, new)
    assert disk.close(SECONDS).lost_blocks == 0
    [(said, num_bytes, seconds)] = prefixes.heard
    assert (said, num_bytes) == ("measured", SAMPLE_BYTES) and seconds > 0


def test_a_block_that_is_lost_when_the_disk_is_measured_is_said_to_be() -> None:
    store, (info, data) = Store(), large(1)
    store.commit(ONE, [(info, data)])
    store.damage(ONE, info.key)
    disk, prefixes = opened_on(store, info)
    assert disk.close(SECONDS).lost_blocks == 1
    assert [h[:2] for h in prefixes.heard] == [("not restored", info.key)]


def test_a_small_block_says_nothing_of_the_disk() -> None:
    store, (info, data) = Store(), block(1)
    store.commit(ONE, [(info, data)])
    disk, prefixes = opened_on(store, info)
    disk.close(SECONDS)
    assert not prefixes.heard


def test_how_fast_prompts_are_read_is_noted_when_the_store_is_closed() -> None:
    store = Store()
    disk, _ = opened_on(store)
    disk.learned(400.0)
    disk.learned(500.0)
    disk.close(SECONDS)
    assert store.closed
    store.closed = False
    assert store.prefill_rate(ONE) == 500.0


def test_a_rate_that_cannot_be_noted_keeps_no_store_open() -> None:
    store = Store()
    disk, _ = opened_on(store)
    disk.learned(400.0)
    store.failing = StoreFailed("the disk is gone")
    disk.close(SECONDS)
    assert store.closed
