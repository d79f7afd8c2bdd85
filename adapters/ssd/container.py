"""The form of a block's file: safetensors, written and read without copying tensors.

The safetensors package would copy a block's bytes to write them, copy them again to read them,
and has changed how it takes raw bytes (0.6, 0.8).  The form itself is a length, a JSON header
and the data: tests hold ours against the package, numpy and MLX.

The header names tensors in the caller's order.  Their data lies in order of item size, the
largest first, so that each is aligned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from math import prod

import msgspec
from msgspec import Struct

from mlxbun.domain.blocks import Tensor

FORM = "mlxbun-block-1"

_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class Encoded(Struct, frozen=True):
    """A file to be: its parts in order, how long they are together, and their SHA-256."""

    content: str
    num_bytes: int
    parts: Iterable[memoryview]  # as often as it is asked for


class _Entry(Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class NotABlock(ValueError):
    """Bytes that are no block's file, or not a whole one."""


def encode(tensors: Sequence[Tensor]) -> Encoded:
    """Return the file of `tensors`.  Refers to their data, which must not change till written.

    Equal tensors in equal order give equal bytes.  Raises ValueError for what cannot be a file.
    """
    views = [_flat(tensor) for tensor in tensors]
    order = sorted(range(len(tensors)), key=lambda i: -_item_bytes(tensors[i].dtype))
    offsets: dict[int, tuple[int, int]] = {}
    end = 0
    for i in order:
        offsets[i] = (end, end + views[i].nbytes)
        end += views[i].nbytes
    entries: dict[str, object] = {"__metadata__": {"format": FORM}}
    for i, tensor in enumerate(tensors):
        if tensor.name in entries:
            raise ValueError(f"two tensors are named {tensor.name!r}")
        entries[tensor.name] = _Entry(tensor.dtype, tensor.shape, offsets[i])
    header = msgspec.json.encode(entries)
    header += b" " * (-len(header) % 8)
    parts = (memoryview(struct.pack("<Q", len(header)) + header), *(views[i] for i in order))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return Encoded(digest.hexdigest(), sum(part.nbytes for part in parts), parts)


def decode(data: bytes) -> list[Tensor]:
    """Return the tensors of a file as views of `data`.  Raises NotABlock."""
    if len(data) < 8:
        raise NotABlock(f"{len(data)} bytes are too few for a file of tensors")
    start = 8 + struct.unpack_from("<Q", data)[0]
    if start > len(data):
        raise NotABlock("its header ends after the file does")
    body = memoryview(data)[start:]
    try:
        raw = msgspec.json.decode(memoryview(data)[8:start], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        entries = {k: msgspec.json.decode(v, type=_Entry) for k, v in raw.items()}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotABlock(f"its header cannot be read: {error}") from error
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, then = entry.data_offsets
        if entry.dtype not in _ITEM_BYTES or any(n < 0 for n in entry.shape):
            raise NotABlock(f"its tensor {name!r} is {entry.dtype}{list(entry.shape)}")
        if begin != end or then - begin != prod(entry.shape) * _ITEM_BYTES[entry.dtype]:
            raise NotABlock(f"its tensor {name!r} is not where its header says")
        end = then
    if end != len(body):
        raise NotABlock(f"it has {len(body)} bytes of tensors, and its header has {end}")
    return [
        Tensor(name, entry.dtype, entry.shape, body[slice(*entry.data_offsets)])
        for name, entry in entries.items()
    ]


def _flat(tensor: Tensor) -> memoryview:
    view = memoryview(tensor.data)
    expected = prod(tensor.shape) * _item_bytes(tensor.dtype)
    if view.nbytes != expected or any(n < 0 for n in tensor.shape):
        raise ValueError(
            f"tensor {tensor.name!r}: {tensor.dtype}{list(tensor.shape)} takes {expected} bytes, "
            f"not {view.nbytes}"
        )
    return view.cast("B") if view.nbytes else memoryview(b"")


def _item_bytes(dtype: str) -> int:
    try:
        return _ITEM_BYTES[dtype]
    except KeyError:
        raise ValueError(f"no tensor in a file has the type {dtype!r}") from None
