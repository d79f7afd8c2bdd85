"""The layout `whole`: a chain is one file, beside blocks that have files of their own."""

from __future__ import annotations

import errno
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.blocks import ONE, OTHER, Block, block, key, plain
from doubles.files import FaultyFiles
from doubles.golden_blocks import COMMITS, DESCRIPTION
from mlxbun.adapters.ssd import whole
from mlxbun.adapters.ssd.container import NotABlock, encode
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import Layout, SsdBlockStore
from mlxbun.domain.blocks import BlockKey, BlockLost, StoreFailed

GOLDEN = Path(__file__).parents[2] / "golden" / "ssd-1-whole"

Open = Callable[..., SsdBlockStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    made: list[SsdBlockStore] = []

    def reopen(layout: Layout = "whole", **options: Any) -> SsdBlockStore:
        for store in made:
            store.close()
        made.append(open_block_store(tmp_path / "cache", layout=layout, **options))
        return made[-1]

    yield reopen
    for store in made:
        store.close()


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "cache/objects").rglob("*") if path.is_file())


def holds(store: SsdBlockStore, *blocks: Block) -> None:
    """Check that a store has blocks as they were committed."""
    for info, tensors in blocks:
        assert plain(store.read(ONE, info.key)) == plain(tensors)


CHAIN = [block(1), block(2, after=1), block(3, after=2)]


def test_a_conversation_is_one_file_written_anew_with_each_turn(
    opened: Open, tmp_path: Path
) -> None:
    store = opened()
    for number, one in enumerate(CHAIN, start=1):
        committed = store.commit(ONE, [one])
        assert committed.num_blocks == 1
        [file] = files(tmp_path)
        assert file.suffix == ".blocks" and file.stat().st_size == committed.bytes_written
        assert committed.bytes_written > number * 1200
    holds(store, *CHAIN)


def test_a_branch_takes_the_beginning_along_and_leaves_the_other_its_end(
    opened: Open, tmp_path: Path
) -> None:
    store = opened()
    store.commit(ONE, CHAIN)
    branch = block(4, after=2)
    store.commit(ONE, [branch])
    assert len(files(tmp_path)) == 2
    holds(store, *CHAIN, branch)
    store.used(ONE, [key(4)])
    store.shrink(store.num_bytes() - 1)
    assert len(files(tmp_path)) == 1, "the older file goes with its own end"
    holds(store, *CHAIN[:2], branch)


@pytest.mark.parametrize("layouts", list(itertools.product(("blocks", "whole"), repeat=3)))
def test_what_one_layout_wrote_the_other_reads_and_goes_on_from(
    opened: Open, tmp_path: Path, layouts: tuple[Layout, ...]
) -> None:
    for layout, one in zip(layouts, CHAIN, strict=True):
        opened(layout).commit(ONE, [one])
    for layout in ("blocks", "whole"):
        holds(opened(layout, verify="always"), *CHAIN)
    if layouts[-1] == "whole":
        assert len(files(tmp_path)) == 1


def test_two_ends_in_one_commit_have_a_file_each(opened: Open, tmp_path: Path) -> None:
    store = opened()
    ends = [block(4, after=2), block(5)]
    assert store.commit(ONE, [*CHAIN, *ends]).num_blocks == 5
    assert len(files(tmp_path)) == 3
    holds(store, *CHAIN, *ends)


def test_what_is_damaged_before_a_new_end_is_found_when_it_is_copied(
    opened: Open, tmp_path: Path
) -> None:
    store = opened(verify="never")
    store.commit(ONE, CHAIN[:2])
    [file] = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreFailed, match="damaged"):
        store.commit(ONE, [CHAIN[2]])
    assert store.known(ONE) == [] and files(tmp_path) == []
    assert store.commit(ONE, CHAIN).num_blocks == 3
    holds(store, *CHAIN)


@pytest.mark.parametrize("at", [0, 9, 100, -1])
def test_a_changed_byte_anywhere_is_found_by_verifying(
    opened: Open, tmp_path: Path, at: int
) -> None:
    store = opened()
    store.commit(ONE, CHAIN)
    assert store.verify_all(lambda *_: None).num_good == 1
    [file] = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    found = store.verify_all(lambda *_: None)
    assert (found.num_good, len(found.damaged), found.num_forgotten) == (0, 1, 3)
    with pytest.raises(BlockLost):
        store.read(ONE, key(1))


def test_a_file_that_was_cut_is_found_at_the_start(opened: Open, tmp_path: Path) -> None:
    opened().commit(ONE, [*CHAIN, block(8)])
    shortest = min(files(tmp_path), key=lambda path: path.stat().st_size)
    shortest.write_bytes(shortest.read_bytes()[:-8])
    assert [info.key for info in opened().known(ONE)] == [key(3), key(2), key(1)]


def test_a_full_disk_leaves_the_chain_as_it_was(opened: Open, tmp_path: Path) -> None:
    disk = FaultyFiles()
    store = opened(files=disk)
    store.commit(ONE, CHAIN[:2])
    before = files(tmp_path)
    disk.fail("write", OSError(errno.ENOSPC, "full"))
    with pytest.raises(StoreFailed):
        store.commit(ONE, [CHAIN[2]])
    disk.heal()
    assert files(tmp_path) == before
    holds(store, *CHAIN[:2])
    assert store.commit(ONE, [CHAIN[2]]).num_blocks == 1


