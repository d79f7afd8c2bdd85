"""What the SSD is to have: parents before children, and what is lost with what."""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.state import Residency, is_in_ram


def unwritten_of(state: Residency, new: Sequence[BlockInfo]) -> tuple[BlockKey, ...]:
    """Return what to write of `new`, after those before it in RAM that were not written."""
    found: dict[BlockKey, None] = {}
    for info in new:
        if info.kind == "tail":
            continue
        before: list[BlockKey] = []
        at = info.parent
        while at is not None and is_in_ram(state, at) and not _is_safe(state, at):
            before.append(at)
            at = state.blocks[at].info.parent
        found |= dict.fromkeys(reversed(before))
        if not _is_safe(state, info.key):
            found[info.key] = None
    return tuple(found)


def owed_to_ssd(state: Residency, max_blocks: int) -> tuple[BlockKey, ...]:
    """Return what RAM alone has and an SSD could take, parents first; last used, first written."""
    if not state.budget.has_ssd:
        return ()
    alone = [
        b
        for b in state.blocks.values()
        if b.in_ram and not (b.on_ssd or b.writing) and b.info.kind != "tail"
    ]
    alone.sort(key=lambda b: (-b.used, b.info.start))
    waiting = {b.info.key for b in alone}
    owed: dict[BlockKey, None] = {}
    for resident in alone:
        if len(owed) >= max_blocks:
            break
        chained: list[BlockKey] = []
        at: BlockKey | None = resident.info.key
        while at is not None and at in waiting:
            chained.append(at)
            waiting.remove(at)
            at = state.blocks[at].info.parent
        if at is None or at in owed or _is_safe(state, at):  # else what it comes after is lost
            owed |= dict.fromkeys(reversed(chained))
    return tuple(owed)[:max_blocks]


def lost_with(state: Residency, keys: Sequence[BlockKey]) -> tuple[BlockKey, ...]:
    """Return `keys` that are known, and what the SSD has after them: it lost all of it."""
    lost = dict.fromkeys(keys)
    for resident in sorted(state.blocks.values(), key=lambda b: b.info.start):
        if resident.on_ssd and resident.info.parent in lost:
            lost[resident.info.key] = None
    return tuple(key for key in lost if key in state.blocks)


def _is_safe(state: Residency, key: BlockKey) -> bool:
    """Return whether a block is on the SSD, or on its way there."""
    resident = state.blocks.get(key)
    return resident is not None and (resident.on_ssd or resident.writing)
