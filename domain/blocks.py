"""Blocks: the unit in which the state of a prefix is named, kept in RAM and on SSD, and moved.

A block is the KV state of BLOCK tokens.  Its key says which tokens it is for and all that came
before them: keys form a hash chain over a namespace (whose state this is, see `checkpoint`) and
exact token ids, so equal keys mean equal prefixes.  Layers whose state cannot be cut into blocks
are kept whole, as a *boundary*: the state after exactly those tokens and no others.  Where a model
has layers of both kinds, a boundary comes after blocks of those that can be cut, and has of them
only what follows the last block.  Where all can be cut, the tokens after the last block of a prompt
or an answer are a *tail*: less than a block, and named by all tokens like one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal, NewType, Protocol

from msgspec import Struct

from mlxbun.domain.sampling import TokenId

BLOCK = 256  # tokens

Namespace = NewType("Namespace", str)  # 64 hex digits
BlockKey = NewType("BlockKey", str)  # 64 hex digits
Kind = Literal["block", "boundary", "tail"]
Cuts = Literal["block", "boundary"]


def chain(namespace: Namespace, token_ids: Sequence[TokenId]) -> list[BlockKey]:
    """Return the keys of the complete blocks of `token_ids`, first to last."""
    keys: list[BlockKey] = []
    link = bytes.fromhex(namespace)
    ids = _words(token_ids)
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        link = _link(b"block", link, ids[end - BLOCK : end])
        keys.append(BlockKey(link.hex()))
    return keys


def boundary(
    namespace: Namespace, token_ids: Sequence[TokenId], *, after_blocks: bool = False
) -> BlockKey:
    """Return the key of the state after exactly `token_ids`; see `boundaries`."""
    length = len(token_ids)
    return boundaries(namespace, token_ids, [length], after_blocks=after_blocks)[length]


def boundaries(
    namespace: Namespace,
    token_ids: Sequence[TokenId],
    lengths: Iterable[int],
    *,
    after_blocks: bool = False,
) -> dict[int, BlockKey]:
    """Return the keys of the states after the first `lengths` of `token_ids`, ascending.

    Lengths beyond the ids are left out.  Each id is hashed once, however many lengths there are.
    States that need the blocks before them have other keys than those that are whole.
    """
    ids = _words(token_ids).tobytes()
    keys: dict[int, BlockKey] = {}
    kind = b"boundary after blocks" if after_blocks else b"boundary"
    link = hashlib.sha256(kind + bytes.fromhex(namespace))
    done = 0
    for length in sorted(set(lengths)):
        if length > len(token_ids):
            break
        link.update(ids[4 * done : 4 * length])
        done = length
        keys[length] = BlockKey(link.hexdigest())
    return keys


def tails(
    namespace: Namespace,
    token_ids: Sequence[TokenId],
    keys: Sequence[BlockKey],
    lengths: Iterable[int],
) -> list[BlockInfo]:
    """Return what the tails are that end after `lengths` of `token_ids`, whose blocks are `keys`.

    Their bytes are not known yet.  Where a block ends there is none, nor beyond the ids.
    """
    ids = _words(token_ids)
    found: list[BlockInfo] = []
    for length in lengths:
        start = length // BLOCK * BLOCK
        if start < length <= len(ids):
            parent = keys[start // BLOCK - 1] if start else None
            link = _link(b"tail", bytes.fromhex(parent or namespace), ids[start:length])
            key = BlockKey(link.hex())
            found.append(BlockInfo(key, parent, "tail", start, length - start, 0))
    return found


def _words(token_ids: Sequence[TokenId]) -> array[int]:
    ids = array("I", token_ids)
    if ids.itemsize != 4:
        raise RuntimeError("token ids are hashed as 32 bits, which this platform's C int is not")
    return ids


def _link(kind: bytes, before: bytes, ids: array[int]) -> bytes:
    return hashlib.sha256(kind + before + ids.tobytes()).digest()


class BlockInfo(Struct, frozen=True):
    """What is known of a block without its state.

    `parent` is the block before it, None for what starts at 0.
    The block covers tokens [start, start + num_tokens) of its prompt.  A boundary also has all
    that cannot be cut, after the last of them; it starts where the last whole block before it
    ends, which may be where it ends itself, or at 0, and then it is whole.
    """

    key: BlockKey
    parent: BlockKey | None
    kind: Kind
    start: int
    num_tokens: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


def linked(keys: Sequence[BlockKey]) -> list[BlockInfo]:
    """Return what the blocks of a chain are, from its first on; their bytes are not known yet."""
    return [
        BlockInfo(key, keys[i - 1] if i else None, "block", i * BLOCK, BLOCK, 0)
        for i, key in enumerate(keys)
    ]


def spans(start: int, end: int) -> list[tuple[int, int]]:
    """Return tokens [start, end) in parts, each to the end of a block or to `end`."""
    found: list[tuple[int, int]] = []
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        found.append((start, stop))
        start = stop
    return found


class Tensor(Struct, frozen=True):
    """One array of a block's state, as bytes.  `dtype` is safetensors' name: F32, BF16, ..."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


class BlockLost(LookupError):
    """A stored block cannot be used: it is not there any more, or is not what was written."""


class StoreFailed(OSError):
    """The store could not keep what it was given; nothing of it is visible."""


class Committed(Struct, frozen=True):
    """What one commit did.  `bytes_written` counts files, without the database."""

    num_blocks: int
    bytes_written: int


class BlockStore(Protocol):
    """Port: blocks on a disk, for one namespace at a time.  Calls may block; no thread owns it.

    What `commit` returned for is durable: it survives a crash of the process and of the machine.
    What it did not is not visible.  Blocks of other namespaces are never read, changed or
    counted as this one's, and leave only by `shrink`, or with a file that they share.
    Any call but `read` raises StoreFailed when the disk fails, with nothing changed.
    """

    def known(self, namespace: Namespace) -> Sequence[BlockInfo]:
        """Return every visible block of a namespace, least recently used first."""
        ...

    def commit(
        self, namespace: Namespace, blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]]
    ) -> Committed:
        """Make all of `blocks` durable and visible, or none.

        Blocks that are visible already are skipped; equal contents are written once.  A block's
        parent is visible or among `blocks`.  Raises StoreFailed.
        """
        ...

    def read(self, namespace: Namespace, key: BlockKey) -> Sequence[Tensor]:
        """Return a block's state, tensors in their order.

        Raises BlockLost, after which neither the block nor any after it is known.
        """
        ...

    def used(self, namespace: Namespace, keys: Sequence[BlockKey]) -> None:
        """Note that `keys`, and with them all blocks before them, were of use now."""
        ...

    def shrink(self, max_bytes: int) -> Sequence[tuple[Namespace, BlockKey]]:
        """Forget least recently used blocks until all files take `max_bytes`; return them.

        A block goes before its parent does.
        """
        ...

    def num_bytes(self) -> int:
        """Return the bytes of all files, a shared one counted once."""
        ...

    def prefill_rate(self, namespace: Namespace) -> float:
        """Return the tokens a second that were noted last; 0.0 if none were."""
        ...

    def note_prefill_rate(self, namespace: Namespace, tokens_per_second: float) -> None:
        """Note how fast prompts are read where blocks of a namespace are made."""
        ...

    def close(self) -> None:
        """Release the directory."""
        ...
