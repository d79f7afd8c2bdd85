"""Restoring: blocks come back from a disk before they are needed, on a thread of its own.

What somebody could run with goes first.  A block that cannot be read is reported, with all after
it in its chain, and computed again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from mlxbun.application.durability import CLOSING, UPKEEP, Durability, said
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.restores import Restores
from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockStore, Namespace, Tensor
from mlxbun.domain.residency import Event
from mlxbun.domain.steps import Compute

Report = Callable[[ResidentBlocks, Compute], list[Event]]


class Restorer:
    """Reads blocks of one namespace.  `read` and `cancel` return at once.

    `report` hands a report to the engine's thread, and is called on the thread here, too.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        durability: Durability,
        report: Callable[[Report], None],
        sample: BlockInfo | None = None,
    ) -> None:
        """`sample` is read first, to know how fast the disk is; nobody waits for it."""
        self._sample = sample
        self._store = store
        self._namespace = namespace
        self._durability = durability
        self._report = report
        self._changed = threading.Condition()
        self._restores = Restores()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mlxbun-ssd-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def read(self, blocks: Sequence[BlockInfo], ahead: bool) -> None:
        """Bring blocks into RAM, in order, as soon as may be; what is read `ahead` can wait."""
        with self._changed:
            if not self._closing:
                self._restores.add(blocks, ahead)
                self._changed.notify_all()
                return
        self._not_read([block.key for block in blocks], CLOSING)

    def cancel(self, keys: Sequence[BlockKey]) -> None:
        """Read blocks no more that nobody wants now; what was read already is still reported."""
        with self._changed:
            gone = self._restores.cancel(keys)
        if gone:
            self._report(lambda blocks, compute: blocks.not_read(compute, gone))

    def close(self) -> None:
        """Read nothing more; who still waits is told so.  `join` waits for the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    # -- on its thread --

    def _run(self) -> None:
        if self._sample is not None:
            self._measure(self._sample)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._restores or self._closing)
                if self._closing:
                    left = self._restores.clear()
                    break
                self._restores.begin()
            self._read_chain()
        if left:
            self._not_read([block.key for block in left], CLOSING)

    def _measure(self, block: BlockInfo) -> None:
        started = time.perf_counter()
        try:
            self._store.read(self._namespace, block.key)
        except Exception as error:
            self._not_read([block.key], said(error))
            return
        seconds = time.perf_counter() - started
        self._report(lambda blocks, compute: blocks.measured(compute, block.num_bytes, seconds))

    def _read_chain(self) -> None:
        """Read a chain, until it ends, a block is lost, or what is more urgent comes."""
        found: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        lost: list[BlockKey] = []
        cause, started = "", time.perf_counter()
        while (block := self._next()) is not None:
            try:
                found.append((block, self._store.read(self._namespace, block.key)))
            except Exception as error:  # BlockLost, or the store's own fault: recompute
                cause = said(error)
                with self._changed:
                    lost = [block.key, *(after.key for after in self._restores.rest())]
        if found:
            self._durability.restored(len(found))
            seconds = time.perf_counter() - started
            self._report(lambda blocks, compute: blocks.restored(compute, found, seconds))
            try:
                self._store.used(self._namespace, [block.key for block, _ in found])
            except Exception as error:
                self._durability.complain(UPKEEP, f"uses of blocks are not noted: {said(error)}")
        if lost:
            self._not_read(lost, cause)

    def _next(self) -> BlockInfo | None:
        with self._changed:
            return None if self._closing else self._restores.next()

    def _not_read(self, keys: Sequence[BlockKey], cause: str) -> None:
        self._durability.lost(keys, cause)
        self._report(lambda blocks, compute: blocks.not_restored(compute, keys, cause))
