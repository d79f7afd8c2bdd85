"""Digests of a model folder: every byte that counts counts, and none is hashed twice."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxbun.adapters.hub import fingerprint
from mlxbun.adapters.hub.fingerprint import file_digests


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    """Return a copy of a tiny model's folder."""
    return Path(shutil.copytree(tiny_model("tiny-llama"), tmp_path / "model"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files that were read, as they are."""
    names: list[str] = []
    digest = fingerprint._digest

    def watched(path: Path) -> str:
        names.append(path.name)
        return digest(path)

    monkeypatch.setattr(fingerprint, "_digest", watched)
    return names


def flip(path: Path) -> None:
    """Change one bit, as long as before."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_digests_are_those_that_sha256sum_finds(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_bytes(b"abc")  # FIPS 180-2's example
    found = file_digests(folder, tmp_path / "memory.json")
    assert found["config.json"] == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found)


def test_what_state_does_not_depend_on_does_not_count(folder: Path, tmp_path: Path) -> None:
    before = file_digests(folder, tmp_path / "memory.json")
    (folder / "README.md").write_text("words")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_text("another form")
    assert file_digests(folder, tmp_path / "memory.json") == before


def test_every_file_that_counts_counts_by_its_bytes(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    before = file_digests(folder, memory)
    for name in before:
        flip(folder / name)
        after = file_digests(folder, memory)
        assert {n for n in before if after[n] != before[n]} == {name}
        before = after


def test_a_copy_elsewhere_is_the_same(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "moved" / "renamed"))
    one = file_digests(folder, tmp_path / "one.json")
    assert file_digests(other, tmp_path / "other.json") == one


def test_nothing_is_hashed_twice_while_it_stays_as_it_is(
    folder: Path, tmp_path: Path, hashed: list[str]
) -> None:
    memory = tmp_path / "new" / "memory.json"
    first = file_digests(folder, memory)
    assert sorted(hashed) == sorted(first)
    hashed.clear()
    assert file_digests(folder, memory) == first
    assert not hashed
    stat = (folder / "config.json").stat()
    os.utime(folder / "config.json", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert file_digests(folder, memory) == first
    assert hashed == ["config.json"]


@pytest.mark.parametrize("words", ["", "{", "[1]", '"x"', "{]}"])
def test_a_damaged_memory_is_made_anew(
    folder: Path, tmp_path: Path, words: str, hashed: list[str]
) -> None:
    expected = file_digests(folder, tmp_path / "good.json")
    hashed.clear()
    memory = tmp_path / "memory.json"
    memory.write_text(words)
    assert file_digests(folder, memory) == expected
    assert sorted(hashed) == sorted(expected)
    assert set(json.loads(memory.read_text()).values()) == set(expected.values())


def test_a_memory_that_cannot_be_written_is_said_and_costs_time_alone(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING, "mlxbun.hub"):
        found = file_digests(folder, tmp_path / "file" / "memory.json")
    assert "config.json" in found
    assert caplog.records


def test_a_file_of_the_hub_s_cache_is_named_by_its_digest(
    folder: Path, tmp_path: Path, hashed: list[str]
) -> None:
    """Large files are links to blobs/<SHA-256>; small ones have a git hash, which is no digest."""
    memory = tmp_path / "memory.json"
    before = file_digests(folder, memory)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name, blob in (
        ("model.safetensors", before["model.safetensors"]),
        ("config.json", "0" * 40),
    ):
        shutil.copyfile(folder / name, blobs / blob)
        (folder / name).unlink()
        (folder / name).symlink_to(blobs / blob)
    hashed.clear()
    assert file_digests(folder, memory) == before
    assert hashed == ["0" * 40]
