"""The form of a file that has a whole chain: a list of its parts, and then the parts.

Each part is what a block's own file would be (see `container`), at an offset that eight divides.
The list has the parts' hashes, and the file is named by the list's: so one part can be verified
without the others, and nothing is hashed twice.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from mlxbun.adapters.ssd.container import Encoded, NotABlock
from mlxbun.adapters.ssd.place import Place

FORM = "mlxbun-whole-1"
PREFIX = "whole-"  # of contents: no block's own file is named so


class Part(Struct, frozen=True):
    """A block to be: its SHA-256, its length, and what gives its bytes when they are written."""

    digest: str
    num_bytes: int
    data: Callable[[], Iterable[memoryview]]


class _Entry(Struct, frozen=True):
    sha256: str
    bytes: int


class _List(Struct, frozen=True):
    form: str
    parts: tuple[_Entry, ...]


class _Bytes:
    """A file's bytes, a part at a time: a chain may be larger than what should be in memory."""

    def __init__(self, head: bytes, parts: Sequence[Part]) -> None:
        self._head, self._parts = head, parts

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(self._head)
        for part in self._parts:
            yield from part.data()
            yield memoryview(bytes(-part.num_bytes % 8))


def encode(parts: Sequence[Part]) -> tuple[Encoded, list[Place]]:
    """Return the file of a chain, and where each part is in it."""
    entries = tuple(_Entry(part.digest, part.num_bytes) for part in parts)
    listed = msgspec.json.encode(_List(FORM, entries))
    listed += b" " * (-len(listed) % 8)
    head = struct.pack("<Q", len(listed)) + listed
    content = PREFIX + hashlib.sha256(head).hexdigest()
    starts, end = _starts(len(head), entries)
    file = Encoded(content, end, _Bytes(head, parts))
    places = [
        Place(content, end, start, entry.bytes, entry.sha256)
        for start, entry in zip(starts, entries, strict=True)
    ]
    return file, places


def decode(data: bytes, content: str) -> list[Place]:
    """Return where the parts of a file are.  Raises NotABlock where its list is not that one's."""
    length = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else len(data)
    head = data[: 8 + length]
    if PREFIX + hashlib.sha256(head).hexdigest() != content:
        raise NotABlock("its list is not the one that was written")
    listed = msgspec.json.decode(head[8:], type=_List)
    starts, end = _starts(len(head), listed.parts)
    if end != len(data):
        raise NotABlock(f"it has {len(data)} bytes, and its list says {end}")
    return [
        Place(content, end, start, entry.bytes, entry.sha256)
        for start, entry in zip(starts, listed.parts, strict=True)
    ]


def _starts(head_bytes: int, entries: Sequence[_Entry]) -> tuple[list[int], int]:
    starts, end = list[int](), head_bytes
    for entry in entries:
        starts.append(end)
        end += entry.bytes + -entry.bytes % 8
    return starts, end
