"""What the first version kept opens for ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import mlx.core as mx

from doubles.blocks import ONE, OTHER, block, key, plain
from doubles.golden_blocks import COMMITS, DESCRIPTION
from mlxbun.adapters.ssd.opening import open_block_store

GOLDEN = Path(__file__).parents[2] / "golden" / "ssd-1"


def test_a_directory_of_format_1_opens_and_holds_what_it_held(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "ssd-1")
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
