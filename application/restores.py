"""Restores: what is to be read from the disk, in which order, and what nobody wants any more.

What somebody waits for who could run goes before what is read ahead for those behind in the
queue.  Not for more than one thread at a time: whoever calls holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey


class Restores:
    """Queues of blocks, each of a chain in its order."""

    def __init__(self) -> None:
        self._urgent: deque[list[BlockInfo]] = deque()
        self._ahead: deque[list[BlockInfo]] = deque()
        self._reading: list[BlockInfo] = []  # what is left of the chain that is being read
        self._is_ahead = False

    def __bool__(self) -> bool:
        """Whether there is a chain to begin with."""
        return bool(self._urgent or self._ahead)

    def add(self, blocks: Sequence[BlockInfo], ahead: bool) -> None:
        (self._ahead if ahead else self._urgent).append(list(blocks))

    def begin(self) -> None:
        """Take up the next chain."""
        self._is_ahead = not self._urgent
        self._reading = (self._urgent or self._ahead).popleft()

    def next(self) -> BlockInfo | None:
        """Return the next block of the chain; None where it ends, or where another goes first."""
        if self._is_ahead and self._urgent and self._reading:
            self._ahead.appendleft(self._reading)
            self._reading = []
        return self._reading.pop(0) if self._reading else None

    def rest(self) -> list[BlockInfo]:
        """Give up what is left of the chain, and return it."""
        rest, self._reading = self._reading, []
        return rest

    def clear(self) -> list[BlockInfo]:
        """Give up everything, and return it."""
        gone = [block for chain in (self.rest(), *self._urgent, *self._ahead) for block in chain]
        self._urgent.clear()
        self._ahead.clear()
        return gone

    def cancel(self, keys: Iterable[BlockKey]) -> list[BlockKey]:
        """Take blocks out; return those that were still to be read."""
        unwanted, gone = set(keys), list[BlockKey]()
        for chain in (self._reading, *self._urgent, *self._ahead):
            gone += [block.key for block in chain if block.key in unwanted]
            chain[:] = [block for block in chain if block.key not in unwanted]
        for queue in (self._urgent, self._ahead):
            left = [chain for chain in queue if chain]
            queue.clear()
            queue.extend(left)
        return gone
