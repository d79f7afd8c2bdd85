"""Persistence: blocks go to a disk behind the engine's back, and come back before they are needed.

Two threads: one writes what was published, in batches, one reads what somebody waits for.  Both
report to the engine, which decides.  A disk that is full, slow or broken costs speed, is said
once, and loses no request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from mlxbun.application.durability import CLOSING, UPKEEP, Durability, FlushReport, said
from mlxbun.application.restorer import Report, Restorer
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    BlockStore,
    Namespace,
    StoreFailed,
    Tensor,
)

log = logging.getLogger("mlxbun.persistence")

BATCH = 64  # blocks that one commit makes durable
QUEUE_BYTES = 2 << 30  # that may wait to be written; more stays in RAM only
LEAST_SECONDS = 0.1  # that a thread gets to end

LATE = "they left RAM before they were written"
SLOW = "the disk is slower than what is to be written"
ORPHANED = "the blocks before them are not on the disk"
DISK = "disk"  # a kind of complaints, as are the above

Contents = Sequence[tuple[BlockInfo, Sequence[Tensor]]]


class Persistence:
    """Writes and reads blocks of one namespace.  `write` and `read` return at once.

    `tensors` is the compute port's, `report` hands a report to the engine's thread; both may be
    called on the threads here.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        *,
        tensors: Callable[[BlockKey], Sequence[Tensor]],
        report: Callable[[Report], None],
        max_bytes: int | None = None,
        queue_bytes: int = QUEUE_BYTES,
        known: Sequence[BlockInfo] = (),
    ) -> None:
        """`known` is what the store has of the namespace."""
        self._store = store
        self._namespace = namespace
        self._tensors = tensors
        self._report = report
        self._max_bytes = max_bytes
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._to_write: deque[BlockInfo] = deque()
        self._durability = Durability(known)
        self._restorer = Restorer(store, namespace, self._durability, report)
        self._pending_bytes = 0
        self._num_writing = 0
        self._holding: Sequence[BlockInfo] = ()  # replaced, never changed
        self._measuring = False
        self._closing = False
        self._closer: threading.Thread | None = None
        self._writer = threading.Thread(
            target=self._write_all, name="mlxbun-ssd-writer", daemon=True
        )

    def start(self) -> None:
        self._measuring = True
        self._writer.start()
        self._restorer.start()

    def write(self, blocks: Sequence[BlockInfo]) -> None:
        """Make blocks durable some time; beyond the queue's bound they stay in RAM only."""
        refused: list[BlockKey] = []
        with self._changed:
            closing = self._closing
            for block in blocks:
                full = self._pending_bytes + block.num_bytes > self._queue_bytes
                if full or closing or block.parent in refused:
                    refused.append(block.key)
                    continue
                self._to_write.append(block)
                self._pending_bytes += block.num_bytes
            self._changed.notify_all()
        if refused:
            why = CLOSING if closing else SLOW
            self._not_written(refused, why, why)

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None:
        """Bring blocks into RAM, in order, as soon as may be; what is read `ahead` can wait."""
        self._restorer.read(blocks, ahead)

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        """Read blocks no more that nobody wants now; what was read already is still reported."""
        self._restorer.cancel(keys)

    def holding(self) -> Sequence[BlockInfo]:
        """Return the blocks whose bytes are being written, in RAM or not.  Any thread."""
        return self._holding

    def flush(self, timeout_seconds: float) -> FlushReport:
        """Wait until what is to be written is durable, or the time is up.  Any thread."""
        started = time.monotonic()
        before = self._durability.num_written
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._to_write or self._num_writing or self._measuring),
                timeout_seconds,
            )
            pending_blocks = len(self._to_write) + self._num_writing
            pending_bytes = self._pending_bytes
        return self._durability.report(
            flushed_blocks=self._durability.num_written - before,
            pending_blocks=pending_blocks,
            pending_bytes=pending_bytes,
            elapsed_seconds=time.monotonic() - started,
        )

    def close(self, timeout_seconds: float) -> FlushReport:
        """Flush, end the threads, release the directory.  What is not durable then never is.

        All of that in one time, of which a tenth is left for ending; a disk that does not answer
        by then is left as it is.
        """
        deadline = time.monotonic() + max(timeout_seconds, LEAST_SECONDS)
        report = self.flush(max(0.0, 0.9 * timeout_seconds - LEAST_SECONDS))
        with self._changed:
            self._closing = True
            self._restorer.close()
            self._changed.notify_all()
            if self._closer is None:  # on a thread of its own: closing may hang like all else
                self._closer = threading.Thread(
                    target=self._end, name="mlxbun-ssd-closer", daemon=True
                )
                self._closer.start()
        self._closer.join(max(0.0, deadline - time.monotonic()))
        if self._closer.is_alive():
            log.error("the disk does not answer: %d blocks are not on it", report.pending_blocks)
        return report

    def _end(self) -> None:
        if self._writer.ident is not None:
            self._writer.join()
        self._restorer.join()
        try:
            self._store.close()
        except Exception:  # nobody is left to tell
            log.exception("the block store could not be closed")

    # -- the writer's thread --

    def _write_all(self) -> None:
        self._measure()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._to_write or self._closing)
                if not self._to_write:
                    return
                closing, waiting = self._closing, len(self._to_write)
                self._num_writing = waiting if closing else min(BATCH, waiting)
                batch = [self._to_write.popleft() for _ in range(self._num_writing)]
            try:
                if closing:  # the time to flush is up
                    self._not_written([block.key for block in batch], CLOSING, CLOSING)
                else:
                    self._write(batch)
                    self._measure()
            finally:
                self._holding = ()
                with self._changed:
                    self._num_writing = 0
                    self._pending_bytes -= sum(block.num_bytes for block in batch)
                    self._changed.notify_all()

    def _write(self, batch: Sequence[BlockInfo]) -> None:
        there: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        gone: list[BlockKey] = []
        for block in batch:
            try:
                if block.parent in gone:
                    raise BlockLost("the block before it was not written")
                there.append((block, self._tensors(block.key)))
            except Exception as error:  # BlockLost, or what the model layer raises
                if not isinstance(error, BlockLost):
                    log.exception("block %s cannot be read for the disk", block.key[:12])
                gone.append(block.key)
        if gone:
            self._not_written(gone, LATE, LATE)
        self._holding = tuple(block for block, _ in there)
        if there and self._commit(there):
            self._keep_to_cap()
            if not gone and not self._to_write:
                self._durability.over(LATE, SLOW, ORPHANED)

    def _commit(self, blocks: Contents) -> bool:
        """Commit blocks, but those after some that the disk has lost; return whether any was."""
        try:
            try:
                committed = self._store.commit(self._namespace, blocks)
            except StoreFailed:
                blocks, orphans = self._sorted(blocks)
                if not orphans:
                    raise
                self._tell_orphans(orphans)
                if not blocks:
                    return False
                committed = self._store.commit(self._namespace, blocks)
        except Exception as error:
            if not isinstance(error, StoreFailed):  # the store's own fault must not end a thread
                log.exception("the block store failed")
            self._not_written([block.key for block, _ in blocks], said(error), DISK)
            return False
        if self._durability.over(DISK):
            log.warning("the disk takes blocks again")
        keys = [block.key for block, _ in blocks]
        self._durability.wrote([block for block, _ in blocks], committed.bytes_written)
        self._report(lambda blocks, compute: blocks.written(compute, keys))
        return True

    def _sorted(self, blocks: Contents) -> tuple[Contents, Sequence[BlockInfo]]:
        """Return what can be committed, and what comes after a block that is not there."""
        visible: set[BlockKey | None] = {None}
        visible.update(block.key for block in self._store.known(self._namespace))
        sound: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        orphans: list[BlockInfo] = []
        for block, tensors in blocks:
            if block.parent in visible:
                visible.add(block.key)
                sound.append((block, tensors))
            else:
                orphans.append(block)
        return sound, orphans

    def _tell_orphans(self, orphans: Sequence[BlockInfo]) -> None:
        """Say of blocks that they were not written, and of those before them that they are gone.

        Whoever computes on has all of them written again, from the first that is not there.
        """
        keys = [block.key for block in orphans]
        parents = [b.parent for b in orphans if b.parent is not None and b.parent not in keys]
        self._report(lambda blocks, compute: blocks.not_restored(compute, parents, ORPHANED))
        self._not_written(keys, ORPHANED, ORPHANED)

    def _keep_to_cap(self) -> None:
        if self._max_bytes is None:
            return
        try:
            full = self._store.num_bytes() > self._max_bytes
            removed = self._store.shrink(self._max_bytes) if full else ()
        except Exception as error:
            self._durability.complain(UPKEEP, f"the disk's cap is not kept: {said(error)}")
            return
        self._durability.over(UPKEEP)
        ours = [key for namespace, key in removed if namespace == self._namespace]
        if ours:
            self._durability.pruned(ours)
            self._report(lambda blocks, compute: blocks.pruned(compute, ours))

    def _measure(self) -> None:
        """Learn how much is on the disk.  Here, as whoever asks must not wait for the disk."""
        try:
            self._durability.bytes_on_disk = self._store.num_bytes()
        except Exception as error:
            self._durability.complain(UPKEEP, f"the disk's size is not known: {said(error)}")
        with self._changed:
            self._measuring = False
            self._changed.notify_all()

    def _not_written(self, keys: Sequence[BlockKey], cause: str, kind: str) -> None:
        self._durability.not_written(keys, cause, kind, dropped=kind != DISK)
        self._report(lambda blocks, compute: blocks.not_written(compute, keys, cause))
