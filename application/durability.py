"""Durability: what became of the blocks that a disk was given, in counts and in the log.

What is wrong is said once for each cause, and again only after it was over.  Any thread may call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockLost, StoreFailed

log = logging.getLogger("mlxbun.persistence")

CLOSING = "the server is closing"
UPKEEP = "upkeep"  # a kind of complaints


class FlushReport(Struct, frozen=True):
    """What is durable.  `durable` says that everything that was to be written is, and is there.

    `entries` blocks are on the disk now, `longest_durable_prefix_tokens` the longest of their
    prefixes; `flushed_blocks` became durable while this waited.  The other counts are since the
    start.  A block that could not be written, or that was lost on the disk, is among
    `missing_blocks` until it is written after all.  Of `failed_blocks` the disk refused some;
    `dropped_blocks` were never given to it.  Of `pending_texts` the ids are not durable.
    """

    durable: bool
    entries: int = 0
    longest_durable_prefix_tokens: int = 0
    flushed_blocks: int = 0
    missing_blocks: int = 0
    pending_blocks: int = 0
    pending_bytes: int = 0
    pending_texts: int = 0
    written_blocks: int = 0
    failed_blocks: int = 0
    dropped_blocks: int = 0
    restored_blocks: int = 0
    lost_blocks: int = 0
    bytes_written: int = 0
    bytes_on_disk: int = 0
    elapsed_ms: float = 0.0
    last_error: str | None = None


class Durability:
    """Counts of one store's blocks.  `last_error` is what was wrong last, if anything was."""

    def __init__(self, known: Sequence[BlockInfo] = ()) -> None:
        self._lock = threading.Lock()
        self._there = {block.key: block.start + block.num_tokens for block in known}
        self._not_there = set[BlockKey]()  # on the disk, though they should be
        self._complaints = set[tuple[str, str]]()  # kinds and causes that were said, and hold
        self._written = self._failed = self._dropped = 0
        self._restored = self._lost = self._bytes_written = 0
        self.last_error: str | None = None
        self.bytes_on_disk = 0  # when the store last said

    @property
    def num_written(self) -> int:
        return self._written

    def wrote(self, blocks: Sequence[BlockInfo], num_bytes: int) -> None:
        with self._lock:
            self._there |= {block.key: block.start + block.num_tokens for block in blocks}
            self._not_there.difference_update(block.key for block in blocks)
            self._written += len(blocks)
            self._bytes_written += num_bytes

    def not_written(
        self,
        keys: Sequence[BlockKey],
        cause: str,
        kind: str,
        error: Exception | None = None,
        *,
        dropped: bool = False,
    ) -> None:
        """Count blocks that are not on the disk; `kind` is what this is one more of."""
        with self._lock:
            num_new = len(keys) - len(self._not_there.intersection(keys))
            self._not_there.update(keys)
            self._failed += num_new  # what is tried again and refused again is one block
            self._dropped += num_new if dropped else 0
        self.complain(kind, f"{len(keys)} blocks are in RAM only, if at all: {cause}", error)
        self.last_error = cause

    def pruned(self, keys: Sequence[BlockKey]) -> None:
        """Note that blocks left the disk because it was full, which is no loss."""
        with self._lock:
            self._forget(keys)

    def restored(self, num_blocks: int) -> None:
        with self._lock:
            self._restored += num_blocks

    def lost(self, keys: Sequence[BlockKey], cause: str) -> None:
        """Count blocks that were on the disk and cannot be used."""
        with self._lock:
            self._forget(keys)
            self._not_there.update(keys)
            self._lost += len(keys)
        self.last_error = cause
        log.warning("%d blocks from %s on are not restored: %s", len(keys), keys[0][:12], cause)

    def complain(self, kind: str, sentence: str, error: Exception | None = None) -> None:
        """Log a sentence, unless one of its kind was and nothing said since that it is over.

        An `error` with another number is another cause, which is said too.
        """
        self.last_error = sentence
        cause = str(error.errno) if isinstance(error, OSError) else type(error).__name__
        with self._lock:
            if (kind, cause) in self._complaints:
                return
            self._complaints.add((kind, cause))
        log.warning("%s", sentence)

    def over(self, *kinds: str) -> bool:
        """Note that what was complained of is over; return whether anything was."""
        with self._lock:
            over = {said for said in self._complaints if said[0] in kinds}
            self._complaints -= over
        return bool(over)

    def report(
        self,
        *,
        flushed_blocks: int,
        pending_blocks: int,
        pending_bytes: int,
        pending_texts: int,
        elapsed_seconds: float,
    ) -> FlushReport:
        """Return all counts."""
        with self._lock:
            return FlushReport(
                durable=not (pending_blocks or pending_texts or self._not_there),
                entries=len(self._there),
                longest_durable_prefix_tokens=max(self._there.values(), default=0),
                flushed_blocks=flushed_blocks,
                missing_blocks=len(self._not_there),
                pending_blocks=pending_blocks,
                pending_bytes=pending_bytes,
                pending_texts=pending_texts,
                written_blocks=self._written,
                failed_blocks=self._failed,
                dropped_blocks=self._dropped,
                restored_blocks=self._restored,
                lost_blocks=self._lost,
                bytes_written=self._bytes_written,
                bytes_on_disk=self.bytes_on_disk,
                elapsed_ms=round(1000 * elapsed_seconds, 1),
                last_error=self.last_error,
            )

    def _forget(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._there.pop(key, None)


def said(error: Exception) -> str:
    """Return what a store's error says, or the name and words of any other."""
    named = isinstance(error, (StoreFailed, BlockLost))
    return str(error) if named and str(error) else f"{type(error).__name__}: {error}"
