"""Watching memory: what holds how much, and the prefix cache giving back when it is short.

Runs on the engine's thread, at most once a second, or when the prefix cache holds more or less.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlxbun.application.prefixes import Prefixes
from mlxbun.domain.journal import Event
from mlxbun.domain.memory import MemoryMeasured, measured
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.memory")

EVERY_SECONDS = 1.0


class MemoryWatch:
    """Knows when to look.  `now` is a monotonic clock's seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due = 0.0
        self._kept_bytes = 0  # by the prefix cache, when looked at last
        self.ledger: MemoryMeasured | None = None  # as of the last look

    def look(
        self, compute: Compute, prefixes: Prefixes | None, *, resting: bool = False
    ) -> list[Event]:
        """Measure, and relieve what is short, if it is time to; at rest it is.

        Returns the events that were applied, and the ledger where it changed.
        """
        now = self._now()
        kept_bytes = prefixes.blocks.state.ram_bytes if prefixes is not None else 0
        if now < self._due and kept_bytes == self._kept_bytes and not resting:
            return []
        self._due = now + EVERY_SECONDS
        events: list[Event] = []
        ledger = _measured(compute, prefixes)
        if prefixes is not None and ledger.short_bytes:
            events += prefixes.upkeep.relieve(compute, ledger.short_bytes)
            if events:
                log.info("memory is short by %d bytes: the prefix cache gives", ledger.short_bytes)
                ledger = _measured(compute, prefixes)
        self._kept_bytes = ledger.prefix_cache_bytes
        if ledger != self.ledger:
            self.ledger = ledger
            events.append(ledger)
        return events


def _measured(compute: Compute, prefixes: Prefixes | None) -> MemoryMeasured:
    if prefixes is None:
        return measured(compute.memory())
    return measured(
        compute.memory(),
        prefix_cache_bytes=prefixes.blocks.state.ram_bytes,
        writing_bytes=prefixes.blocks.writing_bytes,
        restoring_bytes=prefixes.blocks.state.restoring_bytes,
    )
