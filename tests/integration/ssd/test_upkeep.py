"""What the command line asks of a store: who is in it, is it well, carry it elsewhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.files import FaultyFiles
from mlxbun.adapters.ssd.manifest import Identity
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore, Verified
from mlxbun.domain.blocks import BlockInfo, BlockLost, Committed, StoreFailed

CHAIN = [block(1), block(2, after=1), block(3, after=2)]
DAY = 86400.0


class Clock:
    at = 20000 * DAY

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> SsdBlockStore:
    return open_block_store(tmp_path / "cache", now=clock)


def stored(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "objects").rglob("*.safetensors"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_identities_say_whose_state_is_kept(store: SsdBlockStore, clock: Clock) -> None:
    store.commit(ONE, [*CHAIN, block(4, data=b"like 1"), block(5, data=b"like 1")])
    size = store.num_bytes()
    clock.at += 5
    store.used(ONE, [key(1)])
    store.describe(OTHER, '{"model": "x"}')
    assert store.identities() == [
        Identity(ONE, None, 5, size, clock.at),
        Identity(OTHER, '{"model": "x"}', 0, 0, None),
    ]
    store.commit(OTHER, [block(9, data=b"like 1")])
    assert store.num_bytes() == size
    assert store.identities()[1].num_bytes > 0
    store.close()


def test_a_description_outlives_the_process_and_is_replaced(
    store: SsdBlockStore, tmp_path: Path
) -> None:
    store.describe(ONE, "old")
    store.describe(ONE, "new")
    store.close()
    again = open_block_store(tmp_path / "cache")
    assert [one.description for one in again.identities()] == ["new"]
    again.close()


def test_purging_forgets_one_namespace_or_all(store: SsdBlockStore, tmp_path: Path) -> None:
    store.commit(ONE, CHAIN)
    store.commit(OTHER, [block(1), block(8)])
    store.describe(ONE, "one")
    assert store.purge(ONE) == 3
    assert [one.namespace for one in store.identities()] == [OTHER]
    assert len(stored(tmp_path)) == 2
    assert plain(store.read(OTHER, key(1))) == plain(block(1)[1])
    assert store.purge(ONE) == 0
    assert store.purge(None) == 2
    assert stored(tmp_path) == [] and store.identities() == []
    store.close()


def test_verifying_reads_everything_and_forgets_what_is_damaged(
    store: SsdBlockStore, tmp_path: Path
) -> None:
    store.commit(ONE, CHAIN)
    heard: list[tuple[int, int]] = []
    assert store.verify_all(lambda done, total: heard.append((done, total))) == Verified(3, {}, 0)
    total = store.num_bytes()
    assert heard == [(total // 3, total), (2 * total // 3, total), (total, total)]
    [victim] = [
        path for path in stored(tmp_path) if (2).to_bytes(2, "little") * 9 in path.read_bytes()
    ]
    flip(victim)
    found = store.verify_all(lambda done, total: None)
    assert list(found.damaged) == [victim.stem] and found.num_forgotten == 2
    assert 1 <= found.num_good <= 2  # the file after it may go before it is read
    assert [info.key for info in store.known(ONE)] == [key(1)]
    store.close()


def test_a_namespace_is_carried_to_another_directory(store: SsdBlockStore, tmp_path: Path) -> None:
    same = (block(7)[0], block(1)[1])
    boundary = (BlockInfo(key(9), None, "boundary", 0, 77, 3), block(9)[1])
    store.commit(ONE, [*CHAIN, same, boundary])
    store.commit(OTHER, [block(8)])
    store.describe(ONE, '{"model": "x"}')
    size = store.export(ONE, tmp_path / "one.tar")
    assert size == (tmp_path / "one.tar").stat().st_size
    with open_and_close(tmp_path / "there") as there:
        taken = there.import_(tmp_path / "one.tar")
        assert taken.num_blocks == 5 and taken.bytes_written == there.num_bytes()
        assert sorted(there.known(ONE), key=lambda i: i.key) == sorted(
            store.known(ONE), key=lambda i: i.key
        )
        assert there.known(OTHER) == []
        for info in store.known(ONE):
            assert plain(there.read(ONE, info.key)) == plain(store.read(ONE, info.key))
        assert [one.description for one in there.identities()] == ['{"model": "x"}']
        assert there.import_(tmp_path / "one.tar") == Committed(0, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "one.tar", "there"]
    store.close()


class open_and_close:
    def __init__(self, folder: Path, files: FaultyFiles | None = None) -> None:
        self.store = open_block_store(folder, files=files)

    def __enter__(self) -> SsdBlockStore:
        return self.store

    def __exit__(self, *_: object) -> None:
        self.store.close()


def test_an_archive_with_another_state_of_a_known_block_changes_nothing(
    store: SsdBlockStore, tmp_path: Path
) -> None:
    store.commit(ONE, CHAIN)
    store.export(ONE, tmp_path / "one.tar")
    with open_and_close(tmp_path / "there") as there:
        there.commit(ONE, [block(1, data=b"mine")])
        assert there.import_(tmp_path / "one.tar").num_blocks == 2
        assert plain(there.read(ONE, key(1))) == plain(block(1, data=b"mine")[1])
        assert len(list((tmp_path / "there/objects").rglob("*.safetensors"))) == 3
    store.close()


def members(path: Path) -> list[tuple[str, bytes]]:
    with tarfile.open(path) as tar:
        return [(m.name, file.read()) for m in tar if (file := tar.extractfile(m)) is not None]


def tar_of(path: Path, some: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in some:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("flipped", "has other bytes"),
        ("missing", "lacks 1 of its files"),
        ("more", "which no block needs"),
        ("no list", "holds no blocks"),
        ("bad list", "cannot be read"),
        ("newer", "is mlxbun-blocks-9"),
        ("orphan", "parent"),
        ("cut", "tar|lacks"),
        ("no tar", "tar"),
        ("absent", "No such file"),
    ],
)
def test_an_archive_that_is_not_whole_is_refused_as_a_whole(
    store: SsdBlockStore, tmp_path: Path, what: str, words: str
) -> None:
    path = tmp_path / "one.tar"
    store.commit(ONE, CHAIN)
    store.export(ONE, path)
    listed, *files = members(path)
    match what:
        case "flipped":
            tar_of(path, [listed, files[0], (files[1][0], files[1][1][:-1] + b"?"), files[2]])
        case "missing":
            tar_of(path, [listed, *files[:2]])
        case "more":
            tar_of(path, [listed, *files, ("../../etc/passwd", b"x")])
        case "no list":
            tar_of(path, files)
        case "bad list":
            tar_of(path, [(listed[0], listed[1][:-1]), *files])
        case "newer":
            tar_of(path, [(listed[0], listed[1].replace(b"blocks-1", b"blocks-9")), *files])
        case "orphan":
            unknown = listed[1].replace(b'"parent":null', f'"parent":"{key(99)}"'.encode())
            tar_of(path, [(listed[0], unknown), *files])
        case "cut":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        case "no tar":
            path.write_bytes(b"no tar at all" * 100)
        case _:
            path.unlink()
    with open_and_close(tmp_path / "there") as there:
        there.commit(ONE, [block(50)])
        with pytest.raises(StoreFailed, match=words):
            there.import_(path)
        assert [info.key for info in there.known(ONE)] == [key(50)]
        assert len(list((tmp_path / "there/objects").rglob("*.safetensors"))) == 1
    store.close()


def test_exporting_what_is_damaged_says_so_and_leaves_no_file(
    store: SsdBlockStore, tmp_path: Path
) -> None:
    store.commit(ONE, CHAIN)
    flip(stored(tmp_path)[0])
    with pytest.raises(BlockLost, match="damaged"):
        store.export(ONE, tmp_path / "one.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert len(store.known(ONE)) < 3
    store.close()


def test_bytes_are_counted_by_day_and_across_processes(
    store: SsdBlockStore, tmp_path: Path, clock: Clock
) -> None:
    size = store.commit(ONE, [block(1)]).bytes_written
    store.commit(OTHER, [block(1)])
    assert store.bytes_written_today == size
    store.close()
    again = open_block_store(tmp_path / "cache", now=clock)
    again.commit(ONE, [block(2)])
    again.shrink(0)
    assert again.bytes_written_today == 2 * size
    clock.at += DAY
    assert again.bytes_written_today == 0
    again.close()


def test_bytes_of_a_commit_that_failed_are_counted(tmp_path: Path, clock: Clock) -> None:
    files = FaultyFiles()
    store = open_block_store(tmp_path / "cache", now=clock, files=files)
    files.fail("committing", OSError("no"))
    with pytest.raises(StoreFailed):
        store.commit(ONE, [block(1)])
    written = store.bytes_written_today
    assert written > 0
    store.close()
    again = open_block_store(tmp_path / "cache", now=clock)
    assert again.bytes_written_today == written
    again.close()


def test_a_commit_over_the_days_budget_is_refused_until_midnight(
    tmp_path: Path, clock: Clock
) -> None:
    store = open_block_store(tmp_path / "cache", now=clock, daily_budget_bytes=3000)
    assert store.commit(ONE, [block(1), block(2)]).num_blocks == 2
    with pytest.raises(StoreFailed, match="daily write budget of 3000 bytes"):
        store.commit(ONE, [block(3)])
    assert store.commit(OTHER, [block(1)]) == Committed(1, 0)
    assert len(store.known(ONE)) == 2
    clock.at += DAY
    assert store.commit(ONE, [block(3)]).num_blocks == 1
    store.close()


def test_many_uses_do_not_wait_for_a_commit(store: SsdBlockStore) -> None:
    store.commit(ONE, CHAIN)
    store.used(ONE, [key(n) for n in range(5000)])
    assert not store._pending._uses
    store.close()


def test_a_chain_longer_than_sqlite_would_cascade_is_used_and_forgotten(
    store: SsdBlockStore, tmp_path: Path
) -> None:
    store.commit(ONE, [block(0), *(block(n, after=n - 1) for n in range(1, 1500))])
    store.used(ONE, [key(1499)])
    assert [info.key for info in store.known(ONE)] == [key(n) for n in reversed(range(1500))]
    first = (0).to_bytes(2, "little") * 600
    [path] = [path for path in stored(tmp_path) if first in path.read_bytes()]
    path.unlink()
    with pytest.raises(BlockLost):
        store.read(ONE, key(0))
    assert store.known(ONE) == [] and stored(tmp_path) == []
    store.close()
