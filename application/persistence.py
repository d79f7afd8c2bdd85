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

from msgspec import Struct

from mlxbun.application.prefixes import Prefixes
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    BlockStore,
    Namespace,
    StoreFailed,
    Tensor,
)
from mlxbun.domain.residency import Event
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.persistence")

BATCH = 64  # blocks that one commit makes durable
QUEUE_BYTES = 2 << 30  # that may wait to be written; more stays in RAM only
PAUSE_SECONDS = 1.0

Report = Callable[[Prefixes, Compute], list[Event]]


class FlushReport(Struct, frozen=True):
    """What is durable.  `durable` says that everything that was to be written is."""

    durable: bool
    pending_blocks: int
    pending_bytes: int
    written_blocks: int
    failed_blocks: int
    restored_blocks: int
    lost_blocks: int
    bytes_written: int
    bytes_on_disk: int
    elapsed_ms: float
    last_error: str | None


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
    ) -> None:
        self._store = store
        self._namespace = namespace
        self._tensors = tensors
        self._report = report
        self._max_bytes = max_bytes
        self._queue_bytes = queue_bytes
        self._changed = threading.Condition()
        self._to_write: deque[BlockInfo] = deque()
        self._to_read: deque[Sequence[BlockInfo]] = deque()
        self._pending_bytes = 0
        self._num_writing = 0
        self._closing = False
        self._failing = False
        self._last_error: str | None = None
        self._written = self._failed = self._restored = self._lost = self._bytes_written = 0
        self._threads = [
            threading.Thread(target=work, name=f"mlxbun-ssd-{name}", daemon=True)
            for name, work in (("writer", self._write_all), ("reader", self._read_all))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def write(self, blocks: Sequence[BlockInfo]) -> None:
        """Make blocks durable some time; beyond the queue's bound they stay in RAM only."""
        refused: list[BlockKey] = []
        with self._changed:
            for block in blocks:
                if self._pending_bytes + block.num_bytes > self._queue_bytes or self._closing:
                    refused.append(block.key)
                    continue
                self._to_write.append(block)
                self._pending_bytes += block.num_bytes
            self._changed.notify_all()
        if refused:
            self._tell_failure(refused, "the disk is slower than what is to be written")

    def read(self, blocks: Sequence[BlockInfo]) -> None:
        """Bring blocks into RAM, in order, as soon as may be."""
        with self._changed:
            self._to_read.append(tuple(blocks))
            self._changed.notify_all()

    def flush(self, timeout_seconds: float) -> FlushReport:
        """Wait until what is to be written is durable, or the time is up.  Any thread."""
        started = time.monotonic()
        with self._changed:
            done = self._changed.wait_for(
                lambda: not self._to_write and not self._num_writing, timeout_seconds
            )
            pending = len(self._to_write) + self._num_writing
            return FlushReport(
                durable=done and not self._failed,
                pending_blocks=pending,
                pending_bytes=self._pending_bytes,
                written_blocks=self._written,
                failed_blocks=self._failed,
                restored_blocks=self._restored,
                lost_blocks=self._lost,
                bytes_written=self._bytes_written,
                bytes_on_disk=self._store.num_bytes(),
                elapsed_ms=round(1000 * (time.monotonic() - started), 1),
                last_error=self._last_error,
            )

    def close(self, timeout_seconds: float) -> FlushReport:
        """Flush, end the threads, release the directory."""
        report = self.flush(timeout_seconds)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._store.close()
        return report

    # -- the writer --

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._to_write or self._closing)
                if not self._to_write:
                    return
                count = min(BATCH, len(self._to_write))
                batch = [self._to_write.popleft() for _ in range(count)]
                self._num_writing = count
            try:
                self._write(batch)
            finally:
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
            except BlockLost:
                gone.append(block.key)
        if gone:
            self._tell_failure(gone, "it left RAM before it was written")
        if not there:
            return
        keys = [block.key for block, _ in there]
        try:
            committed = self._store.commit(self._namespace, there)
        except StoreFailed as error:
            self._tell_failure(keys, str(error))
            return
        except Exception as error:  # the store's own fault must not end this thread
            log.exception("the block store failed")
            self._tell_failure(keys, f"{type(error).__name__}: {error}")
            return
        if self._failing:
            log.warning("the disk takes blocks again")
        with self._changed:
            self._failing = False
            self._written += len(keys)
            self._bytes_written += committed.bytes_written
        self._report(lambda prefixes, compute: prefixes.written(compute, keys))
        self._keep_to_cap()

    def _keep_to_cap(self) -> None:
        if self._max_bytes is None or self._store.num_bytes() <= self._max_bytes:
            return
        removed = self._store.shrink(self._max_bytes)
        ours = [key for namespace, key in removed if namespace == self._namespace]
        if ours:
            self._report(lambda prefixes, compute: prefixes.pruned(compute, ours))

    def _tell_failure(self, keys: Sequence[BlockKey], cause: str) -> None:
        if not self._failing:
            log.warning("%d blocks are not on the disk, and stay in RAM: %s", len(keys), cause)
        with self._changed:
            self._failing = True
            self._failed += len(keys)
            self._last_error = cause
        self._report(lambda prefixes, compute: prefixes.not_written(compute, keys, cause))

    # -- the reader --

    def _read_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._to_read or self._closing)
                if self._closing:
                    return
                wanted = self._to_read.popleft()
            self._read(wanted)

    def _read(self, wanted: Sequence[BlockInfo]) -> None:
        found: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        cause = ""
        for block in wanted:
            try:
                found.append((block, self._store.read(self._namespace, block.key)))
            except Exception as error:  # BlockLost, or the store's own fault: recompute
                cause = str(error) or type(error).__name__
                log.warning("block %s was not restored: %s", block.key[:12], cause)
                break
        lost = [block.key for block in wanted[len(found) :]]
        with self._changed:
            self._restored += len(found)
            self._lost += len(lost)
        if found:
            keys = [block.key for block, _ in found]
            self._store.used(self._namespace, keys)
            self._report(lambda prefixes, compute: prefixes.restored(compute, found))
        if lost:
            self._report(lambda prefixes, compute: prefixes.not_restored(compute, lost, cause))
