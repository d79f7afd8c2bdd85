"""Deciders: the states of scheduling and of sampling while an engine runs.

What one of them decides is applied before anything else is decided, and goes to the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlxbun.domain import sampling, scheduling
from mlxbun.domain.journal import Event


class Deciders:
    """Owns both states.  `note` takes the events, in the order in which they were applied."""

    def __init__(self, limits: scheduling.Limits, note: Callable[[Sequence[Event]], None]) -> None:
        self.scheduling = scheduling.Scheduling(limits)
        self.sampling = sampling.Sampling()
        self._note = note

    def schedule(self, command: scheduling.Command) -> list[scheduling.Event]:
        """Decide on a command to the scheduler, and apply what was decided."""
        events = scheduling.decide(self.scheduling, command)
        self.apply(events)
        return events

    def sample(self, command: sampling.Command) -> None:
        """Decide on a command about a session, and apply what was decided."""
        self.apply(sampling.decide(self.sampling, command))

    def apply(self, events: Sequence[sampling.Event | scheduling.Event]) -> None:
        for event in events:
            if isinstance(event, sampling.Event):
                self.sampling = sampling.evolve(self.sampling, event)
            else:
                self.scheduling = scheduling.evolve(self.scheduling, event)
        self._note(events)
