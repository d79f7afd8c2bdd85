"""Every sentence of the port that keeps blocks, on the disk's adapter and on the double."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doubles.block_store import DictBlockStore
from doubles.blocks import ONE, OTHER, block, key, plain
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import Layout, SsdBlockStore
from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockLost,
    BlockStore,
    Committed,
    Namespace,
    StoreFailed,
    Tensor,
)


def keys(store: BlockStore, namespace: Namespace = ONE) -> list[BlockKey]:
    return [info.key for info in store.known(namespace)]


def damage_on_disk(folder: Path, number: int) -> None:
    """Change one byte of a block's data in the one file that has it."""
    sought = number.to_bytes(2, "little") * 600
    files = [path for path in (folder / "objects").rglob("*.*") if sought in path.read_bytes()]
    [path] = files
    data = bytearray(path.read_bytes())
    data[data.index(sought)] ^= 1
    path.write_bytes(data)


class Opened:
    """A store, how to damage a block in it, and how to have its disk fail."""

    def __init__(
        self,
        store: BlockStore,
        damage: Callable[[int], None],
        fail: Callable[[], None],
        *,
        whole: bool = False,
    ) -> None:
        self.store, self.damage, self.fail = store, damage, fail
        self.whole = whole  # a chain is one file, so that it is damaged and forgotten as one


