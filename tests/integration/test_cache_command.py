"""`mlxbun cache` on real folders, in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from doubles.blocks import ONE, OTHER, Block, block, key, plain
from mlxbun.adapters.cli.main import run
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import Layout
from mlxbun.composition_root.command_line import wiring
from mlxbun.domain.checkpoint import Identity

Run = Callable[..., tuple[int, str, str]]

LAYOUTS: tuple[Layout, ...] = ("blocks", "whole")
NUM_FILES = {"blocks": 4, "whole": 2}
MINE = Identity({"config.json": "cc" * 32, "model.safetensors": "ab" * 32}, "plain", "MLX 9, cpu, ")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return cast(Layout, request.param)


@pytest.fixture
def folder(tmp_path: Path, layout: Layout) -> Path:
    """A folder that keeps three blocks of a model's state, and one that nobody described."""
    store = open_block_store(tmp_path / "ssd", layout=layout)
    store.describe(MINE.namespace, MINE.text)
    store.commit(MINE.namespace, [block(1), block(2, after=1), block(3, after=2)])
    store.commit(ONE, [block(9)])
    store.close()
    return tmp_path / "ssd"


@pytest.fixture
def cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the command on `folder`: its status, stdout and stderr."""

    def ran(*words: str, folder: Path = folder) -> tuple[int, str, str]:
        status = run(["cache", *words], {"MLX_BUN_SSD_CACHE": str(folder)}, wiring())
        out, err = capsys.readouterr()
        return status, out, err

    return ran


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("objects/*/*") if path.is_file()]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def listed(cache: Run) -> dict[str, Any]:
    lines = json.loads(cache("ls", "--json")[1])
    return {line["identity"]: line for line in lines}


def test_identities_are_listed_with_what_they_are_of(cache: Run) -> None:
    status, out, _ = cache("ls")
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()}
    assert status == 0 and out.startswith("IDENTITY")
    mine = lines[MINE.namespace[:12]]
    assert " 3 " in mine and " s ago " in mine
    assert mine.endswith("weights abababababab; MLX 9, cpu")
    assert lines[ONE[:12]].startswith(f"{ONE[:12]} 1 ")


def test_the_list_for_programs_says_all_of_it(cache: Run) -> None:
    mine = listed(cache)[MINE.namespace]
    assert mine["num_blocks"] == 3 and mine["num_bytes"] > 3 * 1200
    assert mine["of"]["files"] == MINE.files and mine["of"]["arithmetic"] == MINE.arithmetic


def test_a_folder_is_measured(cache: Run, folder: Path) -> None:
    num_bytes = sum(path.stat().st_size for path in files(folder))
    status, out, _ = cache("stat", "--json")
    stat = json.loads(out)
    assert (status, stat["folder"], stat["identities"], stat["blocks"]) == (0, str(folder), 2, 4)
    assert stat["bytes"] == num_bytes == stat["bytes_written_today"] and stat["bytes_free"] > 0
    said = dict(line.split("  ", 1) for line in cache("stat")[1].splitlines())
    assert said["blocks"].strip() == "4" and said["size"].strip() == f"{num_bytes / 1000:.0f} kB"


def test_damage_is_found_named_and_forgotten(cache: Run, folder: Path, layout: Layout) -> None:
    well = NUM_FILES[layout]
    assert cache("verify")[:2] == (0, f"{well} files are well, 0 damaged, 0 blocks forgotten\n")
    chain = [block(20)] if layout == "blocks" else [block(20), block(21, after=20)]
    (new,) = written(folder, layout, *chain)
    flip(new)
    status, out, _ = cache("verify", "--json")
    found = json.loads(out)
    assert (status, found["files_well"], found["blocks_forgotten"]) == (1, well, len(chain))
    assert list(found["files_damaged"]) == [new.stem]
    assert cache("verify")[0] == 0


def written(folder: Path, layout: Layout, *blocks: Block) -> list[Path]:
    """Have a store keep blocks of one more identity; return the files that came, by their size."""
    before = set(files(folder))
    store = open_block_store(folder, layout=layout)
    store.commit(OTHER, blocks)
    store.close()
    return sorted(set(files(folder)) - before)


@pytest.mark.parametrize("then", LAYOUTS)
def test_a_folder_of_both_layouts_is_one_folder(
    cache: Run, folder: Path, layout: Layout, then: Layout, tmp_path: Path
) -> None:
    """A server with another --ssd-layout went on with the conversation."""
    store = open_block_store(folder, layout=then)
    store.commit(MINE.namespace, [block(4, after=3), block(5, after=4)])
    store.close()
    assert listed(cache)[MINE.namespace]["num_blocks"] == 5
    stat = json.loads(cache("stat", "--json")[1])
    assert stat["bytes"] == sum(path.stat().st_size for path in files(folder))
    assert cache("verify")[:2] == (
        0, f"{len(files(folder))} files are well, 0 damaged, 0 blocks forgotten\n"
    )  # fmt: skip
    tar = tmp_path / "a.tar"
    assert cache("export", str(tar), "--identity", MINE.namespace[:6])[0] == 0
    for other in ("here", "there"):
        where = folder if other == "here" else tmp_path / "there"
        num_new = 0 if other == "here" else 5
        assert cache("import", str(tar), folder=where)[1].startswith(f"{num_new} blocks are new")
        store = open_block_store(where, verify="always")
        for number in (1, 2, 3, 4, 5):
            assert plain(store.read(MINE.namespace, key(number))) == plain(block(number)[1])
        store.close()
    assert cache("purge", "--identity", MINE.namespace[:6], "--yes")[1].startswith("5 blocks")
    assert list(listed(cache)) == [ONE] and len(files(folder)) == 1
    assert cache("verify")[:2] == (0, "1 files are well, 0 damaged, 0 blocks forgotten\n")


def test_what_is_damaged_is_not_exported_and_said(cache: Run, folder: Path, tmp_path: Path) -> None:
    for path in files(folder):
        flip(path)
    status, _, err = cache("export", str(tmp_path / "a.tar"), "--identity", MINE.namespace[:6])
    assert status == 1 and f"a block of {MINE.namespace} is damaged: " in err
    assert not list(tmp_path.glob("a.tar*"))


def test_a_folder_of_whole_files_lost_one_of_them(cache: Run, folder: Path) -> None:
    for path in files(folder):
        path.unlink()
    assert cache("verify")[1].startswith("0 files are well, 0 damaged, 0 blocks forgotten")
    assert {line["num_blocks"] for line in listed(cache).values()} == {0}


def test_state_is_taken_in_beside_what_an_identity_has_whole(
    cache: Run, folder: Path, layout: Layout, tmp_path: Path
) -> None:
    tar = tmp_path / "a.tar"
    assert cache("export", str(tar), "--identity", MINE.namespace[:6])[0] == 0
    other = tmp_path / "other"
    store = open_block_store(other, layout="whole")
    store.commit(MINE.namespace, [block(1), block(2, after=1)])
    store.close()
    assert cache("import", str(tar), folder=other)[1].startswith("1 blocks are new here, ")
    store = open_block_store(other, verify="always")
    assert plain(store.read(MINE.namespace, key(3))) == plain(block(3)[1])
    assert plain(store.read(MINE.namespace, key(1))) == plain(block(1)[1])
    store.close()
    assert len(files(other)) == 2, "what was there is not written twice"


def test_state_is_carried_to_another_folder(cache: Run, folder: Path, tmp_path: Path) -> None:
    tar, other = tmp_path / "a.tar", tmp_path / "deep" / "other"
    status, out, _ = cache("export", str(tar), "--identity", MINE.namespace[:6])
    assert status == 0 and out.startswith(f"{tar}: ") and "3 blocks of " in out
    assert cache("import", str(tar), folder=other)[:2] == (
        0,
        f"3 blocks are new here, {_kilobytes(other)} kB written\n",
    )
    store = open_block_store(other)
    assert plain(store.read(MINE.namespace, key(3))) == plain(block(3)[1])
    assert [kept.description for kept in store.identities()] == [MINE.text]
    store.close()
    assert cache("import", str(tar), folder=other)[1].startswith("0 blocks are new here")


def _kilobytes(folder: Path) -> str:
    return f"{sum(path.stat().st_size for path in files(folder)) / 1000:.0f}"


def test_a_file_that_is_there_is_not_written_over(cache: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("precious")
    status, _, err = cache("export", str(tmp_path / "a.tar"), "--identity", ONE[:6])
    assert (status, err) == (1, f"mlxbun: {tmp_path / 'a.tar'} exists already\n")
    assert (tmp_path / "a.tar").read_text() == "precious"


def test_what_is_no_export_is_not_taken_in(cache: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("anything")
    status, _, err = cache("import", str(tmp_path / "a.tar"))
    assert status == 1 and err.startswith(f"mlxbun: {tmp_path / 'a.tar'}")
    status, _, err = cache("import", str(tmp_path / "b.tar"), folder=tmp_path / "new")
    assert (status, err) == (1, f"mlxbun: there is no file {tmp_path / 'b.tar'}\n")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("answer", "status", "left"), [("y\n", 0, {ONE}), ("n\n", 1, None),
                                                        ("", 1, None)])  # fmt: skip
def test_purging_asks_first(
    cache: Run, monkeypatch: pytest.MonkeyPatch, answer: str, status: int, left: set[str] | None
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    did, out, err = cache("purge", "--identity", MINE.namespace[:8])
    assert did == status and f"Forget the state of {MINE.namespace[:12]} in " in err
    assert out.startswith("3 blocks purged, ") if left else "nothing was purged" in err
    assert set(listed(cache)) == (left or {MINE.namespace, ONE})


def test_purging_without_a_terminal_wants_a_yes(
    cache: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    status, _, err = cache("purge", "--all")
    assert status == 2 and "Without a terminal, say --yes" in err and len(listed(cache)) == 2
    assert cache("purge", "--all", "--yes")[0] == 0
    assert listed(cache) == {} and not files(folder)
    assert cache("ls")[2] == f"nothing is kept in {folder}\n"


def test_a_folder_that_somebody_has_open_is_left_alone(cache: Run, folder: Path) -> None:
    store = open_block_store(folder)
    status, _, err = cache("purge", "--all", "--yes")
    store.close()
    assert status == 1 and err.startswith(f"mlxbun: {folder} is in use by process ")
    assert len(listed(cache)) == 2


def test_a_folder_that_is_not_there_is_not_made(cache: Run, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert cache("ls", folder=missing)[::2] == (1, f"mlxbun: there is no folder {missing}\n")
    assert not missing.exists()


def test_a_folder_of_something_else_is_left_alone(cache: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("precious")
    status, _, err = cache("purge", "--all", "--yes", folder=tmp_path / "photos")
    assert status == 1 and "is no block store" in err
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "do what?  mlxbun cache takes one of ls, stat, verify, export, import, purge"),
        (["lss"], "unknown action lss: did you mean ls?"),
        (["export"], "cache export takes FILE, but got none"),
        (["ls", "x"], "cache ls takes nothing more, but got x"),
        (["ls", "--all"], "--all goes with purge, not with ls"),
        (["purge", "--json"], "--json goes with ls and stat and verify, not with purge"),
        (["purge"], "purge what?  --all, or --identity ID"),
        (["purge", "--all", "--identity", "1"], "purge what?"),
        (["purge", "--identity", "xyz"], "xyz is no identity here: "),
        (["export", "FILE"], "whose state?  --identity ID, which is one of "),
    ],
)
def test_what_is_not_understood_says_what_to_do(
    cache: Run, tmp_path: Path, words: list[str], says: str
) -> None:
    status, _, err = cache(*(str(tmp_path / w) if w == "FILE" else w for w in words))
    assert status == 2 and err.startswith(f"mlxbun: {says}")


def test_without_a_folder_it_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "ls"], {}, wiring()) == 2
    assert "which folder?  --ssd-cache DIR, or MLX_BUN_SSD_CACHE" in capsys.readouterr().err
