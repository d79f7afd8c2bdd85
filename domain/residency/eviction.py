"""What leaves RAM when room is short."""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.state import Residency, Resident
from mlxbun.domain.residency.words import (
    BlocksEvicted,
    Event,
)

CEILING = 1.25  # of the target: beyond it state leaves RAM though no SSD has it


def evicted(
    state: Residency, incoming: Sequence[BlockInfo], durable: frozenset[BlockKey] = frozenset()
) -> list[Event]:
    """Choose what leaves RAM once `incoming` is there and `durable` is on the SSD.

    Nothing leaves while all fits the target.  What no SSD has stays above the
    target, up to the ceiling, where there is an SSD to wait for.
    """
    over = state.ram_bytes + sum(b.num_bytes for b in incoming) - state.budget.ram_bytes
    if over <= 0:
        return []
    mercy = int(state.budget.ram_bytes * (CEILING - 1)) if state.budget.has_ssd else 0
    candidates = [(_priority(state, b), b) for b in state.blocks.values() if b.in_ram]
    candidates = [(p, b) for p, b in candidates if not b.num_lent]
    candidates.sort(key=lambda pair: pair[0])
    going: dict[BlockKey, None] = {}
    for safe in (True, False):
        for _, resident in candidates:
            if over <= (0 if safe else mercy):
                break
            key = resident.info.key
            covered = resident.on_ssd or key in durable or not state.budget.has_ssd
            if covered == safe and key not in going:
                going[key] = None
                over -= resident.info.num_bytes
    for info in sorted(incoming, key=lambda b: -b.start):  # too much by itself: its end goes
        if over <= mercy:
            break
        going[info.key] = None
        over -= info.num_bytes
    return [leaving(state, tuple(going), durable)] if going else []


def leaving(
    state: Residency, keys: tuple[BlockKey, ...], durable: frozenset[BlockKey] = frozenset()
) -> BlocksEvicted:
    """Return the event that `keys` leave RAM; lost are those on no SSD, nor in `durable`."""
    on_ssd = {key for key in keys if key in state.blocks and state.blocks[key].on_ssd} | durable
    lost = sum(key not in on_ssd for key in keys)
    return BlocksEvicted(keys, lost)


def _priority(state: Residency, resident: Resident) -> tuple[float, int]:
    """Return a key that is least for what should leave first; of a chain, its end."""
    least = resident.used if state.budget.retention == "lru" else resident.worth
    return (least, -resident.info.start)
