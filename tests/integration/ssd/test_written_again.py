"""A disk that is full, fails and works again, under an engine: what it refused is written later."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from doubles.compute import ScriptedCompute
from doubles.files import FaultyFiles
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.application.backoff import Backoff
from mlxbun.domain.kept_ids import KeptIds, kept_as
from tier_driver import SECONDS, SPACE, Process

PROMPT = tuple(range(3, 3 + 6 * 256 + 1))
OTHER = tuple(range(9, 9 + 6 * 256 + 1))
FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")
KEPT = KeptIds((kept_as("a text", [1, 2, 3]),))


class Healing(FaultyFiles):
    """A disk that tells when it was tried while it failed."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = threading.Condition()
        self.num_failed = 0

    def step(self, name: str) -> None:
        try:
            super().step(name)
        except OSError:
            with self.tried:
                self.num_failed += 1
                self.tried.notify_all()
            raise

    def await_failures(self, number: int) -> None:
        with self.tried:
            assert self.tried.wait_for(lambda: self.num_failed >= number, SECONDS)


def begun(tmp_path: Path, again: Backoff, files: FaultyFiles, ram_bytes: int = 1 << 30) -> Process:
    return Process(tmp_path / "ssd", ScriptedCompute, again=again, files=files, ram_bytes=ram_bytes)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "mlxbun.persistence"]


@pytest.mark.parametrize("step", ["create", "write", "fsync", "rename", "committing"])
def test_an_idle_server_writes_what_was_refused_once_it_can(
    tmp_path: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = Healing()
    process = begun(tmp_path, Backoff(0.001, 0.01), files)
    files.fail(step, FULL, times=10**9)
    process.ask(PROMPT)
    files.await_failures(3)
    files.fail(step, BROKEN, times=10**9)
    files.await_failures(files.num_failed + 3)
    assert process.ask(PROMPT).reused, "requests go on with what RAM has"
    files.heal()
    assert process.disk is not None
    while process.disk.flush(SECONDS).missing_blocks:
        pass
    report = process.disk.flush(SECONDS)
    assert report.durable and report.entries == 6 == report.written_blocks
    process.stop()
    assert [sentence.rpartition(": ")[2] for sentence in said(caplog)] == [
        "No space left on device", "Input/output error", "the disk takes blocks again"
    ]  # fmt: skip
    store = open_block_store(tmp_path / "ssd", verify="always")
    assert len(store.known(SPACE)) == 6 and not store.verify_all(lambda *_: None).damaged
    store.close()


def test_kept_ids_that_were_refused_are_written_once_they_can_be(tmp_path: Path) -> None:
    files = Healing()
    process = begun(tmp_path, Backoff(0.001, 0.01), files)
    assert process.disk is not None
    files.fail("committing", FULL, times=10**9)
    process.ask(PROMPT)
    process.disk.keep(KEPT)
    files.await_failures(5)
    report = process.flush()
    assert (report.durable, report.pending_texts) == (False, 1)
    files.heal()
    while not process.flush().durable:
        pass
    process.stop()
    store = open_block_store(tmp_path / "ssd")
    assert KeptIds(tuple(store.kept_ids.load(SPACE))) == KEPT
    store.close()


def test_a_disk_that_stays_full_is_tried_rarely_and_by_one_block(tmp_path: Path) -> None:
    files = Healing()
    process = begun(tmp_path, Backoff(1e9, 1e9), files)
    files.fail("create", FULL, times=10**9)
    process.ask(PROMPT)
    process.ask(OTHER)
    assert process.disk is not None
    process.flush()
    before = files.num_failed
    for number in (1, 2, 3):
        assert not process.flush().durable
        assert files.num_failed == before + number, "one file each time"
    assert files.counts["create"] == files.num_failed + 1, "and one for the format"
    process.stop()


def test_what_leaves_ram_while_the_disk_fails_is_lost_as_ever(tmp_path: Path) -> None:
    files = Healing()
    size = _sizes(tmp_path / "scratch")[0]
    process = begun(tmp_path, Backoff(1e9, 1e9), files, ram_bytes=6 * size)
    files.fail("create", FULL, times=10**9)
    process.ask(PROMPT)
    process.ask(OTHER)
    process.flush()
    files.heal()
    report = process.flush()
    assert not report.durable and 0 < report.missing_blocks < 12
    assert report.entries + report.missing_blocks == 12
    assert process.ask(OTHER).reused and process.ask(PROMPT).reason == "length"
    process.stop()


def _sizes(folder: Path) -> list[int]:
    process = Process(folder, ScriptedCompute)
    process.ask(PROMPT)
    assert process.prefixes is not None
    process.stop()
    return [block.info.num_bytes for block in process.prefixes.blocks.state.blocks.values()]


@pytest.mark.parametrize("heals", [True, False])
def test_what_was_refused_is_tried_once_more_before_the_engine_ends(
    tmp_path: Path, heals: bool
) -> None:
    files = Healing()
    process = begun(tmp_path, Backoff(1e9, 1e9), files)
    assert process.disk is not None
    process.disk.try_again(SECONDS)
    assert not files.num_failed, "nothing was refused yet"
    files.fail("create", FULL, times=10**9)
    process.ask(PROMPT)
    assert not process.flush().durable
    if heals:
        files.heal()
    process.disk.try_again(SECONDS)
    report = process.stop()
    assert report is not None and report.durable == heals
    assert report.missing_blocks == (0 if heals else 6)
