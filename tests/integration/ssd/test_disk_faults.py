"""A disk that is full, broken, read-only or tampered with: no wrong state, each fault told once."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.files import FaultyFiles
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore
from mlxbun.domain.blocks import BlockKey, BlockLost, StoreFailed, Tensor

CHAIN = [block(1), block(2, after=1), block(3, after=2)]
FULL = OSError(errno.ENOSPC, "No space left on device")
BROKEN = OSError(errno.EIO, "Input/output error")


class Disk:
    """A store on a faulty disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, FaultyFiles()
        self.store = self.open()

    def open(self) -> SsdBlockStore:
        return open_block_store(self.folder, verify="always", files=self.files)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def stored(self) -> list[Path]:
        return sorted(path for path in (self.folder / "objects").rglob("*") if path.is_file())

    def aside(self) -> list[str]:
        return [path.name for path in (self.folder / "staging").iterdir()]

    def quarantined(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "quarantine").iterdir())

    def keys(self) -> list[BlockKey]:
        return sorted(info.key for info in self.store.known(ONE))

    def path(self, number: int) -> Path:
        [path] = [p for p in self.stored() if number.to_bytes(2, "little") * 600 in p.read_bytes()]
        return path


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "cache")
    yield disk
    disk.files.heal()
    disk.store.close()


WRITING = ("make_folder", "create", "write", "fsync", "close", "rename", "fsync_folder")


@pytest.mark.parametrize("fault", [FULL, BROKEN], ids=["full", "broken"])
@pytest.mark.parametrize("step", [*WRITING, "num_bytes", "committing"])
def test_a_commit_that_cannot_be_kept_leaves_nothing_and_a_later_one_succeeds(
    disk: Disk, step: str, fault: OSError
) -> None:
    disk.store.commit(ONE, [block(9)])
    before = disk.stored()
    after = 0
    for after in range(100):
        disk.files.fail(step, fault, after=after)
        if not _fails(lambda: disk.store.commit(ONE, CHAIN), fault):
            break
        disk.files.heal()
        assert disk.keys() == [key(9)]
        assert disk.stored() == before and disk.aside() == []
    assert 0 < after < 100
    assert [plain(disk.store.read(ONE, i.key)) for i, _ in CHAIN] == [plain(t) for _, t in CHAIN]


def _fails(act: Callable[[], object], fault: OSError) -> bool:
    try:
        act()
    except StoreFailed as error:
        assert error.errno == fault.errno and (fault.strerror or "") in str(error)
        return True
    return False


def test_a_disk_that_stays_full_never_shows_anything(disk: Disk) -> None:
    disk.files.fail("write", FULL, after=1, times=10**6)
    disk.files.fail("unlink", BROKEN, times=10**6)
    for _ in range(3):
        with pytest.raises(StoreFailed):
            disk.store.commit(ONE, CHAIN)
    assert disk.keys() == [] and disk.store.num_bytes() == 0
    disk.files.heal()
    disk.reopen()
    assert disk.stored() == [] and disk.aside() == [] and disk.keys() == []


def test_short_writes_are_continued(disk: Disk) -> None:
    disk.files.largest_write = 7
    disk.store.commit(ONE, CHAIN)
    assert disk.files.counts["write"] > 3 * 1200 / 7
    assert plain(disk.store.read(ONE, key(2))) == plain(CHAIN[1][1])


def test_a_disk_that_takes_nothing_ends_the_commit(disk: Disk) -> None:
    disk.files.largest_write = 0
    with pytest.raises(StoreFailed, match="takes no more bytes"):
        disk.store.commit(ONE, CHAIN)
    assert disk.stored() == [] and disk.aside() == []


def test_manifests_without_space_leave_nothing_and_a_later_commit_succeeds(disk: Disk) -> None:
    connection = disk.store._manifest.connections._write.conn
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    many = [block(1), *(block(n, after=n - 1) for n in range(2, 200))]
    with pytest.raises(StoreFailed, match="full") as failed:
        disk.store.commit(ONE, many)
    assert failed.value.errno == errno.ENOSPC
    assert disk.keys() == [] and disk.stored() == []
    connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert disk.store.commit(ONE, many).num_blocks == len(many)


