"""Kept ids on a disk: what is durable of them, and what is to be.

Only the newest value counts, so what waits is one value, however many answers end meanwhile.
"""

from __future__ import annotations

import logging

from mlxbun.application.durability import Durability, said
from mlxbun.domain.blocks import Namespace, StoreFailed
from mlxbun.domain.kept_ids import KeptIds, KeptIdsStore, bounded, changed

log = logging.getLogger("mlxbun.persistence")

KEPT = "kept ids"  # a kind of complaints


class KeptDisk:
    """Kept ids of one namespace.  `want` may be called anywhere, `save` by one thread."""

    def __init__(self, store: KeptIdsStore, namespace: Namespace, durability: Durability) -> None:
        self._store, self._namespace, self._durability = store, namespace, durability
        self._durable = self._wanted = KeptIds()

    def load(self) -> KeptIds:
        """Return what is there from earlier, within the bounds.  What is beyond goes some time."""
        try:
            there = self._store.load(self._namespace)
        except StoreFailed as error:
            self._durability.complain(KEPT, f"kept ids cannot be read: {said(error)}")
            return self._wanted
        self._durable, self._wanted = KeptIds(tuple(there)), bounded(there)
        return self._wanted

    def want(self, kept: KeptIds) -> None:
        """Have `kept` be durable, and nothing else."""
        self._wanted = kept

    @property
    def waits(self) -> bool:
        """Whether there is anything to save."""
        return self._wanted is not self._durable

    @property
    def num_waiting(self) -> int:
        """How many texts are not durable."""
        return len(changed(self._durable, self._wanted)[0]) if self.waits else 0

    def save(self) -> bool:
        """Make durable what is wanted; return whether it is."""
        wanted = self._wanted
        new, gone = changed(self._durable, wanted)
        try:
            num_bytes = self._store.save(self._namespace, new, gone) if new or gone else 0
        except Exception as error:
            if not isinstance(error, StoreFailed):  # its own fault must not end a thread
                log.exception("kept ids were not written")
            cause = f"{len(new)} texts have their ids in RAM only: {said(error)}"
            self._durability.complain(KEPT, cause, error)
            return False
        self._durable = wanted
        self._durability.wrote([], num_bytes)
        if self._durability.over(KEPT):
            log.warning("the disk takes kept ids again")
        return True
