"""Reads GGUF files: metadata, and tensors as float32.  Only the kinds that our models use.

Source: ggml's docs/gguf.md (container), ggml-quants.c (blocks).  All numbers little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

BLOCK = 32  # weights in a block of every quantised kind here

_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_BLOCK_BYTES = {"F32": 4 * BLOCK, "F16": 2 * BLOCK, "Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
_KINDS = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 8: "Q8_0"}


class GgufError(ValueError):
    """The file is not GGUF, is cut short, or uses what this reader does not know."""


class Tensor(Struct, frozen=True):
    """One tensor as it is stored.  `shape` is row-major, the reverse of the file's order."""

    kind: str
    shape: tuple[int, ...]
    stored: NDArray[np.uint8]

    def floats(self) -> NDArray[np.float32]:
        """Return the weights: [*shape], float32, the numbers that ggml computes."""
        if self.kind == "F32":
            return self.stored.view("<f4").reshape(self.shape)
        if self.kind == "F16":
            return self.stored.view("<f2").astype(np.float32).reshape(self.shape)
        blocks = self.stored.reshape(-1, _BLOCK_BYTES[self.kind])
        scale = _halves(blocks, 0)
        match self.kind:
            case "Q8_0":
                weights = blocks[:, 2:].view(np.int8) * scale
            case "Q4_0":
                weights = (_nibbles(blocks[:, 2:]) - np.float32(8)) * scale
            case _:  # Q4_1
                weights = _nibbles(blocks[:, 4:]) * scale + _halves(blocks, 2)
        return weights.reshape(self.shape)


def _halves(blocks: NDArray[np.uint8], at: int) -> NDArray[np.float32]:
    """Return the float16 at byte `at` of each block: [blocks, 1], float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the codes of each block, all low halves first: [blocks, BLOCK], float32."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


class GgufFile:
    """A GGUF file, mapped into memory.  Raises GgufError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise GgufError(f"{path} is empty")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            magic, version = self._take("<4sI")
            if magic != b"GGUF" or version not in (2, 3):
                raise GgufError(f"{path} is not a GGUF file of version 2 or 3")
            num_tensors, num_keys = self._take("<QQ")
            self.metadata: Mapping[str, Any] = dict(self._pair() for _ in range(num_keys))
            heads = [self._head() for _ in range(num_tensors)]
        except (struct.error, UnicodeDecodeError) as error:
            raise GgufError(f"{path} is cut short or damaged in its header") from error
        alignment = self.metadata.get("general.alignment", 32)
        start = math.ceil(self._at / alignment) * alignment
        everything = np.frombuffer(self._bytes, np.uint8)
        self.tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in heads:
            if kind not in _KINDS:
                raise GgufError(f"{path}: {name} is of tensor type {kind}, which is not supported")
            count = math.prod(shape)
            size = count * _BLOCK_BYTES[_KINDS[kind]] // BLOCK
            stored = everything[start + offset : start + offset + size]
            if len(stored) != size or (kind > 1 and count % BLOCK):
                raise GgufError(f"{path} is cut short in {name}")
            self.tensors[name] = Tensor(_KINDS[kind], shape, stored)

    def __getitem__(self, key: str) -> Any:
        if key not in self.metadata:
            raise GgufError(f"the file does not say its {key}")
        return self.metadata[key]

    def _take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._bytes, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _text(self) -> str:
        (size,) = self._take("<Q")
        begin, self._at = self._at, self._at + size
        return self._bytes[begin : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            inner, count = self._take("<IQ")
            if inner in _SCALARS:
                return list(self._take(f"<{count}{_SCALARS[inner]}"))
            return [self._value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise GgufError(f"metadata of type {kind} is not supported")
        return self._take(f"<{_SCALARS[kind]}")[0]

    def _pair(self) -> tuple[str, Any]:
        key = self._text()
        (kind,) = self._take("<I")
        return key, self._value(kind)

    def _head(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (rank,) = self._take("<I")
        shape = self._take(f"<{rank}Q")
        kind, offset = self._take("<IQ")
        return name, tuple(reversed(shape)), kind, offset
