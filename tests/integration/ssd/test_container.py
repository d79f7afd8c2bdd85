"""The form of a block's file, against the safetensors package, numpy and MLX."""

from __future__ import annotations

import hashlib
import struct
from math import prod
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.ssd.container import NotABlock, decode, encode
from mlxbun.domain.blocks import Tensor

ITEM_BYTES = {"BOOL": 1, "U8": 1, "I16": 2, "F16": 2, "BF16": 2, "F32": 4, "U32": 4, "I64": 8}


@st.composite
def tensors(draw: st.DrawFn) -> list[Tensor]:
    names = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), unique=True))
    found: list[Tensor] = []
    for name in set(names) - {"__metadata__"}:
        dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        size = prod(shape) * ITEM_BYTES[dtype]
        data = draw(st.binary(min_size=size, max_size=size))
        found.append(Tensor(name, dtype, shape, data))
    return found


def file_of(some: list[Tensor]) -> bytes:
    return b"".join(encode(some).parts)


def plain(some: list[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(t.name, t.dtype, t.shape, bytes(t.data)) for t in some]


@given(tensors())
def test_the_safetensors_package_reads_what_we_write(some: list[Tensor]) -> None:
    read = {
        name: (spec["dtype"], tuple(spec["shape"]), bytes(spec["data"]))
        for name, spec in safetensors.deserialize(file_of(some))  # type: ignore[no-untyped-call]
    }
    assert read == {t.name: (t.dtype, t.shape, t.data) for t in some}


@given(tensors())
def test_we_read_what_we_write_in_its_order(some: list[Tensor]) -> None:
    assert plain(decode(file_of(some))) == plain(some)


@given(tensors())
def test_a_file_is_named_by_its_bytes_and_equal_tensors_have_equal_files(
    some: list[Tensor],
) -> None:
    encoded = encode(some)
    whole = b"".join(encoded.parts)
    assert encoded.content == hashlib.sha256(whole).hexdigest()
    assert encoded.num_bytes == len(whole)
    copies = [Tensor(t.name, t.dtype, t.shape, bytearray(t.data)) for t in some]
    assert encode(copies).content == encoded.content


@given(tensors(), st.integers(0, 2**64 - 1), st.binary(max_size=8))
def test_what_is_no_whole_file_is_refused_and_nothing_else_happens(
    some: list[Tensor], at: int, junk: bytes
) -> None:
    whole = file_of(some)
    cut = whole[: at % len(whole)]
    with pytest.raises(NotABlock):
        decode(cut)
    if junk:
        with pytest.raises(NotABlock):
            decode(whole + junk)
    torn = bytearray(whole)
    torn[at % len(whole)] ^= 1 + at % 255
    try:
        decode(bytes(torn))
    except NotABlock as error:
        assert str(error)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b'{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,-1]}}',
        b'{"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1]}}',
        b'{"a":1}',
        b"[]",
        b"\xff",
    ],
)
def test_a_header_that_makes_no_sense_is_refused(header: bytes) -> None:
    with pytest.raises(NotABlock):
        decode(struct.pack("<Q", len(header)) + header + b"\0\0")


def test_numpy_and_safe_open_read_a_file(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "full": np.linspace(0, 1, 5, dtype=np.float32),
        "ids": np.array([[7], [-8]], dtype=np.int32),
    }
    names = {"float16": "F16", "float32": "F32", "int32": "I32"}
    path = tmp_path / "block.safetensors"
    path.write_bytes(
        file_of([Tensor(k, names[str(a.dtype)], a.shape, a.tobytes()) for k, a in arrays.items()])
    )
    for name, array in safetensors.numpy.load_file(path).items():
        np.testing.assert_array_equal(array, arrays[name])
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "mlxbun-block-1"}
        assert set(file.keys()) == set(arrays)


def test_mlx_reads_bfloat16_and_the_rest(tmp_path: Path) -> None:
    keys = mx.array([[1.5, -2.25, 1e30]], dtype=mx.bfloat16)
    scales = mx.array([0.5], dtype=mx.float32)
    path = tmp_path / "block.safetensors"
    path.write_bytes(
        file_of(
            [
                Tensor("keys", "BF16", (1, 3), np.array(keys.view(mx.uint16)).tobytes()),
                Tensor("scales", "F32", (1,), np.array(scales).tobytes()),
            ]
        )
    )
    loaded = mx.load(str(path))
    assert isinstance(loaded, dict)
    assert loaded["keys"].dtype == mx.bfloat16 and loaded["keys"].tolist() == keys.tolist()
    assert loaded["scales"].tolist() == [0.5]


def test_tensors_are_aligned_views_of_one_buffer() -> None:
    some = [Tensor("a", "U8", (3,), b"abc"), Tensor("b", "F32", (2,), bytes(8))]
    data = file_of(some)
    for tensor in decode(data):
        assert isinstance(tensor.data, memoryview) and tensor.data.obj is data
    [_, b] = decode(data)
    start = 8 + struct.unpack_from("<Q", data)[0]
    assert start % 8 == 0 and data[start : start + 8] == bytes(b.data)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor("a", "F32", (2,), bytes(7)), "takes 8 bytes, not 7"),
        (Tensor("a", "Q4", (2,), bytes(1)), "has the type 'Q4'"),
        (Tensor("__metadata__", "U8", (0,), b""), "two tensors are named"),
        (Tensor("a", "U8", (-1, -1), b"a"), "takes 1 bytes"),
    ],
)
def test_tensors_that_are_none_are_refused(tensor: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        encode([tensor])