@pytest.fixture(params=["blocks", "whole", "double"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    clock = itertools.count(1000.0)
    if request.param == "double":
        double = DictBlockStore(clock.__next__)

        def fail() -> None:
            double.failing = StoreFailed("the disk is gone")

        yield Opened(double, lambda number: double.damage(ONE, key(number)), fail)
        return
    folder = tmp_path / "cache"
    layout: Layout = request.param
    store: SsdBlockStore = open_block_store(folder, now=clock.__next__, layout=layout)

    def break_manifests() -> None:
        store._manifest.connections.close()  # pyright: ignore[reportPrivateUsage]

    whole = layout == "whole"
    yield Opened(store, lambda n: damage_on_disk(folder, n), break_manifests, whole=whole)
    store.close()


@pytest.fixture
def store(opened: Opened) -> BlockStore:
    return opened.store


def test_what_was_committed_is_read_as_it_was(store: BlockStore) -> None:
    first, second = block(1), block(2, after=1)
    assert store.commit(ONE, [first, second]).num_blocks == 2
    assert plain(store.read(ONE, key(1))) == plain(first[1])
    assert plain(store.read(ONE, key(2))) == plain(second[1])


def test_what_is_known_of_a_block_is_what_was_said_of_it(store: BlockStore) -> None:
    boundary = BlockInfo(key(9), None, "boundary", 0, 300, 5)
    after = BlockInfo(key(8), key(2), "boundary", 3 * BLOCK, 0, 5)
    store.commit(ONE, [block(1), (boundary, block(9)[1]), block(2, after=1), (after, block(8)[1])])
    assert {info.key: info for info in store.known(ONE)} == {
        key(1): block(1)[0],
        key(2): block(2, after=1)[0],
        key(9): boundary,
        key(8): after,
    }


def test_a_boundary_is_kept_after_its_blocks_and_leaves_before_them(store: BlockStore) -> None:
    boundary = (BlockInfo(key(9), key(2), "boundary", 3 * BLOCK, 40, 5), block(9)[1])
    with pytest.raises(StoreFailed):
        store.commit(ONE, [boundary])
    assert store.known(ONE) == []
    store.commit(ONE, [block(1), block(2, after=1)])
    size = store.num_bytes()
    store.commit(ONE, [boundary])
    assert store.shrink(size)[0] == (ONE, key(9))


def test_all_types_and_shapes_come_back(store: BlockStore) -> None:
    tensors = [
        Tensor("a", "U8", (3,), b"abc"),
        Tensor("scalar", "F32", (), bytes(4)),
        Tensor("empty", "F16", (0, 4), b""),
        Tensor("ключ", "U32", (2, 1), bytearray(range(8))),
        Tensor("view", "I64", (1, 1), memoryview(bytes(range(8)))),
    ]
    store.commit(ONE, [(block(1)[0], tensors)])
    assert plain(store.read(ONE, key(1))) == plain(tensors)


def test_blocks_that_are_visible_already_are_skipped(store: BlockStore) -> None:
    store.commit(ONE, [block(1)])
    again = store.commit(ONE, [block(1, data=b"other!"), block(2, after=1)])
    assert again.num_blocks == 1
    assert store.commit(ONE, [block(1), block(2, after=1)]) == Committed(0, 0)
    assert plain(store.read(ONE, key(1))) == plain(block(1)[1])


def test_a_block_that_is_named_twice_is_kept_once(store: BlockStore) -> None:
    assert store.commit(ONE, [block(1), block(1, data=b"other!")]).num_blocks == 1
    assert plain(store.read(ONE, key(1))) == plain(block(1)[1])


def test_equal_contents_are_written_and_counted_once(store: BlockStore) -> None:
    written = store.commit(ONE, [block(1, data=b"same"), block(2, data=b"same")]).bytes_written
    assert store.num_bytes() == written > 0
    assert store.commit(OTHER, [block(3, data=b"same")]) == Committed(1, 0)
    assert store.num_bytes() == written


def test_bytes_written_are_those_of_new_files(opened: Opened) -> None:
    store = opened.store
    first = store.commit(ONE, [block(1)]).bytes_written
    second = store.commit(ONE, [block(1), block(2, after=1)]).bytes_written
    if opened.whole:  # the second file has all that the first had
        assert second > 1.8 * first and store.num_bytes() == second
    else:
        assert first == second and store.num_bytes() == first + second


def test_a_parent_may_stand_after_its_child(store: BlockStore) -> None:
    assert store.commit(ONE, [block(3, after=2), block(2, after=1), block(1)]).num_blocks == 3
    assert sorted(keys(store)) == [key(1), key(2), key(3)]


def test_a_block_without_its_parent_keeps_all_of_its_commit_out(store: BlockStore) -> None:
    with pytest.raises(StoreFailed, match="parent"):
        store.commit(ONE, [block(1), block(3, after=2)])
    assert keys(store) == [] and store.num_bytes() == 0
    with pytest.raises(BlockLost):
        store.read(ONE, key(1))
    assert store.commit(ONE, [block(1)]).num_blocks == 1


def test_a_parent_in_another_namespace_is_none(store: BlockStore) -> None:
    store.commit(OTHER, [block(1)])
    with pytest.raises(StoreFailed, match="parent"):
        store.commit(ONE, [block(2, after=1)])


def test_blocks_of_other_namespaces_are_not_there(store: BlockStore) -> None:
    store.commit(ONE, [block(1)])
    store.commit(OTHER, [block(1, data=b"other!")])
    with pytest.raises(BlockLost):
        store.read(OTHER, key(2))
    assert plain(store.read(ONE, key(1))) == plain(block(1)[1])
    assert plain(store.read(OTHER, key(1))) == plain(block(1, data=b"other!")[1])
    assert keys(store) == keys(store, OTHER) == [key(1)]


def test_a_block_that_was_never_kept_is_lost(store: BlockStore) -> None:
    with pytest.raises(BlockLost):
        store.read(ONE, key(1))
    assert keys(store) == []


def test_a_damaged_block_is_lost_with_all_after_it_and_then_not_known(opened: Opened) -> None:
    store = opened.store
    chain = [block(1), block(2, after=1), block(3, after=2), block(4)]
    store.commit(ONE, chain)
    opened.damage(2)
    with pytest.raises(BlockLost, match="damaged"):
        store.read(ONE, key(2))
    assert sorted(keys(store)) == ([key(4)] if opened.whole else [key(1), key(4)])
    with pytest.raises(BlockLost):
        store.read(ONE, key(3))
    assert store.commit(ONE, chain).num_blocks == (3 if opened.whole else 2)
    assert [plain(store.read(ONE, info.key)) for info, _ in chain] == [plain(t) for _, t in chain]


def test_a_damaged_file_takes_the_blocks_of_others_that_share_it(opened: Opened) -> None:
    store = opened.store
    store.commit(ONE, [block(1)])
    store.commit(OTHER, [(block(8)[0], block(1)[1]), block(9, after=8), block(7)])
    if opened.whole:
        pytest.skip("two chains share no file")
    opened.damage(1)
    with pytest.raises(BlockLost, match="damaged"):
        store.read(ONE, key(1))
    assert keys(store, OTHER) == [key(7)]
    assert plain(store.read(OTHER, key(7))) == plain(block(7)[1])


def test_known_begins_with_the_least_recently_used(store: BlockStore) -> None:
    for number in (1, 2, 3):
        store.commit(ONE, [block(number)])
    store.used(ONE, [key(1)])
    assert keys(store) == [key(2), key(3), key(1)]
    store.used(ONE, [key(2), key(77)])
    assert keys(store) == [key(3), key(1), key(2)]


def test_what_is_before_a_used_block_is_used_with_it(store: BlockStore) -> None:
    store.commit(ONE, [block(1)])
    store.commit(ONE, [block(2, after=1)])
    store.commit(ONE, [block(8)])
    store.used(ONE, [key(2)])
    assert keys(store) == [key(8), key(2), key(1)]
    store.commit(ONE, [block(9)])
    store.commit(ONE, [block(3, after=2)])
    assert keys(store) == [key(8), key(9), key(3), key(2), key(1)]


def test_shrinking_forgets_the_least_recently_used_until_it_fits(store: BlockStore) -> None:
    size = store.commit(ONE, [block(1)]).bytes_written
    store.commit(OTHER, [block(2)])
    store.commit(ONE, [block(3)])
    store.used(ONE, [key(1)])
    assert store.shrink(3 * size) == []
    assert store.shrink(3 * size - 1) == [(OTHER, key(2))]
    assert store.num_bytes() == 2 * size
    assert keys(store) == [key(3), key(1)] and keys(store, OTHER) == []
    with pytest.raises(BlockLost):
        store.read(OTHER, key(2))


def test_shrinking_takes_children_before_parents(opened: Opened) -> None:
    store = opened.store
    size = store.commit(ONE, [block(3, after=2), block(1), block(2, after=1)]).bytes_written // 3
    gone = [*store.shrink(2 * size)]
    assert len(gone) == (3 if opened.whole else 1)
    assert [*gone, *store.shrink(0)] == [(ONE, key(3)), (ONE, key(2)), (ONE, key(1))]
    assert store.num_bytes() == 0


def test_a_file_that_somebody_needs_survives_the_block_that_brought_it(store: BlockStore) -> None:
    store.commit(ONE, [block(1, data=b"same")])
    size = store.num_bytes()
    store.commit(OTHER, [block(2, data=b"same")])
    store.commit(ONE, [block(3, data=b"more")])
    assert store.shrink(size) == [(ONE, key(1)), (OTHER, key(2))]
    store.commit(ONE, [block(5, data=b"more")])
    store.used(ONE, [key(5)])
    assert store.shrink(size) == []
    assert plain(store.read(ONE, key(3))) == plain(store.read(ONE, key(5)))


def test_when_the_disk_fails_every_call_says_so_and_a_read_finds_nothing(opened: Opened) -> None:
    store = opened.store
    store.commit(ONE, [block(1)])
    opened.fail()
    with pytest.raises(StoreFailed):
        store.commit(ONE, [block(2)])
    with pytest.raises(StoreFailed):
        store.known(ONE)
    with pytest.raises(StoreFailed):
        store.shrink(0)
    with pytest.raises(StoreFailed):
        store.num_bytes()
    with pytest.raises(BlockLost):
        store.read(ONE, key(2))


def test_a_closed_store_keeps_nothing_and_closing_twice_is_fine(store: BlockStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreFailed):
        store.commit(ONE, [block(1)])


def test_how_fast_prompts_were_read_is_noted_of_each_namespace(opened: Opened) -> None:
    store = opened.store
    assert store.prefill_rate(ONE) == 0.0
    store.note_prefill_rate(ONE, 123.5)
    store.note_prefill_rate(ONE, 250.25)
    assert (store.prefill_rate(ONE), store.prefill_rate(OTHER)) == (250.25, 0.0)
    assert not store.known(ONE)
