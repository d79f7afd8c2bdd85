"""What leaves RAM when room is short.

What no live session holds leaves before what one does, and what the SSD has before what it has
not; within that, by `retention`, and of a chain the end before its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.residency.events import BlocksEvicted, Event, PressureRelieved
from mlxbun.domain.residency.order import least_first
from mlxbun.domain.residency.state import Residency, Resident, holds
from mlxbun.domain.residency.words import Cause

CEILING = 1.25  # of the target: beyond it state leaves RAM though no SSD has it

_FREE_COVERED, _FREE, _HELD_COVERED, _HELD = range(4)  # as `queue_of` numbers them


class _Leaving:
    """Chooses blocks until `over` bytes are dealt with."""

    def __init__(self, state: Residency, over: int, last: frozenset[BlockKey]) -> None:
        self.over = over
        self.keys: dict[BlockKey, None] = {}
        self._state = state
        self._last = last

    def take(self, queue: int, allowed: int = 0) -> bool:
        """Choose of `queue` until `allowed` is left over; return whether that was enough."""
        for resident in in_order(self._state, queue):
            if self.over <= allowed:
                break
            if resident.info.key not in self._last:
                self._choose(resident)
        return self.over <= allowed

    def take_last(self, allowed: int) -> None:
        """Choose of what is to leave last, ends first."""
        spared = [self._state.blocks[key] for key in self._last if key in self._state.blocks]
        for resident in sorted(spared, key=lambda r: (-r.info.start, r.info.key)):
            if self.over <= allowed:
                break
            if resident.in_ram and not resident.num_lent:
                self._choose(resident)

    def _choose(self, resident: Resident) -> None:
        if resident.info.key not in self.keys:
            self.keys[resident.info.key] = None
            self.over -= resident.info.num_bytes


def fitted(state: Residency, last: frozenset[BlockKey]) -> list[Event]:
    """Choose what leaves so that RAM is within its budget.

    Nothing leaves while all fits the target.  What no SSD has stays above the target, up to the
    ceiling, where there is an SSD to wait for; and while it waits, sessions keep what they hold.
    """
    over = state.ram_bytes - state.budget.ram_bytes
    if over <= 0:
        return []
    mercy = int(state.budget.ram_bytes * (CEILING - 1)) if state.budget.has_ssd else 0
    leaving = _Leaving(state, over, last)
    if not leaving.take(_FREE_COVERED) and not leaving.take(_FREE, mercy):
        leaving.take(_HELD_COVERED)
        leaving.take(_HELD, mercy)
        leaving.take_last(mercy)
    elif leaving.over > 0 and not _any_left(state, leaving.keys):
        leaving.take(_HELD_COVERED)
    return _left(state, tuple(leaving.keys), "room")


def relieved(state: Residency, num_bytes: int) -> list[Event]:
    """Choose what leaves so that `num_bytes` are given back: first all that the SSD has."""
    leaving = _Leaving(state, num_bytes, frozenset())
    for queue in (_FREE_COVERED, _HELD_COVERED, _FREE, _HELD):
        if leaving.take(queue):
            break
    if not leaving.keys:
        return []
    freed = num_bytes - leaving.over
    return [
        PressureRelieved(num_bytes, freed),
        *_left(state, tuple(leaving.keys), "pressure"),
    ]


def in_order(state: Residency, queue: int) -> Iterator[Resident]:
    """Yield the blocks of a queue that nobody borrows, in the order in which they leave."""
    for entry in least_first(state.queues[queue]):
        if holds(state, queue, entry):
            resident = state.blocks[entry[2]]
            if not resident.num_lent:
                yield resident


def _any_left(state: Residency, going: dict[BlockKey, None]) -> bool:
    """Return whether something stays in RAM that no session holds, for want of an SSD copy."""
    return any(r.info.key not in going for r in in_order(state, _FREE))


def _left(state: Residency, keys: Sequence[BlockKey], cause: Cause) -> list[Event]:
    if not keys:
        return []
    lost = sum(
        not state.blocks[key].on_ssd and state.blocks[key].info.kind != "tail" for key in keys
    )
    return [BlocksEvicted(tuple(keys), lost, cause)]
