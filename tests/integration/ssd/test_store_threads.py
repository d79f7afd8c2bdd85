"""A writer, a reader and one that notes uses, at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.files import SteppedFiles
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore
from mlxbun.domain.blocks import BlockLost


class Gate(SteppedFiles):
    """A disk that stands still before one kind of step, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.closed_at: str | None = None
        self.reached, self.go = threading.Event(), threading.Event()

    def step(self, name: str) -> None:
        if name == self.closed_at:
            self.closed_at = None
            self.reached.set()
            assert self.go.wait(60)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def store(tmp_path: Path, gate: Gate) -> Iterator[SsdBlockStore]:
    store = open_block_store(tmp_path / "cache", verify="always", files=gate)
    store.commit(ONE, [block(1), block(2, after=1)])
    yield store
    store.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def stopped_at(
    gate: Gate, step: str, pool: ThreadPoolExecutor, act: Callable[[], object]
) -> Future[object]:
    gate.closed_at = step
    running = pool.submit(act)
    assert gate.reached.wait(60)
    return running


def test_reading_a_file_holds_up_nobody(
    store: SsdBlockStore, gate: Gate, pool: ThreadPoolExecutor
) -> None:
    reading = stopped_at(gate, "read", pool, lambda: store.read(ONE, key(1)))
    assert store.commit(ONE, [block(3, after=2)]).num_blocks == 1
    store.used(ONE, [key(3)])
    assert plain(store.read(ONE, key(3))) == plain(block(3)[1])
    assert store.shrink(store.num_bytes()) == []
    assert not reading.done()
    gate.go.set()
    assert plain(reading.result()) == plain(block(1)[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["write", "fsync", "fsync_folder", "committing"])
def test_a_commit_that_waits_for_the_disk_holds_up_no_reader(
    store: SsdBlockStore, gate: Gate, pool: ThreadPoolExecutor, step: str
) -> None:
    committing = stopped_at(gate, step, pool, lambda: store.commit(OTHER, [block(7)]))
    assert plain(store.read(ONE, key(2))) == plain(block(2)[1])
    store.used(ONE, [key(2)])
    assert store.num_bytes() > 0
    with pytest.raises(BlockLost, match="not kept"):
        store.read(OTHER, key(7))
    assert not committing.done()
    gate.go.set()
    committing.result()
    assert plain(store.read(OTHER, key(7))) == plain(block(7)[1])


def test_a_block_that_was_pruned_while_it_was_read_is_lost_without_a_report(
    store: SsdBlockStore, gate: Gate, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    reading = stopped_at(gate, "read", pool, lambda: store.read(ONE, key(2)))
    store.shrink(0)
    gate.go.set()
    with pytest.raises(BlockLost):
        reading.result()
    assert not caplog.records


def test_a_block_that_was_pruned_and_written_anew_while_it_was_read_is_read(
    store: SsdBlockStore, gate: Gate, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    read = gate.read

    def read_too_early(path: Path) -> bytes:
        store.shrink(0)
        try:
            return read(path)
        finally:
            gate.read = read  # type: ignore[method-assign]
            store.commit(ONE, [block(1), block(2, after=1)])

    gate.read = read_too_early  # type: ignore[method-assign]
    assert plain(store.read(ONE, key(2))) == plain(block(2)[1])
    assert len(store.known(ONE)) == 2


def test_a_file_that_a_reader_quarantines_while_it_is_shared_is_written_anew(
    store: SsdBlockStore, gate: Gate, tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    """The commit found the file there; before its transaction, a reader moved it away."""
    [path] = [
        path
        for path in (tmp_path / "cache" / "objects").rglob("*.safetensors")
        if (2).to_bytes(2, "little") * 600 in path.read_bytes()
    ]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    committing = stopped_at(gate, "write", pool, lambda: store.commit(OTHER, [block(9), block(2)]))
    with pytest.raises(BlockLost, match="damaged"):
        store.read(ONE, key(2))
    gate.go.set()
    committing.result()
    assert plain(store.read(OTHER, key(2))) == plain(block(2)[1])


def test_many_threads_see_right_blocks_or_none(store: SsdBlockStore) -> None:
    numbers = range(1, 40)
    wrong: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for number in numbers:
                try:
                    found = plain(store.read(ONE, key(number)))
                except BlockLost:
                    continue
                if found != plain(block(number)[1]):
                    wrong.append(number)

    def use() -> None:
        while not done.is_set():
            store.used(ONE, [key(number) for number in numbers])
            store.known(ONE)

    threads = [threading.Thread(target=read), threading.Thread(target=use)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            for number in numbers:
                store.commit(ONE, [block(number)])
                store.shrink(20_000)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and store.num_bytes() <= 20_000