def test_manifests_that_cannot_be_written_fail_every_write_and_no_read(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.store._manifest.connections._write.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreFailed):
        disk.store.commit(ONE, [block(4)])
    with pytest.raises(StoreFailed):
        disk.store.shrink(0)
    assert plain(disk.store.read(ONE, key(1))) == plain(CHAIN[0][1])
    _flip(disk.path(2))
    for _ in range(3):
        with pytest.raises(BlockLost, match="damaged"):
            disk.store.read(ONE, key(2))
    assert len(caplog.records) == 1 and "not forgotten" in caplog.text
    disk.store._manifest.connections._write.execute("PRAGMA query_only = OFF")
    with pytest.raises(BlockLost, match="damaged"):
        disk.store.read(ONE, key(2))
    assert disk.keys() == [key(1)]


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("damage", [_flip, _cut, _lengthen, Path.unlink])
def test_a_damaged_file_is_told_once_and_what_it_took_is_written_anew(
    disk: Disk, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.store.commit(OTHER, [(block(7)[0], block(2)[1])])
    name = disk.path(2).name
    damage(disk.path(2))
    with pytest.raises(BlockLost, match="damaged"):
        disk.store.read(ONE, key(2))
    for number in (2, 3):
        with pytest.raises(BlockLost, match="not kept"):
            disk.store.read(ONE, key(number))
    assert disk.keys() == [key(1)] and disk.store.known(OTHER) == []
    assert len(disk.stored()) == 1
    assert [q.partition("-")[2] for q in disk.quarantined()] == (
        [name] if damage is not Path.unlink else []
    )
    assert len(caplog.records) == 1 and "blocks forgotten: 3" in caplog.text
    assert disk.store.commit(ONE, CHAIN).num_blocks == 2
    assert plain(disk.store.read(ONE, key(2))) == plain(CHAIN[1][1])


def test_a_file_that_cannot_be_read_is_lost(disk: Disk) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.files.fail("read", BROKEN, times=2)
    with pytest.raises(BlockLost, match="Input/output error"):
        disk.store.read(ONE, key(3))
    assert disk.keys() == [key(1), key(2)]


def test_a_read_that_fails_once_costs_nothing(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.files.fail("read", BROKEN)
    assert plain(disk.store.read(ONE, key(3))) == plain(CHAIN[2][1])
    assert len(disk.keys()) == 3 and not caplog.records


def test_a_damaged_file_that_cannot_be_moved_away_is_written_over(disk: Disk) -> None:
    disk.store.commit(ONE, CHAIN)
    _flip(disk.path(3))
    disk.files.fail("rename", BROKEN)
    with pytest.raises(BlockLost, match="damaged"):
        disk.store.read(ONE, key(3))
    assert disk.store.commit(ONE, CHAIN).num_blocks == 1
    assert plain(disk.store.read(ONE, key(3))) == plain(CHAIN[2][1])


def test_a_commit_writes_a_shared_file_anew_that_was_deleted_or_cut(disk: Disk) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.path(1).unlink()
    _cut(disk.path(2))
    disk.store.commit(OTHER, CHAIN)
    for namespace in (ONE, OTHER):
        for info, tensors in CHAIN:
            assert plain(disk.store.read(namespace, info.key)) == plain(tensors)


def test_sampling_verifies_first_reads_and_one_in_sixteen_later(tmp_path: Path) -> None:
    with_faults = FaultyFiles()
    store = open_block_store(tmp_path / "cache", verify="sample", files=with_faults)
    store.commit(ONE, [block(1)])
    store.read(ONE, key(1))
    [path] = (tmp_path / "cache/objects").rglob("*.safetensors")
    _flip(path)  # in the middle of the data, so that only the hash shows it
    for _ in range(15):
        store.read(ONE, key(1))
    with pytest.raises(BlockLost, match="not those that were written"):
        store.read(ONE, key(1))
    store.close()


def test_never_verifying_still_looks_at_length_and_header(tmp_path: Path) -> None:
    store = open_block_store(tmp_path / "cache", verify="never")
    store.commit(ONE, [block(1), block(2)])
    one, two = sorted((tmp_path / "cache/objects").rglob("*.safetensors"))
    _cut(one)
    two.write_bytes(b"\xff" * two.stat().st_size)
    for number in (1, 2):
        with pytest.raises(BlockLost, match="damaged"):
            store.read(ONE, key(number))
    store.close()


def test_files_that_vanished_while_nobody_looked_are_told_once_at_the_next_start(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store.commit(ONE, [*CHAIN, block(8), block(9)])
    disk.path(2).unlink()
    _cut(disk.path(8))
    disk.reopen()
    assert disk.keys() == [key(1), key(9)] and len(disk.stored()) == 2
    assert [r.getMessage() for r in caplog.records] == [
        "files that are gone or have another length: 2, blocks forgotten: 3"
    ]
    disk.reopen()
    assert len(caplog.records) == 1


def test_files_that_no_block_needs_are_swept(disk: Disk) -> None:
    disk.store.commit(ONE, CHAIN)
    kept = disk.stored()
    (disk.folder / "staging" / "half").write_bytes(b"half of a file")
    kept[0].with_name("f" * 64 + ".safetensors").write_bytes(b"stray")
    kept[0].with_name("notes.txt").write_bytes(b"stray")
    disk.reopen()
    assert disk.stored() == kept and disk.aside() == [] and len(disk.keys()) == 3


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"x" * 9000]
)
def test_a_manifest_that_is_none_is_moved_aside_and_a_new_one_begun(
    disk: Disk, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store.commit(ONE, CHAIN)
    disk.store.close()
    (disk.folder / "manifest.sqlite").write_bytes(content)
    disk.store = disk.open()
    assert disk.keys() == [] and disk.stored() == []
    assert len(caplog.records) == 1 and "moved to quarantine" in caplog.text
    assert (disk.folder / "quarantine" / disk.quarantined()[0]).read_bytes() == content
    disk.store.commit(ONE, CHAIN)
    disk.reopen()
    assert len(disk.keys()) == 3


def test_a_manifest_with_a_broken_page_is_moved_aside(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.store.commit(ONE, [block(1), *(block(n, after=n - 1) for n in range(2, 100))])
    disk.store.close()
    path = disk.folder / "manifest.sqlite"
    data = bytearray(path.read_bytes())
    with sqlite3.connect(path) as db:
        [page] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'blocks'").fetchone()
    db.close()
    data[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    path.write_bytes(data)
    disk.store = disk.open()
    assert disk.keys() == [] and disk.stored() == []
    assert len(caplog.records) == 1 and "moved to quarantine" in caplog.text


def test_the_quarantine_keeps_the_last_sixteen(disk: Disk) -> None:
    for number in range(20):
        disk.store.commit(ONE, [block(number)])
        _flip(disk.path(number))
        with pytest.raises(BlockLost):
            disk.store.read(ONE, key(number))
    assert len(disk.quarantined()) == 16 and disk.stored() == []


def test_tensors_that_are_none_leave_nothing(disk: Disk) -> None:
    with pytest.raises(ValueError, match="takes 8 bytes"):
        disk.store.commit(ONE, [block(1), (block(2)[0], [Tensor("a", "F32", (2,), b"1")])])
    assert disk.keys() == [] and disk.stored() == []


READ_ONLY = """
import os, sys
from pathlib import Path
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import StoreFailed
from doubles.blocks import ONE, block, key, plain

folder = Path(sys.argv[1]) / "cache"
if os.geteuid() == 0:  # who may write anywhere
    os.chown(folder.parent, 65534, -1)
    os.setuid(65534)
store = open_block_store(folder)
store.commit(ONE, [block(1)])
(folder / "staging").chmod(0o500)
try:
    store.commit(ONE, [block(2)])
except StoreFailed as error:
    print(error)
assert plain(store.read(ONE, key(1))) == plain(block(1)[1])
assert [info.key for info in store.known(ONE)] == [key(1)]
store.close()
(folder / "staging").chmod(0o700)
folder.chmod(0o500)
(folder / "lock").chmod(0o400)
try:
    open_block_store(folder)
except StoreFailed as error:
    print(error)
folder.chmod(0o700)
(folder / "lock").chmod(0o600)
assert open_block_store(folder).commit(ONE, [block(2)]).num_blocks == 1
"""


def test_folders_that_became_read_only_fail_writes_and_opening_and_no_read() -> None:
    with tempfile.TemporaryDirectory() as home:  # pytest's own are closed to other users
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, home],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert [line.rpartition(": ")[2] for line in done.stdout.splitlines()] == [
        "Permission denied",
        "Permission denied",
    ]


@pytest.mark.parametrize("step", ["create", "make_folder", "fsync_folder", "scan", "committing"])
def test_a_folder_that_cannot_be_written_is_refused_and_given_back(
    tmp_path: Path, step: str
) -> None:
    files = FaultyFiles()
    files.fail(step, OSError(errno.EROFS, "Read-only file system"), times=10**6)
    if step == "committing":
        open_block_store(tmp_path / "cache").close()
        (tmp_path / "cache/objects/aa").mkdir()
        with sqlite3.connect(tmp_path / "cache/manifest.sqlite") as db:
            db.execute("INSERT INTO namespaces (namespace) VALUES ('aa')")
            db.execute("INSERT INTO objects (content, num_bytes) VALUES ('aa', 7)")
        db.close()
    with pytest.raises(StoreFailed, match="Read-only file system"):
        open_block_store(tmp_path / "cache", files=files)
    files.heal()
    store = open_block_store(tmp_path / "cache", files=files)
    assert store.commit(ONE, CHAIN).num_blocks == 3
    store.close()
