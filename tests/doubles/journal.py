"""A journal that keeps everything."""

from __future__ import annotations

from collections.abc import Iterator

from mlxbun.domain import scheduling
from mlxbun.domain.journal import EventBatch


class ListJournal:
    """Port Journal."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []

    def append(self, batch: EventBatch) -> None:
        self.batches.append(batch)

    def read(self, after: int = 0) -> Iterator[EventBatch]:
        return iter([batch for batch in self.batches if batch.sequence > after])

    def scheduled(self) -> scheduling.Scheduling:
        """Return the state to which the scheduler's events fold, under the default limits."""
        state = scheduling.Scheduling(scheduling.Limits())
        for batch in self.batches:
            for event in batch.events:
                if isinstance(event, scheduling.Event):
                    state = scheduling.evolve(state, event)
        return state
