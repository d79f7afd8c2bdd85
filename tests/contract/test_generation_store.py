"""Every sentence of the port that keeps checkpoints, on the disk's adapter and on the double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from doubles.block_store import DictBlockStore
from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.generation_store import DictGenerations
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import BlockLost, BlockStore, Committed, StoreFailed
from mlxbun.domain.generation_checkpoint import (
    Bounds,
    GenerationCheckpoint,
    GenerationKey,
    GenerationStore,
)
from mlxbun.domain.sampling import TokenId


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


class Opened(Struct):
    """A store of checkpoints, that of blocks beside it, and ways to break them."""

    store: GenerationStore
    blocks: BlockStore
    clock: Clock
    damage: Callable[[GenerationKey], None]
    fail: Callable[[], None]


@pytest.fixture(params=["ssd", "double"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    clock = Clock()
    if request.param == "double":
        blocks = DictBlockStore(clock)
        double = DictGenerations(blocks, clock)

        def fail() -> None:
            blocks.failing = StoreFailed("the disk is gone")

        yield Opened(double, blocks, clock, lambda name: double.damage(ONE, name), fail)
        return
    ssd = open_block_store(tmp_path / "cache", now=clock)
    connections = ssd._manifest.connections  # pyright: ignore[reportPrivateUsage]

    def damage(name: GenerationKey) -> None:
        with connections.transaction() as db:
            db.execute(
                "UPDATE generations SET record = CAST(replace(record, '[', '[7,') AS BLOB)"
                " WHERE key = ?",
                (name,),
            )

    yield Opened(ssd.generations, ssd, clock, damage, connections.close)
    ssd.close()


@pytest.fixture
def store(opened: Opened) -> GenerationStore:
    return opened.store


def name(number: int) -> GenerationKey:
    return GenerationKey(f"{number:064x}")


def checkpoint(number: int, *token_ids: int, state: int | None = None) -> GenerationCheckpoint:
    info = block(state)[0] if state is not None else None
    return GenerationCheckpoint(name(number), tuple(map(TokenId, token_ids)), info)


def test_what_was_saved_is_loaded_as_it_was(store: GenerationStore) -> None:
    saved = checkpoint(1, 5, 6, 7, state=1)
    assert store.save(ONE, saved, block(1)[1]).bytes_written > 0
    loaded = store.load(ONE, name(1))
    assert loaded is not None and loaded[0] == saved
    assert plain(loaded[1]) == plain(block(1)[1])


def test_a_checkpoint_needs_no_state(store: GenerationStore) -> None:
    saved = checkpoint(1, 5)
    assert store.save(ONE, saved, ()) == Committed(0, 0)
    assert store.load(ONE, name(1)) == (saved, ())


def test_a_newer_one_takes_the_place_of_an_older_one_and_its_state(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=1), block(1)[1])
    before = opened.blocks.num_bytes()
    store.save(ONE, checkpoint(1, 5, 6, state=2), block(2)[1])
    loaded = store.load(ONE, name(1))
    assert loaded is not None and loaded[0].token_ids == (5, 6)
    assert plain(loaded[1]) == plain(block(2)[1])
    assert list(store.keys(ONE)) == [name(1)]
    assert [info.key for info in opened.blocks.known(ONE)] == [key(2)]
    assert opened.blocks.num_bytes() == before


def test_a_newer_one_may_have_the_same_state(opened: Opened) -> None:
    """Equal contents are one file, which must not go with the block that it was of."""
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=1), block(1)[1])
    store.save(ONE, checkpoint(1, 5, 6, state=2), block(1)[1])
    loaded = store.load(ONE, name(1))
    assert loaded is not None and plain(loaded[1]) == plain(block(1)[1])


def test_a_save_that_fails_leaves_the_older_one(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5), ())
    orphan = GenerationCheckpoint(name(1), (TokenId(5), TokenId(6)), block(2, after=9)[0])
    with pytest.raises(StoreFailed, match="parent"):
        store.save(ONE, orphan, block(2)[1])
    assert store.load(ONE, name(1)) == (checkpoint(1, 5), ())
    assert opened.blocks.num_bytes() == 0


def test_keys_begin_with_the_oldest(opened: Opened) -> None:
    store = opened.store
    for number in (1, 2, 3):
        opened.clock.at += 1
        store.save(ONE, checkpoint(number, 5), ())
    opened.clock.at += 1
    store.save(ONE, checkpoint(1, 5, 6), ())
    assert list(store.keys(ONE)) == [name(2), name(3), name(1)]


def test_checkpoints_of_other_namespaces_are_not_there(store: GenerationStore) -> None:
    store.save(ONE, checkpoint(1, 5), ())
    store.save(OTHER, checkpoint(1, 6), ())
    assert store.load(OTHER, name(1)) == (checkpoint(1, 6), ())
    store.drop(OTHER, [name(1)])
    assert store.load(OTHER, name(1)) is None
    assert store.load(ONE, name(1)) == (checkpoint(1, 5), ())


def test_what_is_not_kept_is_none(store: GenerationStore) -> None:
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == []


def test_dropping_forgets_the_state_too_and_ignores_what_is_unknown(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=1), block(1)[1])
    store.save(ONE, checkpoint(2, 5, state=2), block(2)[1])
    store.drop(ONE, [name(1), name(77)])
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == [name(2)]
    assert [info.key for info in opened.blocks.known(ONE)] == [key(2)]
    with pytest.raises(BlockLost):
        opened.blocks.read(ONE, key(1))


def test_a_checkpoint_whose_state_is_lost_comes_without_it(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, 6, state=1), block(1)[1])
    opened.blocks.shrink(0)
    assert store.load(ONE, name(1)) == (checkpoint(1, 5, 6), ())
    store.save(ONE, checkpoint(1, 5, 6, 7, state=2), block(2)[1])
    assert list(store.keys(ONE)) == [name(1)]


def test_a_damaged_checkpoint_is_none_and_then_not_there(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, 6, state=1), block(1)[1])
    opened.damage(name(1))
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == []
    assert opened.blocks.num_bytes() == 0


def test_the_oldest_go_until_the_rest_is_within_bounds(opened: Opened) -> None:
    store = opened.store
    for number in (1, 2, 3, 4):
        opened.clock.at += 10
        store.save(ONE, checkpoint(number, 5, state=number), block(number)[1])
    size = block(1)[0].num_bytes
    everything = Bounds(4, 4 * size, 30.0)
    assert list(store.prune(ONE, everything)) == []
    assert list(store.prune(ONE, Bounds(3, 4 * size, 30.0))) == [name(1)]
    assert list(store.prune(ONE, Bounds(3, 3 * size - 1, 30.0))) == [name(2)]
    opened.clock.at += 25
    assert list(store.prune(ONE, everything)) == [name(3)]
    assert list(store.keys(ONE)) == [name(4)]
    assert [info.key for info in opened.blocks.known(ONE)] == [key(4)]


def test_every_call_but_load_says_that_the_disk_failed(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5), ())
    opened.fail()
    calls: list[Callable[[], object]] = [
        lambda: store.keys(ONE),
        lambda: store.save(ONE, checkpoint(2, 5, state=1), block(1)[1]),
        lambda: store.drop(ONE, [name(1)]),
        lambda: store.prune(ONE, Bounds()),
    ]
    for call in calls:
        with pytest.raises(StoreFailed):
            call()
