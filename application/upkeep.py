"""Upkeep: what leaves RAM without a request: sessions that close, idle state, short memory.

Every method runs on the engine's thread, and returns the events that it applied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import Struct

from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.domain import residency
from mlxbun.domain.residency import Event, SessionId
from mlxbun.domain.steps import Compute


class Released(Struct, frozen=True):
    """What no session holds any more: blocks in RAM, and their bytes.  They stay where they are."""

    num_blocks: int = 0
    num_bytes: int = 0


class Upkeep:
    """Sees to resident blocks.  `now` is a monotonic clock's seconds."""

    def __init__(self, blocks: ResidentBlocks, now: Callable[[], float]) -> None:
        self._blocks = blocks
        self._now = now

    def close_session(self, compute: Compute, name: str) -> tuple[Released, list[Event]]:
        """Let a session's state leave RAM as any other does; say how much of it is there."""
        before = self._blocks.state.sessions.get(session_id(name))
        events = self._blocks.decide(compute, residency.CloseSession(session_id(name)))
        if before is None:
            return Released(), events
        state = self._blocks.state
        free = [state.blocks.get(key) for key in before.keys if key not in state.held]
        sizes = [block.info.num_bytes for block in free if block is not None and block.in_ram]
        return Released(len(sizes), sum(sizes)), events

    def idle_seconds(self) -> float | None:
        """Return in how many seconds time alone may bring something to do; None: never."""
        due = residency.next_due(self._blocks.state)
        if due is None:
            return None
        # A second more, so that what becomes idle soon after leaves with it.
        return max(0.0, due - self._now()) + residency.STEP_SECONDS

    def settle(self, compute: Compute) -> list[Event]:
        """Have the SSD take what it was to have later: no more requests come."""
        return self._blocks.settle(compute)

    def pass_time(self, compute: Compute) -> list[Event]:
        """Do what the time that has passed brings."""
        return self._blocks.apply(compute, residency.Tick(self._now()))

    def relieve(self, compute: Compute, num_bytes: int) -> list[Event]:
        """Give back `num_bytes` of memory, as far as they are there."""
        return self._blocks.apply(compute, residency.Relieve(num_bytes))


def session_id(name: str) -> SessionId:
    """Return what stands for a client's name of a session, of which nothing is kept."""
    return SessionId(hashlib.sha256(name.encode()).hexdigest()[:32])
