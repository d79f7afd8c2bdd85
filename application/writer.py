"""Writing behind: blocks and kept ids become durable on a thread of its own, in batches.

What the disk refused is tried again, ever more rarely, until it works: first one block, and once
that is written, more and more.  Which blocks those are is decided on the engine's thread, by what
is still in RAM.  A disk that is full, slow or broken costs speed, is said once, and loses no
request.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.application.arrears import Arrears, Ask
from mlxbun.application.backoff import Backoff
from mlxbun.application.committer import DISK, Committer
from mlxbun.application.durability import CLOSING, Durability
from mlxbun.application.kept_disk import KeptDisk
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.restorer import Report
from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.kept_ids import KeptIds
from mlxbun.domain.residency import Event
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.persistence")

BATCH = 64  # blocks that one commit makes durable
QUEUE_BYTES = 2 << 30  # that may wait to be written; more stays in RAM only

SLOW = "the disk is slower than what is to be written"  # a kind of complaints


class Unwritten(Struct, frozen=True):
    """What still waits to be written."""

    num_blocks: int
    num_bytes: int
    num_texts: int


class Writer:
    """Has a committer write blocks, and kept ids after them.  Only `settle` and `join` wait.

    `report` hands a report to the engine's thread.  `again` says when to try what failed.
    """

    def __init__(
        self,
        committer: Committer,
        kept: KeptDisk | None,
        durability: Durability,
        *,
        report: Callable[[Report], None],
        queue_bytes: int,
        again: Backoff,
    ) -> None:
        self._committer, self._kept, self._durability = committer, kept, durability
        self._report, self._queue_bytes, self._again = report, queue_bytes, again
        self._arrears = Arrears(again)
        self._changed = threading.Condition()
        self._to_write: deque[BlockInfo] = deque()
        self._pending_bytes = 0
        self._num_writing = 0
        self._busy = self._closing = False
        self._thread = threading.Thread(target=self._run, name="mlxbun-ssd-writer", daemon=True)

    def start(self) -> None:
        self._busy = True
        self._thread.start()

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
            if refused and not closing:
                self._arrears.refused()
            self._changed.notify_all()
        if refused:
            self._committer.not_written(refused, CLOSING if closing else SLOW)

    def keep(self, kept: KeptIds) -> None:
        """Have kept ids be durable some time, after the blocks that wait."""
        with self._changed:
            if self._kept is not None and not self._closing:
                self._kept.want(kept)
                self._changed.notify_all()

    def holding(self) -> Sequence[BlockInfo]:
        """Return the blocks whose bytes are being written, in RAM or not.  Any thread."""
        return self._committer.holding

    @property
    def owes(self) -> bool:
        """Whether there may be blocks in RAM that the disk refused."""
        return self._arrears.owes

    def settle(self, timeout_seconds: float, *, asks: bool) -> Unwritten:
        """Wait until what waits is written or refused, or the time is up; return what is left.

        What was refused is tried once more.  Without an engine that runs it `asks` for nothing
        that is not queued.
        """
        with self._changed:
            self._again.hurry()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_settled(asks), timeout_seconds)
            return Unwritten(
                len(self._to_write) + self._num_writing,
                self._pending_bytes,
                self._kept.num_waiting if self._kept is not None else 0,
            )

    def close(self) -> None:
        """Write nothing more; who still waits is told so.  `join` waits for the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _is_settled(self, asks: bool) -> bool:
        if self._to_write or self._busy:
            return False
        if self._closing or self._thread.ident is None:
            return True
        is_asking = asks and self._arrears.is_asking
        return not (is_asking or self._is_due() or self._may_save())

    def _is_due(self) -> bool:
        """Return whether it is time to try again."""
        return self._again.left() == 0.0

    def _may_save(self) -> bool:
        """Return whether kept ids wait, and not for that time."""
        return self._kept is not None and self._kept.waits and self._again.left() is None

    # -- on its thread --

    def _run(self) -> None:
        self._committer.measure()
        while True:
            with self._changed:
                self._busy, self._num_writing = False, 0
                self._changed.notify_all()
                while not (self._to_write or self._closing or self._may_save() or self._is_due()):
                    self._changed.wait(self._again.left())
                closing, waiting = self._closing, len(self._to_write)
                if closing and not waiting:
                    return
                self._busy, is_due = True, self._again.take()
                self._num_writing = waiting if closing else min(BATCH, waiting)
                batch = [self._to_write.popleft() for _ in range(self._num_writing)]
            if closing:  # the time to flush is up
                self._committer.not_written([block.key for block in batch], CLOSING)
            else:
                self._pass(batch, is_due)
            with self._changed:
                self._pending_bytes -= sum(block.num_bytes for block in batch)

    def _pass(self, batch: Sequence[BlockInfo], is_due: bool) -> None:
        """Write a batch, and kept ids where they wait; then see to what is owed."""
        wrote = bool(batch) and self._write(batch)
        with self._changed:
            kept = self._kept if wrote or is_due or self._may_save() else None
        saved = kept is None or not kept.waits or kept.save()
        with self._changed:
            if not saved:
                self._again.failed()
            elif kept is not None:
                self._arrears.all_well()
            if self._to_write:
                return
            ask = self._arrears.ask(wrote=wrote, is_due=is_due)
        if ask is not None:
            self._ask(ask)

    def _write(self, batch: Sequence[BlockInfo]) -> bool:
        outcome = self._committer.commit(batch)
        self._committer.measure()
        with self._changed:
            works = outcome.wrote and self._arrears.wrote()
            if outcome.owed:
                self._arrears.refused(broke=outcome.broke is not None)
            after = self._take_after(outcome.refused)
            if outcome.wrote and not self._to_write:
                self._durability.over(SLOW)
        if outcome.broke is not None and after:
            self._committer.refuse(after, outcome.broke)
        if works:
            self._say_works()
        return outcome.wrote

    def _take_after(self, refused: Sequence[BlockKey]) -> Sequence[BlockKey]:
        """Take out of the queue what comes after refused blocks.  Called with the lock."""
        gone = dict.fromkeys(refused)
        left = deque[BlockInfo]()
        for block in self._to_write if refused else ():
            if block.parent in gone:
                gone[block.key] = None
                self._pending_bytes -= block.num_bytes
            else:
                left.append(block)
        if refused:
            self._to_write = left
        return list(gone)[len(refused) :]

    def _ask(self, ask: Ask) -> None:
        """Have the engine find what is owed, and queue it."""

        def found(blocks: ResidentBlocks, compute: Compute) -> list[Event]:
            events: list[Event] = []
            try:
                events = blocks.write_again(compute, ask.most)
            finally:
                with self._changed:
                    all_well = self._arrears.answered(ask, any_left=bool(events))
                    if all_well:
                        self._say_works()
                    self._changed.notify_all()
            return events

        self._report(found)

    def _say_works(self) -> None:
        if self._durability.over(DISK):
            log.warning("the disk takes blocks again")
