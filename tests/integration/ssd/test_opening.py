"""Whose a directory is, which form it has, and what is never touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.blocks import ONE, block, key, plain
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.ownership import StoreBusy
from mlxbun.domain.blocks import StoreFailed

HOLDER = """
import sys
from pathlib import Path
from mlxbun.adapters.ssd.opening import open_block_store
store = open_block_store(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_what_was_committed_is_there_after_opening_anew(tmp_path: Path) -> None:
    store = open_block_store(tmp_path / "a" / "cache")
    store.commit(ONE, [block(1), block(2, after=1)])
    known, num_bytes = store.known(ONE), store.num_bytes()
    store.close()
    store = open_block_store(tmp_path / "a" / "cache")
    assert store.known(ONE) == known and store.num_bytes() == num_bytes
    assert plain(store.read(ONE, key(2))) == plain(block(2)[1])
    store.close()


def test_a_second_process_is_told_who_has_the_directory_and_gets_it_when_that_dies(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"open\n"
        with pytest.raises(StoreBusy, match=f"is in use by process {holder.pid} ") as busy:
            open_block_store(tmp_path)
        assert isinstance(busy.value, StoreFailed)
        assert busy.value.holder.startswith(f"process {holder.pid} (")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    open_block_store(tmp_path).close()


def test_one_process_opens_a_directory_once(tmp_path: Path) -> None:
    store = open_block_store(tmp_path)
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
        open_block_store(tmp_path)
    store.close()
    open_block_store(tmp_path).close()


def test_a_newer_form_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("mlxbun-ssd 2\n")
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "new").write_text("of the future")
    with pytest.raises(StoreFailed, match="has format 2, and this mlxbun reads 1"):
        open_block_store(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["format", "new", "staging"]


@pytest.mark.parametrize("words", ["", "some words", "mlxbun-ssd x", "\xff"])
def test_a_format_that_is_none_is_refused(tmp_path: Path, words: str) -> None:
    (tmp_path / "format").write_text(words, encoding="latin-1")
    with pytest.raises(StoreFailed, match="is not a block store's"):
        open_block_store(tmp_path)


def test_a_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreFailed, match="holds objects and is no block store"):
        open_block_store(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["objects", "thesis.txt"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="cannot be used"):
        open_block_store(tmp_path / "file")


def test_only_the_owner_may_look_inside(tmp_path: Path) -> None:
    store = open_block_store(tmp_path / "cache")
    store.commit(ONE, [block(1)])
    paths = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert len(paths) > 8 and all(path.stat().st_mode & 0o077 == 0 for path in paths)
    store.close()


def test_the_manifests_are_kept_so_that_a_power_cut_takes_nothing(tmp_path: Path) -> None:
    store = open_block_store(tmp_path)
    connection = store._manifest.connections._write.conn
    pragmas = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
    }
    full = 2
    assert pragmas == {
        "journal_mode": "wal", "synchronous": full, "fullfsync": 1, "checkpoint_fullfsync": 1,
    }  # fmt: skip
    store.close()
