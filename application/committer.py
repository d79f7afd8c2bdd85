"""Committing: a batch of blocks becomes durable, or it is said why it does not.

All of it happens on the writer's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.application.durability import UPKEEP, Durability, said
from mlxbun.application.restorer import Report
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

# Kinds of complaints.
LATE = "they left RAM before they were written"
ORPHANED = "the blocks before them are not on the disk"
DISK = "disk"

Contents = Sequence[tuple[BlockInfo, Sequence[Tensor]]]


class Outcome(Struct, frozen=True):
    """What became of a batch: whether something is durable, and whether something `owed` is not.

    What left RAM is owed to nobody.  `broke` is why the disk refused `refused`, if it did.
    """

    wrote: bool = False
    owed: bool = False
    broke: Exception | None = None
    refused: tuple[BlockKey, ...] = ()


class Committer:
    """Writes blocks of one namespace, within `max_bytes`.

    `tensors` is the compute port's, `report` hands a report to the engine's thread.
    """

    def __init__(
        self,
        store: BlockStore,
        namespace: Namespace,
        durability: Durability,
        *,
        tensors: Callable[[BlockKey], Sequence[Tensor]],
        report: Callable[[Report], None],
        max_bytes: int | None,
    ) -> None:
        self._store, self._namespace, self._durability = store, namespace, durability
        self._tensors, self._report, self._max_bytes = tensors, report, max_bytes
        self.holding: Sequence[BlockInfo] = ()  # whose bytes are being written; replaced

    def commit(self, batch: Sequence[BlockInfo]) -> Outcome:
        """Write a batch, parents first, and keep to the cap."""
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
            self.not_written(gone, LATE)
        self.holding = tuple(block for block, _ in there)
        try:
            outcome = self._commit(there) if there else Outcome()
        finally:
            self.holding = ()
        if outcome.wrote:
            self._keep_to_cap()
        if outcome.wrote and not gone:
            self._durability.over(LATE)
        return outcome

    def _commit(self, blocks: Contents) -> Outcome:
        """Commit blocks, but those after some that the disk has lost."""
        orphans: Sequence[BlockInfo] = ()
        try:
            try:
                committed = self._store.commit(self._namespace, blocks)
            except StoreFailed as failure:
                if failure.errno is not None:  # the disk's fault, not that of what came before
                    raise
                blocks, orphans = self._sorted(blocks)
                if not orphans:
                    raise
                self._tell_orphans(orphans)
                if not blocks:
                    return Outcome(owed=True)
                committed = self._store.commit(self._namespace, blocks)
        except Exception as error:
            if not isinstance(error, StoreFailed):  # the store's own fault must not end a thread
                log.exception("the block store failed")
            refused = tuple(block.key for block, _ in blocks)
            self.refuse(refused, error)
            return Outcome(owed=True, broke=error, refused=refused)
        keys = [block.key for block, _ in blocks]
        self._durability.wrote([block for block, _ in blocks], committed.bytes_written)
        self._report(lambda blocks, compute: blocks.written(compute, keys))
        if not orphans:
            self._durability.over(ORPHANED)
        return Outcome(wrote=True, owed=bool(orphans))

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

        Those that are in RAM are written again, from the first that is not there.
        """
        keys = [block.key for block in orphans]
        parents = [b.parent for b in orphans if b.parent is not None and b.parent not in keys]
        self._report(lambda blocks, compute: blocks.not_restored(compute, parents, ORPHANED))
        self.not_written(keys, ORPHANED)

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

    def measure(self) -> None:
        """Learn how much is on the disk.  Here, as whoever asks must not wait for the disk."""
        try:
            self._durability.bytes_on_disk = self._store.num_bytes()
        except Exception as error:
            self._durability.complain(UPKEEP, f"the disk's size is not known: {said(error)}")

    def refuse(self, keys: Sequence[BlockKey], error: Exception) -> None:
        """Say of blocks that the disk does not take them."""
        self._durability.not_written(keys, said(error), DISK, error)
        self._report(lambda blocks, compute: blocks.not_written(compute, keys, said(error)))

    def not_written(self, keys: Sequence[BlockKey], cause: str) -> None:
        """Say of blocks that the disk is not given them.  Any thread."""
        self._durability.not_written(keys, cause, cause, dropped=True)
        self._report(lambda blocks, compute: blocks.not_written(compute, keys, cause))
