"""Wheels for a machine without a registry: shared out, split, joined and unzipped as they were."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench import carried_wheels, gpu_table, wanted_wheels
from mlxbun.adapters.bench.carried_wheels import PiecesMissing, lay_out, piece_sizes, shared_out

ROOT = Path(__file__).parents[3]
LARGE = "mlx_large-1.0-py3-none-any.whl"
SMALL = "Small.Thing-2.0-py3-none-any.whl"


def make_wheel(folder: Path, file_name: str, files: dict[str, bytes]) -> Path:
    name, version = file_name.split("-")[:2]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(folder / file_name, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        for path, content in files.items():
            archive.writestr(path, content)
    return folder / file_name


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    source = tmp_path / "wheels"
    source.mkdir()
    return [
        make_wheel(source, LARGE, {"mlx/core.py": bytes(range(256)) * 40, "mlx/a/b.so": b"b"}),
        make_wheel(
            source,
            SMALL,
            {
                "small/__init__.py": b"one = 1\n",
                "Small.Thing-2.0.data/purelib/small/two.py": b"two = 2\n",
                "Small.Thing-2.0.data/scripts/small": b"#!python\n",
            },
        ),
    ]


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_pieces_are_as_few_as_can_be_and_make_up_the_whole(num_bytes: int, most: int) -> None:
    sizes = piece_sizes(num_bytes, most)
    assert sum(sizes) == num_bytes
    assert all(0 < size <= most for size in sizes)
    assert len(sizes) == -(-num_bytes // most)


@given(st.dictionaries(st.text(), st.integers(0, 100)), st.integers(100, 300))
def test_everything_is_in_exactly_one_group_and_no_group_is_too_large(
    sizes: dict[str, int], most: int
) -> None:
    groups = shared_out(sizes, most)
    assert sorted(name for group in groups for name in group) == sorted(sizes)
    assert all(sum(sizes[name] for name in group) <= most for group in groups)
    light = [group for group in groups if sum(sizes[name] for name in group) * 2 <= most]
    assert len(light) <= 1  # two of them would have been one


def test_what_is_larger_than_a_group_has_one_of_its_own() -> None:
    assert shared_out({"a": 5, "b": 20, "c": 4}, 10) == [["b"], ["a", "c"]]


def test_a_wheel_in_pieces_is_unpacked_as_the_whole(wheels: list[Path], tmp_path: Path) -> None:
    folders = lay_out(wheels, tmp_path / "out", piece_bytes=6000, folder_bytes=8000)
    assert [f"{LARGE}.{i}of2" for i in (1, 2)] == [
        path.name for folder in folders for path in sorted(folder.glob("*of*"))
    ]
    site = tmp_path / "site"
    lines = carried_wheels.unpack(folders, site, [])
    assert lines == ["small-thing 2.0: unpacked", "mlx-large 1.0: unpacked"]
    assert (site / "mlx/core.py").read_bytes() == bytes(range(256)) * 40
    assert (site / "small/two.py").read_text() == "two = 2\n"
    assert not list(site.glob("**/scripts"))
    assert carried_wheels.unpack(folders, site, []) == [
        "small-thing: is there already",
        "mlx-large: is there already",
    ]


def test_pieces_that_are_missing_are_named_and_the_rest_is_unpacked(
    wheels: list[Path], tmp_path: Path
) -> None:
    first, *rest = lay_out(wheels, tmp_path / "out", piece_bytes=6000, folder_bytes=6000)
    site = tmp_path / "site"
    with pytest.raises(PiecesMissing, match="no piece 1 of 2"):
        carried_wheels.unpack(rest, site, [])
    assert (site / "small").is_dir() and not (site / "mlx").exists()
    carried_wheels.unpack([*rest, first], site, [])
    assert (site / "mlx/core.py").is_file()


def test_only_mlx_is_unpacked_over_another_version(wheels: list[Path], tmp_path: Path) -> None:
    site, old = tmp_path / "site", tmp_path / "old"
    for name in ("mlx_large", "small_thing"):
        (old / f"{name}-0.9.dist-info").mkdir(parents=True)
        (old / f"{name}-0.9.dist-info/METADATA").write_text(f"Name: {name}\nVersion: 0.9\n")
    folders = lay_out(wheels, tmp_path / "out", piece_bytes=20_000, folder_bytes=40_000)
    lines = carried_wheels.unpack(folders, site, [str(old)])
    assert lines == ["small-thing: is there already", "mlx-large 1.0: unpacked"]


def test_a_wheel_cannot_write_outside_of_site_packages(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, SMALL, {"../outside.py": b"bad"})
    folders = lay_out([wheel], tmp_path / "out", piece_bytes=9000, folder_bytes=9000)
    with pytest.raises(zipfile.BadZipFile, match="outside"):
        carried_wheels.unpack(folders, tmp_path / "site", [])
    assert not (tmp_path / "outside.py").exists()


def test_unpacking_needs_nothing_but_the_standard_library(
    wheels: list[Path], tmp_path: Path
) -> None:
    folders = lay_out(wheels, tmp_path / "out", piece_bytes=6000, folder_bytes=8000)
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "scripts/bench/gpu"), "unpack",
         *map(str, folders), "--site", str(site)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "mlx-large 1.0: unpacked" in done.stdout, done.stderr
    assert (site / "small/__init__.py").is_file()


def test_what_is_wanted_is_what_is_installed_here_with_mlx_for_cuda() -> None:
    pins = dict(pin.split("==") for pin in wanted_wheels.wanted(ROOT / "pyproject.toml"))
    assert {"mlx", "mlx-lm", "granian", "msgspec", "tokenizers", "markupsafe"} <= set(pins)
    assert pins["mlx-cuda-13"] == pins["mlx"] == "0.32.4"
    assert not {"mlx-cpu", "cmeel-openblas", "pytest"} & set(pins)
    fewer = wanted_wheels.wanted(ROOT / "pyproject.toml", ["transformers"])
    assert len(fewer) < len(pins) and not [pin for pin in fewer if "transformers" in pin]


def test_gpus_are_named_without_the_cards_identities() -> None:
    listing = "GPU 0: NVIDIA H200 (UUID: GPU-1234-abcd)\nGPU 1: NVIDIA L4 (UUID: GPU-5)\n"
    assert gpu_table.gpu_names(listing) == ["NVIDIA H200", "NVIDIA L4"]
    assert gpu_table.gpu_names("No devices were found\n") == []
