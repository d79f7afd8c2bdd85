"""Kept ids in memory, as a disk would keep them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxbun.domain.blocks import Namespace, StoreFailed
from mlxbun.domain.kept_ids import Kept


class DictKeptIds:
    """Port KeptIdsStore; a test sets `failing`, and `on_save`, which is called after each save."""

    def __init__(self) -> None:
        self.kept: dict[Namespace, dict[str, Kept]] = {}
        self.failing: Exception | None = None
        self.num_saves = 0
        self.on_save: Callable[[], None] = lambda: None

    def load(self, namespace: Namespace) -> Sequence[Kept]:
        self._check()
        return list(self.kept.get(namespace, {}).values())

    def save(self, namespace: Namespace, new: Sequence[Kept], gone: Sequence[Kept]) -> int:
        self._check()
        self.num_saves += 1
        texts = self.kept.setdefault(namespace, {})
        for one in (*gone, *new):
            texts.pop(one.digest, None)
        texts.update({one.digest: one for one in new})
        self.on_save()
        return sum(4 * len(one.ids) for one in new)

    # For tests.

    def damage(self, namespace: Namespace, one: Kept) -> None:
        """Have the next load find a text's ids damaged."""
        del self.kept[namespace][one.digest]

    def fail(self) -> None:
        self.failing = StoreFailed("the disk is gone")

    def _check(self) -> None:
        if self.failing is not None:
            raise self.failing
