"""What a checkpoint adds to an answer, as bytes with a hash: a token that decayed would be said."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo
from mlxbun.domain.generation_checkpoint import GenerationCheckpoint, GenerationKey
from mlxbun.domain.packed_logprobs import PackedLogprobs, joined
from mlxbun.domain.sampling import TokenId


class Head(Struct, frozen=True):
    """How far an answer came, and its state.  It is written anew for each checkpoint."""

    key: GenerationKey
    num_tokens: int
    state: tuple[BlockInfo, ...]


class _Part(Struct, frozen=True, array_like=True):
    """The tokens from `start` on (uint32), and what was told of them."""

    key: GenerationKey
    start: int
    ids: bytes
    logprobs: PackedLogprobs | None


def head_of(checkpoint: GenerationCheckpoint) -> Head:
    return Head(checkpoint.key, len(checkpoint.token_ids), checkpoint.state)


def part_of(checkpoint: GenerationCheckpoint, start: int) -> bytes:
    """Return a record of the tokens from `start` on."""
    ids = array("I", checkpoint.token_ids[start:]).tobytes()
    told = checkpoint.logprobs
    part = _Part(checkpoint.key, start, ids, told.since(start) if told is not None else None)
    return msgspec.msgpack.encode(part)


def digest_of(record: bytes) -> str:
    return hashlib.sha256(record).hexdigest()


def read_head(record: bytes, digest: str) -> Head | None:
    """Return a head; None for one that is damaged, or an earlier version's."""
    if digest_of(record) != digest:
        return None
    try:
        return msgspec.json.decode(record, type=Head)
    except msgspec.DecodeError:
        return None


def assembled(head: Head, parts: Iterable[tuple[bytes, str]]) -> GenerationCheckpoint | None:
    """Return a checkpoint of its parts, in order; None where one is damaged or missing."""
    ids, told, num_parts = array("I"), list[PackedLogprobs](), 0
    for record, digest in parts:
        part = _read_part(record, digest)
        if part is None or (part.key, part.start) != (head.key, len(ids)):
            return None
        ids.frombytes(part.ids)
        num_parts += 1
        if part.logprobs is not None:
            told.append(part.logprobs)
    if len(ids) != head.num_tokens or len(told) not in (0, num_parts):
        return None
    logprobs = joined(told) if told else None
    return GenerationCheckpoint(head.key, tuple(map(TokenId, ids)), head.state, logprobs)


def _read_part(record: bytes, digest: str) -> _Part | None:
    if digest_of(record) != digest:
        return None
    try:
        return msgspec.msgpack.decode(record, type=_Part)
    except msgspec.DecodeError:
        return None
