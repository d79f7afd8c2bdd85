"""A block store in memory: what the port promises, told plainly enough to be a model for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    Committed,
    Namespace,
    StoreFailed,
    Tensor,
)

Content = tuple[tuple[str, str, tuple[int, ...], bytes], ...]


class Kept(Struct):
    info: BlockInfo
    content: Content
    number: int  # in the order of arrival
    last_used: float


def data_bytes(content: Content) -> int:
    return sum(len(data) for *_, data in content)


class DictBlockStore:
    """Port BlockStore.

    `now` is time, a count of calls by default; `file_bytes` is how long a file would be.
    A test sets `failing` to have every call but `read` raise it, and calls `damage`.
    """

    def __init__(
        self,
        now: Callable[[], float] | None = None,
        file_bytes: Callable[[Content], int] = data_bytes,
    ) -> None:
        self.blocks: dict[tuple[Namespace, BlockKey], Kept] = {}
        self.damaged: set[Content] = set()
        self.failing: StoreFailed | None = None
        self.closed = False
        self._now = now or itertools.count(1.0).__next__
        self._file_bytes = file_bytes
        self._numbers = itertools.count()
        self._rates: dict[Namespace, float] = {}

    def known(self, namespace: Namespace) -> Sequence[BlockInfo]:
        self._fail()
        return [kept.info for (of, _), kept in self.order() if of == namespace]

    def commit(
        self, namespace: Namespace, blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]]
    ) -> Committed:
        self._fail()
        waiting = {
            info.key: (info, tensors)
            for info, tensors in reversed(blocks)
            if (namespace, info.key) not in self.blocks
        }
        for info, _ in waiting.values():
            if not {info.parent, (namespace, info.parent)} & {None, *waiting, *self.blocks}:
                raise StoreFailed(f"the parent of {info.key} is not kept")
        new, at = len(waiting), self._now() if waiting else 0.0
        before = self.num_bytes()
        for first, _ in blocks:
            path: list[tuple[BlockInfo, Sequence[Tensor]]] = []
            up: BlockKey | None = first.key
            while up is not None and up in waiting:
                path.append(waiting.pop(up))
                up = path[-1][0].parent
            for info, tensors in reversed(path):
                content = tuple((t.name, t.dtype, t.shape, bytes(t.data)) for t in tensors)
                self.damaged.discard(content)
                self.blocks[namespace, info.key] = Kept(info, content, next(self._numbers), at)
                self._touch(namespace, info.key, at)
        return Committed(new, self.num_bytes() - before)

    def read(self, namespace: Namespace, key: BlockKey) -> Sequence[Tensor]:
        kept = self.blocks.get((namespace, key))
        if kept is None:
            raise BlockLost(f"block {key} is not kept")
        if kept.content in self.damaged:
            self.forget(kept.content)
            raise BlockLost(f"block {key} is damaged")
        return [Tensor(*fields) for fields in kept.content]

    def used(self, namespace: Namespace, keys: Sequence[BlockKey]) -> None:
        self._fail()
        at = self._now()
        for key in keys:
            self._touch(namespace, key, at)

    def shrink(self, max_bytes: int) -> Sequence[tuple[Namespace, BlockKey]]:
        self._fail()
        gone: list[tuple[Namespace, BlockKey]] = []
        for name, _ in self.order():
            if self.num_bytes() <= max_bytes:
                break
            del self.blocks[name]
            gone.append(name)
        return gone

    def num_bytes(self) -> int:
        self._fail()
        return sum(self._file_bytes(content) for content in self.contents())

    def prefill_rate(self, namespace: Namespace) -> float:
        self._fail()
        return self._rates.get(namespace, 0.0)

    def note_prefill_rate(self, namespace: Namespace, tokens_per_second: float) -> None:
        self._fail()
        self._rates[namespace] = tokens_per_second

    def close(self) -> None:
        self.closed = True

    # For tests.

    def contents(self) -> set[Content]:
        return {kept.content for kept in self.blocks.values()}

    def order(self) -> list[tuple[tuple[Namespace, BlockKey], Kept]]:
        """Return all blocks in the order in which `shrink` takes them."""
        return sorted(self.blocks.items(), key=lambda b: (b[1].last_used, -b[1].number))

    def count_from(self, number: int) -> None:
        """Number the blocks to come from here on, as a store that was opened anew does."""
        self._numbers = itertools.count(number)

    def damage(self, namespace: Namespace, key: BlockKey) -> None:
        """Have the next read of a block, or of one with the same content, find it damaged."""
        self.damaged.add(self.blocks[namespace, key].content)

    def forget(self, content: Content) -> None:
        """Forget every block of a content, and all after it."""
        self.damaged.discard(content)
        names = [name for name, kept in self.blocks.items() if kept.content == content]
        while names:
            namespace, key = names.pop()
            self.blocks.pop((namespace, key), None)
            names += [
                n for n, k in self.blocks.items() if (n[0], k.info.parent) == (namespace, key)
            ]

    def _touch(self, namespace: Namespace, key: BlockKey | None, at: float) -> None:
        while key is not None and (kept := self.blocks.get((namespace, key))):
            kept.last_used = max(kept.last_used, at)
            key = kept.info.parent

    def _fail(self) -> None:
        if self.closed:
            raise StoreFailed("the store is closed")
        if self.failing is not None:
            raise self.failing
