"""Tails: what follows the last block of a prompt or an answer, kept until what comes next is.

A tail is less than a block, and most are overtaken soon: the next turn begins with it and makes a
block of its tokens.  So there are few in RAM, and the SSD gets only those that nobody goes on from.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.events import BlocksEvicted, Event, TailsSettled, WriteQueued
from mlxbun.domain.residency.state import Residency

MAX_TAILS = 64  # in RAM
SETTLE_SECONDS = 10.0  # without use, after which a tail is written


def too_many_tails(state: Residency, new: Sequence[BlockInfo]) -> list[Event]:
    """Choose which tails leave RAM so that there are not too many when `new` have come."""
    over = len(state.tails) + sum(info.kind == "tail" for info in new) - MAX_TAILS
    if over <= 0:
        return []
    oldest = tuple(key for key in state.tails if _may_leave(state, key))[:over]
    return [BlocksEvicted(oldest, 0)] if oldest else []


def overtaken(state: Residency, keys: Sequence[BlockKey]) -> list[Event]:
    """Choose which of `keys` leave RAM, tails whose tokens are in blocks now."""
    gone = tuple(key for key in keys if key in state.tails and _may_leave(state, key))
    return [BlocksEvicted(gone, 0, "overtaken")] if gone else []


def settled(state: Residency, since: float) -> list[Event]:
    """Have the SSD take the tails that were not used after `since`.

    Not where a block after the same block was of use later: there the conversation went on.
    """
    due: list[BlockKey] = []
    for key in state.unsettled:  # the order of their use
        if state.blocks[key].used_at > since:
            break
        due.append(key)
    if not due:
        return []
    events: list[Event] = [TailsSettled(tuple(due))]
    later: dict[BlockKey | None, int] = {}
    for resident in state.blocks.values():
        if resident.info.kind == "block":
            parent = resident.info.parent
            later[parent] = max(later.get(parent, 0), resident.used)
    writable = tuple(key for key in due if _is_to_be_written(state, key, later))
    return [*events, WriteQueued(writable)] if writable else events


def next_settling(state: Residency) -> float | None:
    """Return when a tail is written unless it is used; None for never, as things are."""
    oldest = next(iter(state.unsettled), None)
    return None if oldest is None else state.blocks[oldest].used_at + SETTLE_SECONDS


def _may_leave(state: Residency, key: BlockKey) -> bool:
    """Return whether nobody borrows a tail, and nobody reads it to write it."""
    return not (state.blocks[key].num_lent or state.blocks[key].writing)


def _is_to_be_written(state: Residency, key: BlockKey, later: dict[BlockKey | None, int]) -> bool:
    resident = state.blocks[key]
    if resident.on_ssd or resident.writing:
        return False
    before = resident.info.parent
    if later.get(before, 0) > resident.used:
        return False
    parent = state.blocks.get(before) if before is not None else None
    return before is None or (parent is not None and (parent.on_ssd or parent.writing))
