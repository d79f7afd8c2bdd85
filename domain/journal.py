"""The journal: every event of every decider, in batches, in order.

One batch is what one turn of the engine decided.  The journal is bounded: it is what
explains the last minutes, not an archive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from mlxbun.domain import (
    embedding,
    generation_checkpoint,
    memory,
    residency,
    sampling,
    scheduling,
)

Event = (
    scheduling.Event
    | sampling.Event
    | residency.Event
    | generation_checkpoint.Event
    | memory.Event
    | embedding.Event
)


class EventBatch(Struct, frozen=True):
    """Events that became true together.  `sequence` counts batches from 1 without holes."""

    sequence: int
    events: tuple[Event, ...]


class Journal(Protocol):
    """Port: where batches go.  One thread appends; any thread may read."""

    def append(self, batch: EventBatch) -> None:
        """Keep `batch`, forgetting the oldest when full.  Never waits, never fails."""
        ...

    def read(self, after: int = 0) -> Iterator[EventBatch]:
        """Yield the batches still held whose sequence is greater than `after`, in order."""
        ...
