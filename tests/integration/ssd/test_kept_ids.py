"""Kept ids on a disk that is full, that fails between two steps, and that is purged."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from doubles.blocks import ONE, OTHER, block
from doubles.files import FaultyFiles
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore
from mlxbun.domain.blocks import StoreFailed
from mlxbun.domain.kept_ids import kept_as

TEXT = "the harbour master's word"
OLD = kept_as("an old text", [1, 2, 3])
NEW = kept_as(TEXT, range(4000))  # pages of its own


def opened(
    tmp_path: Path, files: FaultyFiles | None = None, budget: int | None = None
) -> SsdBlockStore:
    return open_block_store(tmp_path / "cache", files=files, daily_budget_bytes=budget)


def test_texts_come_back_in_the_next_process_and_count_as_written(tmp_path: Path) -> None:
    store = opened(tmp_path)
    num_bytes = store.kept_ids.save(ONE, [OLD, NEW], [])
    store.close()
    store = opened(tmp_path)
    assert list(store.kept_ids.load(ONE)) == [OLD, NEW]
    assert store.bytes_written_today == num_bytes == 12 + 16_000
    store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_save_that_fails_changes_nothing(tmp_path: Path, number: int) -> None:
    files = FaultyFiles()
    store = opened(tmp_path, files)
    store.kept_ids.save(ONE, [OLD], [])
    files.fail("committing", OSError(number, "no"))
    with pytest.raises(StoreFailed) as failed:
        store.kept_ids.save(ONE, [NEW], [OLD])
    assert failed.value.errno == number
    assert list(store.kept_ids.load(ONE)) == [OLD]
    store.kept_ids.save(ONE, [NEW], [OLD])
    store.close()
    store = opened(tmp_path)
    assert list(store.kept_ids.load(ONE)) == [NEW]
    store.close()


def test_a_full_file_system_is_said_by_its_number(tmp_path: Path) -> None:
    store = opened(tmp_path)
    write = store._manifest.connections._write.conn  # pyright: ignore[reportPrivateUsage]
    pages = write.execute("PRAGMA page_count").fetchone()[0]
    write.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StoreFailed) as failed:
        store.kept_ids.save(ONE, [NEW], [])
    assert failed.value.errno == errno.ENOSPC
    assert list(store.kept_ids.load(ONE)) == []
    write.execute("PRAGMA max_page_count = 1000000")
    store.kept_ids.save(ONE, [NEW], [])
    assert list(store.kept_ids.load(ONE)) == [NEW]
    store.close()


def test_texts_count_towards_the_day_s_budget(tmp_path: Path) -> None:
    store = opened(tmp_path, budget=1000)
    store.kept_ids.save(ONE, [OLD], [])
    with pytest.raises(StoreFailed, match="daily write budget of 1000 bytes: 12 are written"):
        store.kept_ids.save(ONE, [NEW], [OLD])
    store.kept_ids.save(ONE, [], [OLD])
    assert list(store.kept_ids.load(ONE)) == []
    store.close()


def test_purging_leaves_no_id_of_a_text_on_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(ONE, [block(1)])
    store.kept_ids.save(ONE, [NEW], [])
    store.kept_ids.save(ONE, [OLD], [NEW])
    store.kept_ids.save(OTHER, [OLD], [])
    assert holders(tmp_path), "deleted rows stay in free pages, until"
    assert store.purge(ONE) == 1
    assert not holders(tmp_path)
    assert list(store.kept_ids.load(ONE)) == []
    assert list(store.kept_ids.load(OTHER)) == [OLD]
    store.close()


def holders(home: Path) -> list[Path]:
    files = (path for path in home.rglob("*") if path.is_file())
    ids = NEW.ids[100:200].tobytes()
    return [path for path in files if ids in path.read_bytes()]


def test_a_purge_without_room_to_write_the_file_anew_is_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    store.kept_ids.save(ONE, [OLD], [])

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store._manifest.connections, "compact", full)  # pyright: ignore[reportPrivateUsage]
    assert store.purge(None) == 0
    assert list(store.kept_ids.load(ONE)) == [] and list(store.identities()) == []
    assert "may still be in the file" in caplog.text
    store.close()


def test_the_folder_holds_no_text(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.kept_ids.save(ONE, [NEW], [])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(TEXT.encode() in path.read_bytes() for path in files)
    store.close()


def test_kept_ids_are_carried_with_the_blocks_that_they_name(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(ONE, [block(1)])
    store.kept_ids.save(ONE, [OLD, NEW], [])
    store.kept_ids.save(OTHER, [OLD], [])
    store.export(ONE, tmp_path / "one.tar")
    store.close()
    there = open_block_store(tmp_path / "there")
    mine = kept_as("an old text", [7])
    there.kept_ids.save(ONE, [mine], [])
    for _ in range(2):
        there.import_(tmp_path / "one.tar")
        assert list(there.kept_ids.load(ONE)) == [mine, NEW], "what is here stays"
    assert list(there.kept_ids.load(OTHER)) == []
    there.close()


def test_an_archive_with_other_ids_than_it_says_is_refused_as_a_whole(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.commit(ONE, [block(1)])
    store.kept_ids.save(ONE, [OLD], [])
    path = tmp_path / "one.tar"
    store.export(ONE, path)
    store.close()
    data = path.read_bytes()
    assert data.count(b"AQAAAAIAAAADAAAA") == 1, "1, 2, 3"
    path.write_bytes(data.replace(b"AQAAAAIAAAADAAAA", b"AQAAAAIAAAAEAAAA"))
    there = open_block_store(tmp_path / "there")
    with pytest.raises(StoreFailed, match="keeps other ids than it says"):
        there.import_(path)
    assert list(there.kept_ids.load(ONE)) == [] and list(there.known(ONE)) == []
    there.close()
