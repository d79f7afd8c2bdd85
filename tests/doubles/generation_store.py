"""Checkpoints of generations in memory, beside the blocks of a store in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from doubles.block_store import DictBlockStore
from mlxbun.domain.blocks import BlockInfo, BlockLost, Committed, Namespace, StoreFailed, Tensor
from mlxbun.domain.generation_checkpoint import Bounds, GenerationCheckpoint, GenerationKey


class Kept(Struct):
    checkpoint: GenerationCheckpoint
    saved: float
    number: int  # in the order of arrival


class DictGenerations:
    """Port GenerationStore.  It fails where `blocks` does; a test calls `damage`."""

    def __init__(self, blocks: DictBlockStore, now: Callable[[], float]) -> None:
        self.kept: dict[tuple[Namespace, GenerationKey], Kept] = {}
        self._blocks, self._now = blocks, now
        self._numbers = itertools.count()

    def keys(self, namespace: Namespace) -> Sequence[GenerationKey]:
        self._blocks.num_bytes()  # fails where the store does
        return [kept.checkpoint.key for kept in self._order(namespace)]

    def save(
        self,
        namespace: Namespace,
        checkpoint: GenerationCheckpoint,
        new: Sequence[tuple[BlockInfo, Sequence[Tensor]]] = (),
        after: int = 0,
    ) -> Committed:
        older = self.kept.get((namespace, checkpoint.key))
        num_there = len(older.checkpoint.token_ids) if older is not None else 0
        if after not in (0, num_there):
            raise StoreFailed(f"{after} tokens of the checkpoint are not kept")
        there = {key for of, key in self._blocks.blocks if of == namespace}
        if {part.key for part in checkpoint.state} - there - {part.key for part, _ in new}:
            raise StoreFailed("some of the checkpoint's state is not kept")
        committed = self._blocks.commit(namespace, new)
        self._remove(namespace, checkpoint.key, checkpoint.state)
        self.kept[namespace, checkpoint.key] = Kept(checkpoint, self._now(), next(self._numbers))
        return committed

    def load(
        self, namespace: Namespace, key: GenerationKey
    ) -> tuple[GenerationCheckpoint, Sequence[Sequence[Tensor]]] | None:
        kept = self.kept.get((namespace, key))
        if kept is None:
            return None
        checkpoint = kept.checkpoint
        try:
            state = [self._blocks.read(namespace, part.key) for part in checkpoint.state]
        except BlockLost:
            return msgspec.structs.replace(checkpoint, state=()), []
        return checkpoint, state

    def drop(self, namespace: Namespace, keys: Sequence[GenerationKey]) -> None:
        self._blocks.num_bytes()
        for key in keys:
            self._remove(namespace, key)

    def prune(self, namespace: Namespace, bounds: Bounds) -> Sequence[GenerationKey]:
        going: list[GenerationKey] = []
        order = self._order(namespace)
        while order:
            num_bytes = sum(kept.checkpoint.num_bytes for kept in order)
            old = self._now() - order[0].saved > bounds.max_age_seconds
            if len(order) <= bounds.max_checkpoints and num_bytes <= bounds.max_bytes and not old:
                break
            going.append(order.pop(0).checkpoint.key)
        self.drop(namespace, going)
        return going

    # For tests.

    def damage(self, namespace: Namespace, key: GenerationKey) -> None:
        """Have the next load of a checkpoint find it damaged."""
        self._remove(namespace, key)

    def _order(self, namespace: Namespace) -> list[Kept]:
        mine = (kept for (of, _), kept in self.kept.items() if of == namespace)
        return sorted(mine, key=lambda kept: (kept.saved, kept.number))

    def _remove(
        self, namespace: Namespace, key: GenerationKey, but: Sequence[BlockInfo] = ()
    ) -> None:
        old = self.kept.pop((namespace, key), None)
        for part in old.checkpoint.state if old is not None else ():
            if part not in but:
                self._blocks.blocks.pop((namespace, part.key), None)
