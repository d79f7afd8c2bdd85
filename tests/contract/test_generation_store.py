"""Every sentence of the port that keeps checkpoints, on the disk's adapter and on the double."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
from mlxbun.domain.packed_logprobs import LogprobLog, PackedLogprobs
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.steps import TokenLogprobs


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


def checkpoint(
    number: int, *token_ids: int, state: Sequence[int] = (), told: PackedLogprobs | None = None
) -> GenerationCheckpoint:
    parts = tuple(block(part)[0] for part in state)
    return GenerationCheckpoint(name(number), tuple(map(TokenId, token_ids)), parts, told)


def read(store: GenerationStore, number: int) -> tuple[GenerationCheckpoint, list[Any]] | None:
    """Return a checkpoint of ONE and its state in a form in which equal ones are equal."""
    loaded = store.load(ONE, name(number))
    return None if loaded is None else (loaded[0], list(map(plain, loaded[1])))


def state_of(*numbers: int) -> list[Any]:
    return [plain(block(number)[1]) for number in numbers]


def test_what_was_saved_is_loaded_as_it_was(store: GenerationStore) -> None:
    saved = checkpoint(1, 5, 6, 7, state=[1, 2])
    assert store.save(ONE, saved, [block(1), block(2)]).bytes_written > 0
    assert read(store, 1) == (saved, state_of(1, 2))


def test_a_checkpoint_needs_no_state(store: GenerationStore) -> None:
    saved = checkpoint(1, 5)
    assert store.save(ONE, saved) == Committed(0, 0)
    assert store.load(ONE, name(1)) == (saved, [])


def test_a_newer_one_takes_the_place_of_an_older_one_and_its_state(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=[1]), [block(1)])
    before = opened.blocks.num_bytes()
    store.save(ONE, checkpoint(1, 5, 6, state=[2]), [block(2)])
    assert read(store, 1) == (checkpoint(1, 5, 6, state=[2]), state_of(2))
    assert list(store.keys(ONE)) == [name(1)]
    assert [info.key for info in opened.blocks.known(ONE)] == [key(2)]
    assert opened.blocks.num_bytes() == before


def test_a_newer_one_may_say_something_else_altogether(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, 6, 7, state=[1, 2]), [block(1), block(2)])
    store.save(ONE, checkpoint(1, 9, state=[2]))
    assert read(store, 1) == (checkpoint(1, 9, state=[2]), state_of(2))
    assert [info.key for info in opened.blocks.known(ONE)] == [key(2)]


def test_a_newer_one_adds_to_what_is_there(opened: Opened) -> None:
    store = opened.store
    first = store.save(ONE, checkpoint(1, 5, state=[1]), [block(1)])
    second = store.save(ONE, checkpoint(1, 5, 6, state=[1, 2]), [block(2)], after=1)
    third = store.save(ONE, checkpoint(1, 5, 6, 7, state=[2, 3]), [block(3)], after=2)
    assert read(store, 1) == (checkpoint(1, 5, 6, 7, state=[2, 3]), state_of(2, 3))
    assert {info.key for info in opened.blocks.known(ONE)} == {key(2), key(3)}
    assert second.bytes_written == third.bytes_written == first.bytes_written


@given(
    st.lists(st.integers(0, 500).map(TokenId), min_size=1, max_size=30),
    st.data(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
def test_tokens_and_what_was_told_of_them_are_there_in_however_many_steps_they_came(
    store: GenerationStore, token_ids: list[TokenId], data: st.DataObject
) -> None:
    log = LogprobLog()
    for token_id in token_ids:
        top = tuple((TokenId(token_id + i), -0.25 * i) for i in range(token_id % 4))
        log.append(TokenLogprobs(-0.5 * token_id, top))
    told = log.packed()
    ends = data.draw(st.sets(st.integers(1, len(token_ids)))) | {len(token_ids)}
    after = 0
    for end in sorted(ends):
        so_far = LogprobLog()
        for one in told.unpacked()[:end]:
            so_far.append(one)
        store.save(ONE, checkpoint(1, *token_ids[:end], told=so_far.packed()), after=after)
        after = end
    assert read(store, 1) == (checkpoint(1, *token_ids, told=told), [])


@pytest.mark.parametrize("after", [1, 3])
def test_what_adds_to_something_else_than_is_there_is_refused(
    store: GenerationStore, after: int
) -> None:
    with pytest.raises(StoreFailed, match="not kept"):
        store.save(ONE, checkpoint(1, 5, 6, 7, 8), after=after)
    store.save(ONE, checkpoint(1, 5, 6))
    with pytest.raises(StoreFailed, match="not kept"):
        store.save(ONE, checkpoint(1, 5, 6, 7, 8), after=after)
    assert store.load(ONE, name(1)) == (checkpoint(1, 5, 6), [])


def test_state_that_is_neither_there_nor_new_is_refused(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=[1]), [block(1)])
    with pytest.raises(StoreFailed, match="not kept"):
        store.save(ONE, checkpoint(1, 5, 6, state=[2, 3]), [block(3)], after=1)
    assert read(store, 1) == (checkpoint(1, 5, state=[1]), state_of(1))
    assert [info.key for info in opened.blocks.known(ONE)] == [key(1)]


def test_a_newer_one_may_have_the_same_state(opened: Opened) -> None:
    """Equal contents are one file, which must not go with the block that it was of."""
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=[1]), [block(1)])
    same = block(2)[0], block(1)[1]
    store.save(ONE, checkpoint(1, 5, 6, state=[2]), [same], after=1)
    assert read(store, 1) == (checkpoint(1, 5, 6, state=[2]), state_of(1))


def test_a_save_that_fails_leaves_the_older_one(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5))
    orphan = GenerationCheckpoint(name(1), (TokenId(5), TokenId(6)), (block(2, after=9)[0],))
    with pytest.raises(StoreFailed, match="parent"):
        store.save(ONE, orphan, [block(2, after=9)])
    assert store.load(ONE, name(1)) == (checkpoint(1, 5), [])
    assert opened.blocks.num_bytes() == 0


def test_keys_begin_with_the_oldest(opened: Opened) -> None:
    store = opened.store
    for number in (1, 2, 3):
        opened.clock.at += 1
        store.save(ONE, checkpoint(number, 5))
    opened.clock.at += 1
    store.save(ONE, checkpoint(1, 5, 6))
    assert list(store.keys(ONE)) == [name(2), name(3), name(1)]


def test_checkpoints_of_other_namespaces_are_not_there(store: GenerationStore) -> None:
    store.save(ONE, checkpoint(1, 5))
    store.save(OTHER, checkpoint(1, 6))
    assert store.load(OTHER, name(1)) == (checkpoint(1, 6), [])
    store.drop(OTHER, [name(1)])
    assert store.load(OTHER, name(1)) is None
    assert store.load(ONE, name(1)) == (checkpoint(1, 5), [])


def test_what_is_not_kept_is_none(store: GenerationStore) -> None:
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == []


def test_dropping_forgets_the_state_too_and_ignores_what_is_unknown(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, state=[1]), [block(1)])
    store.save(ONE, checkpoint(2, 5, state=[2]), [block(2)])
    store.drop(ONE, [name(1), name(77)])
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == [name(2)]
    assert [info.key for info in opened.blocks.known(ONE)] == [key(2)]
    with pytest.raises(BlockLost):
        opened.blocks.read(ONE, key(1))


def test_a_checkpoint_whose_state_is_lost_comes_without_it(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, 6, state=[1]), [block(1)])
    opened.blocks.shrink(0)
    assert store.load(ONE, name(1)) == (checkpoint(1, 5, 6), [])
    store.save(ONE, checkpoint(1, 5, 6, 7, state=[2]), [block(2)])
    assert list(store.keys(ONE)) == [name(1)]


def test_a_damaged_checkpoint_is_none_and_then_not_there(opened: Opened) -> None:
    store = opened.store
    store.save(ONE, checkpoint(1, 5, 6, state=[1]), [block(1)])
    opened.damage(name(1))
    assert store.load(ONE, name(1)) is None
    assert list(store.keys(ONE)) == []
    assert opened.blocks.num_bytes() == 0


def test_the_oldest_go_until_the_rest_is_within_bounds(opened: Opened) -> None:
    store = opened.store
    for number in (1, 2, 3, 4):
        opened.clock.at += 10
        store.save(ONE, checkpoint(number, 5, state=[number]), [block(number)])
    size = checkpoint(1, 5, state=[1]).num_bytes
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
    store.save(ONE, checkpoint(1, 5))
    opened.fail()
    calls: list[Callable[[], object]] = [
        lambda: store.keys(ONE),
        lambda: store.save(ONE, checkpoint(2, 5, state=[1]), [block(1)]),
        lambda: store.drop(ONE, [name(1)]),
        lambda: store.prune(ONE, Bounds()),
    ]
    for call in calls:
        with pytest.raises(StoreFailed):
            call()