def test_a_namespace_is_carried_from_one_layout_to_the_other(opened: Open, tmp_path: Path) -> None:
    store = opened()
    store.commit(ONE, CHAIN)
    store.describe(ONE, "words")
    store.export(ONE, tmp_path / "one.tar")
    other = open_block_store(tmp_path / "other")
    assert other.import_(tmp_path / "one.tar").num_blocks == 3
    holds(other, *CHAIN)
    other.export(ONE, tmp_path / "two.tar")
    other.close()
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert store.purge(ONE) == 3 and files(tmp_path) == []
    assert store.import_(tmp_path / "two.tar").num_blocks == 3
    holds(store, *CHAIN)


def test_each_part_of_a_file_is_one_that_other_tools_read(tmp_path: Path, opened: Open) -> None:
    opened().commit(ONE, CHAIN)
    [file] = files(tmp_path)
    data = file.read_bytes()
    for place, (_, tensors) in zip(whole.decode(data, file.stem), CHAIN, strict=True):
        part = tmp_path / "part.safetensors"
        part.write_bytes(data[place.at : place.at + place.num_bytes])
        loaded = mx.load(str(part))
        assert isinstance(loaded, dict)
        assert {n: tuple(a.shape) for n, a in loaded.items()} == {t.name: t.shape for t in tensors}


parts = st.lists(st.binary(min_size=2, max_size=40).filter(lambda b: len(b) % 2 == 0), max_size=5)


@given(parts, st.integers(0, 2000), st.integers(1, 255))
def test_a_list_says_where_its_parts_are_and_any_change_of_it_is_seen(
    datas: list[bytes], at: int, change: int
) -> None:
    files = [encode(block(1, data=data)[1]) for data in datas]
    told = [whole.Part(f.content, f.num_bytes, lambda f=f: f.parts) for f in files]  # type: ignore[misc]
    file, places = whole.encode(told)
    data = b"".join(file.parts)
    assert len(data) == file.num_bytes and whole.decode(data, file.content) == places
    for place, one in zip(places, files, strict=True):
        assert data[place.at : place.at + place.num_bytes] == b"".join(one.parts)
        assert place.at % 8 == 0
    head = places[0].at if places else len(data)
    changed = bytearray(data)
    changed[at % head] ^= change
    with pytest.raises(NotABlock):
        whole.decode(bytes(changed), file.content)
    with pytest.raises(NotABlock):
        whole.decode(data + b"\0", file.content)


Action = tuple[str, int, int]
actions = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 12), st.integers(1, 3)),
        st.tuples(st.sampled_from(["blocks", "whole"]), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.integers(0, 12), st.just(0)),
    ),
    max_size=14,
)


@given(actions)
@settings(max_examples=40, deadline=None)
def test_whatever_is_written_in_whichever_layout_is_read_as_it_was(script: list[Action]) -> None:
    folder = Path(tempfile.mkdtemp())
    store = open_block_store(folder, layout="whole", verify="always")
    model: dict[BlockKey, Block] = {}
    number = 0
    try:
        for what, after, length in script:
            if what == "commit":
                keys = [None, *range(1, number + 1)]
                parent = keys[after % len(keys)]
                if parent is not None and key(parent) not in model:
                    continue
                new: list[Block] = []
                for _ in range(length):
                    number += 1
                    new.append(block(number, parent, bytes([number % 4]) * (2 << number % 7)))
                    parent = number
                assert store.commit(ONE, new[::-1]).num_blocks == length
                model |= {one[0].key: one for one in new}
            elif what == "forget":
                gone = {key for _, key in store.shrink(store.num_bytes() * after // 12)}
                model = {key: one for key, one in model.items() if key not in gone}
            else:
                layout: Layout = "whole" if what == "whole" else "blocks"
                store.close()
                store = open_block_store(folder, layout=layout, verify="always")
            assert {info.key for info in store.known(ONE)} == set(model)
            for info, tensors in model.values():
                assert plain(store.read(ONE, info.key)) == plain(tensors)
            found = {path.stem for path in (folder / "objects").rglob("*.*")}
            assert found == set(store._manifest.objects()), "every file is needed"
        assert store.verify_all(lambda *_: None).damaged == {}
    finally:
        store.close()
        shutil.rmtree(folder)


def test_a_directory_of_whole_files_opens_and_holds_what_it_held(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "old")
    store = open_block_store(tmp_path / "old", verify="always")
    for namespace, blocks in COMMITS:
        assert {info.key: info for info in store.known(namespace)} == {
            info.key: info for info, _ in blocks
        }
        for info, tensors in blocks:
            assert plain(store.read(namespace, info.key)) == plain(tensors)
    assert [(one.namespace, one.description) for one in store.identities()] == [
        (ONE, DESCRIPTION),
        (OTHER, DESCRIPTION),
    ]
    assert store.commit(ONE, [block(4, after=3)]).num_blocks == 1
    store.close()


def test_whole_files_that_are_written_now_are_what_they_were_then(tmp_path: Path) -> None:
    store = open_block_store(tmp_path / "now", layout="whole")
    for namespace, blocks in COMMITS:
        store.commit(namespace, blocks)
    store.close()
    then, now = (
        {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*.blocks")}
        for home in (GOLDEN, tmp_path / "now")
    )
    assert then == now and len(then) == 3
