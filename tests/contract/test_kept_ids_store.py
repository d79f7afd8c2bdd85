"""Every sentence of the port that keeps ids, on the disk's adapter and on the double."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from doubles.blocks import ONE, OTHER
from doubles.kept_ids_store import DictKeptIds
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import StoreFailed
from mlxbun.domain.kept_ids import Kept, KeptIds, KeptIdsStore, bounded, changed, kept_as


class Opened(Struct):
    """A store of kept ids, and ways to break it."""

    store: KeptIdsStore
    damage: Callable[[Kept], None]
    fail: Callable[[], None]


@pytest.fixture(params=["ssd", "double"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    if request.param == "double":
        double = DictKeptIds()
        yield Opened(double, lambda one: double.damage(ONE, one), double.fail)
        return
    ssd = open_block_store(tmp_path / "cache")
    connections = ssd._manifest.connections  # pyright: ignore[reportPrivateUsage]

    def damage(one: Kept) -> None:
        with connections.transaction() as db:
            db.execute(
                "UPDATE kept_ids SET ids = CAST(ids || x'01000000' AS BLOB) WHERE text = ?",
                (one.digest,),
            )

    yield Opened(ssd.kept_ids, damage, connections.close)
    ssd.close()


@pytest.fixture
def store(opened: Opened) -> KeptIdsStore:
    return opened.store


def kept(text: str, *ids: int) -> Kept:
    return kept_as(text, ids)


def test_what_was_saved_is_loaded_the_longest_ago_first(store: KeptIdsStore) -> None:
    first, second = kept("Häuser \x00", 1, 2, 3), kept("a boat", 2**32 - 1)
    third = kept("", 7)
    assert store.save(ONE, [first, second], []) == 12 + 4
    store.save(ONE, [third], [])
    assert list(store.load(ONE)) == [first, second, third]


def test_what_is_gone_goes_and_what_is_unknown_is_no_matter(store: KeptIdsStore) -> None:
    store.save(ONE, [kept("a", 1), kept("b", 2)], [])
    store.save(ONE, [kept("c", 3)], [kept("a", 1), kept("z", 9)])
    assert list(store.load(ONE)) == [kept("b", 2), kept("c", 3)]


def test_of_equal_texts_the_newer_is_kept(store: KeptIdsStore) -> None:
    store.save(ONE, [kept("a", 1), kept("b", 2)], [])
    store.save(ONE, [kept("a", 1, 2)], [])
    assert list(store.load(ONE)) == [kept("b", 2), kept("a", 1, 2)]


def test_texts_of_other_namespaces_are_not_there(store: KeptIdsStore) -> None:
    store.save(ONE, [kept("a", 1)], [])
    store.save(OTHER, [kept("a", 2)], [])
    store.save(OTHER, [], [kept("a", 1)])
    assert list(store.load(ONE)) == [kept("a", 1)]
    assert list(store.load(OTHER)) == []


def test_damaged_ids_are_left_out_and_then_not_there(opened: Opened) -> None:
    opened.store.save(ONE, [kept("a", 1), kept("b", 2)], [])
    opened.damage(kept("a", 1))
    assert list(opened.store.load(ONE)) == [kept("b", 2)]
    assert list(opened.store.load(ONE)) == [kept("b", 2)]


def test_every_call_says_that_the_disk_failed(opened: Opened) -> None:
    opened.store.save(ONE, [kept("a", 1)], [])
    opened.fail()
    with pytest.raises(StoreFailed):
        opened.store.save(ONE, [kept("b", 2)], [])
    with pytest.raises(StoreFailed):
        opened.store.load(ONE)


TEXTS = st.lists(st.builds(kept, st.sampled_from("abcdef"), st.integers(0, 3)), max_size=6)


@given(st.lists(TEXTS, max_size=8))
def test_saving_what_changed_saves_what_there_is(lists: list[list[Kept]]) -> None:
    store, durable = DictKeptIds(), KeptIds()
    for texts in lists:
        wanted = bounded(texts)
        store.save(ONE, *changed(durable, wanted))
        durable = wanted
        assert as_dict(store.load(ONE)) == as_dict(wanted.texts)


def as_dict(texts: Sequence[Kept]) -> dict[str, Kept]:
    assert len({one.digest for one in texts}) == len(texts)
    return {one.digest: one for one in texts}
