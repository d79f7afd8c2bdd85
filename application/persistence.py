"""Persistence: state goes to a disk behind the engine's back, and comes back before it is needed.

Two threads: one writes what was published, in batches, one reads what somebody waits for.  Both
report to the engine, which decides.  A disk that is full, slow or broken costs speed, is said
once, and loses no request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from mlxbun.application.backoff import Backoff
from mlxbun.application.committer import Committer
from mlxbun.application.durability import Durability, FlushReport
from mlxbun.application.kept_disk import KeptDisk
from mlxbun.application.restorer import Report, Restorer
from mlxbun.application.writer import QUEUE_BYTES, Writer
from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockStore, Namespace, Tensor
from mlxbun.domain.kept_ids import KeptIds, KeptIdsStore

log = logging.getLogger("mlxbun.persistence")

SAMPLE_BYTES = 1 << 20  # what less takes says more of the way to the disk than of the disk
LEAST_SECONDS = 0.1  # that a thread gets to end


class Persistence:
    """Writes and reads blocks of one namespace.  `write`, `read` and `keep` return at once.

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
        kept_ids: KeptIdsStore | None = None,
        again: Backoff | None = None,
    ) -> None:
        """`known` is what the store has of the namespace; `again` when to try what failed."""
        self._store = store
        self._durability = Durability(known)
        self._kept = None
        if kept_ids is not None:
            self._kept = KeptDisk(kept_ids, namespace, self._durability)
        self._prefill_rate = 0.0
        self._namespace = namespace
        used_last = known[-1] if known else None
        sample = used_last if used_last and used_last.num_bytes >= SAMPLE_BYTES else None
        self._restorer = Restorer(store, namespace, self._durability, report, sample)
        committer = Committer(
            store,
            namespace,
            self._durability,
            tensors=tensors,
            report=report,
            max_bytes=max_bytes,
        )
        self._writer = Writer(
            committer,
            self._kept,
            self._durability,
            report=report,
            queue_bytes=queue_bytes,
            again=again or Backoff(),
        )
        self._closing = threading.Lock()
        self._closer: threading.Thread | None = None
        self.kept_ids = KeptIds()

    def start(self) -> None:
        """Begin; `kept_ids` are then those that the disk had."""
        if self._kept is not None:
            self.kept_ids = self._kept.load()
        self._writer.start()
        self._restorer.start()

    def write(self, blocks: Sequence[BlockInfo]) -> None:
        """Make blocks durable some time; beyond the queue's bound they stay in RAM only."""
        self._writer.write(blocks)

    def keep(self, kept: KeptIds) -> None:
        """Make ids durable some time, and nothing of what was kept before that is not in them."""
        self._writer.keep(kept)

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None:
        """Bring blocks into RAM, in order, as soon as may be; what is read `ahead` can wait."""
        self._restorer.read(blocks, ahead)

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        """Read blocks no more that nobody wants now; what was read already is still reported."""
        self._restorer.cancel(keys)

    def learned(self, prefill_tokens_per_second: float) -> None:
        """Note how fast prompts are read; the store has it when it is closed."""
        self._prefill_rate = prefill_tokens_per_second

    def holding(self) -> Sequence[BlockInfo]:
        """Return the blocks whose bytes are being written, in RAM or not.  Any thread."""
        return self._writer.holding()

    def flush(self, timeout_seconds: float) -> FlushReport:
        """Wait until what is to be written is durable, or the time is up.  Any thread.

        What the disk refused is tried once more.
        """
        return self._flush(timeout_seconds, asks=True)

    def try_again(self, timeout_seconds: float) -> None:
        """Try once more what the disk refused, if it refused anything, while the engine runs."""
        if self._writer.owes:
            self._flush(timeout_seconds, asks=True)

    def _flush(self, timeout_seconds: float, *, asks: bool) -> FlushReport:
        started = time.monotonic()
        before = self._durability.num_written
        left = self._writer.settle(timeout_seconds, asks=asks)
        return self._durability.report(
            flushed_blocks=self._durability.num_written - before,
            pending_blocks=left.num_blocks,
            pending_bytes=left.num_bytes,
            pending_texts=left.num_texts,
            elapsed_seconds=time.monotonic() - started,
        )

    def close(self, timeout_seconds: float) -> FlushReport:
        """Flush, end the threads, release the directory.  What is not durable then never is.

        All of that in one time, of which a tenth is left for ending; a disk that does not answer
        by then is left as it is.  The engine has ended, so it is not asked for anything.
        """
        deadline = time.monotonic() + max(timeout_seconds, LEAST_SECONDS)
        report = self._flush(max(0.0, 0.9 * timeout_seconds - LEAST_SECONDS), asks=False)
        with self._closing:
            self._writer.close()
            self._restorer.close()
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
        self._writer.join()
        self._restorer.join()
        try:
            if self._prefill_rate:
                self._store.note_prefill_rate(self._namespace, self._prefill_rate)
        except Exception as error:  # it is measured again
            log.warning("how fast prompts are read is not noted: %s", error)
        try:
            self._store.close()
        except Exception:  # nobody is left to tell
            log.exception("the block store could not be closed")
