"""What earlier versions kept opens for ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.golden_blocks import COMMITS, DESCRIPTION
from doubles.golden_kept_ids import SAVES, TEXTS
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.kept_ids import bounded, kept_as, longest

FOLDERS = Path(__file__).parents[2] / "golden"
GOLDEN = FOLDERS / "ssd-1"


@pytest.mark.parametrize("name", ["ssd-1", "ssd-1-kept"])
def test_a_directory_of_format_1_opens_and_holds_what_it_held(tmp_path: Path, name: str) -> None:
    shutil.copytree(FOLDERS / name, tmp_path / "ssd-1")
    store = open_block_store(tmp_path / "ssd-1", verify="always")
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
    assert store.shrink(0)[-1][1] in {key(1), key(7)}
    store.close()


def test_what_is_written_now_has_the_names_it_had_then(tmp_path: Path) -> None:
    store = open_block_store(tmp_path / "now")
    for namespace, blocks in COMMITS:
        store.commit(namespace, blocks)
    store.close()
    then, now = (
        {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*.safetensors")}
        for home in (GOLDEN, tmp_path / "now")
    )
    assert then == now and len(then) == 4


def test_the_files_of_a_directory_open_in_mlx() -> None:
    shapes = [
        {name: tuple(array.shape) for name, array in loaded.items()}
        for path in sorted(GOLDEN.rglob("*.safetensors"))
        if isinstance(loaded := mx.load(str(path)), dict)
    ]
    whole = {tensor.name: tensor.shape for tensor in COMMITS[0][1][0][1]}
    assert len(shapes) == 4 and shapes.count(whole) == 3


@pytest.mark.parametrize("name", ["ssd-1", "ssd-1-whole"])
def test_a_directory_from_before_ids_were_kept_keeps_them_now(tmp_path: Path, name: str) -> None:
    shutil.copytree(FOLDERS / name, tmp_path / "ssd-1")
    one = kept_as("a text", [1, 2, 3])
    for there in ([], [one]):
        store = open_block_store(tmp_path / "ssd-1")
        assert list(store.kept_ids.load(ONE)) == there
        store.kept_ids.save(ONE, [one], [])
        assert list(store.kept_ids.load(ONE)) == [one]
        assert len(store.known(ONE)) == 3
        store.close()


def test_kept_ids_of_an_earlier_version_are_those_that_were_kept(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / "ssd-1-kept", tmp_path / "ssd-1")
    store = open_block_store(tmp_path / "ssd-1")
    for namespace in (ONE, OTHER):
        saved = [one for of, texts in SAVES if of == namespace for one in texts]
        assert list(store.kept_ids.load(namespace)) == saved
    kept = bounded(store.kept_ids.load(ONE))
    for number, text in enumerate(TEXTS):
        found = longest(kept, f"{text} of boats")
        assert found is kept.texts[number] and kept.texts[number].num_chars == len(text)
    store.close()


def test_a_version_that_kept_no_ids_can_forget_whose_they_are(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS / "ssd-1-kept", tmp_path / "ssd-1")
    store = open_block_store(tmp_path / "ssd-1")
    with store._manifest.connections.transaction() as db:  # pyright: ignore[reportPrivateUsage]
        db.execute("DELETE FROM blocks WHERE kind = 'boundary'")
        db.execute("DELETE FROM blocks")
        db.execute("DELETE FROM namespaces")
        assert db.execute("SELECT count(*) FROM kept_ids").fetchone() == (0,)
    store.close()
