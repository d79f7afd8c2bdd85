"""Where every block is, and the only place where that changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from msgspec import Struct, field

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.words import (
    BlocksEvicted,
    BlocksForgotten,
    BlocksFound,
    BlocksNotWritten,
    BlocksPublished,
    BlocksRestored,
    BlocksWritten,
    Budget,
    Event,
    PrefixAwaited,
    PrefixComputing,
    PrefixLent,
    PrefixMissed,
    PrefixReturned,
    PrefixUserEnded,
    RestoreDeclined,
    RestoreStarted,
    WriteQueued,
)
from mlxbun.domain.sampling import RequestId


class Resident(Struct):
    """A block and where it is."""

    info: BlockInfo
    in_ram: bool = False
    on_ssd: bool = False
    writing: bool = False
    restoring: bool = False
    num_lent: int = 0
    used: int = 0  # when, in finds and publications
    seconds: float = 0.0  # that computing it took
    worth: float = 0.0  # GreedyDual's value


class Residency(Struct):
    """Every block that is kept or on its way.  Only `evolve` writes it."""

    budget: Budget
    blocks: dict[BlockKey, Resident] = field(default_factory=dict[BlockKey, Resident])
    lent: dict[RequestId, tuple[BlockKey, ...]] = field(
        default_factory=dict[RequestId, tuple[BlockKey, ...]]
    )
    computing: dict[BlockKey, RequestId] = field(default_factory=dict[BlockKey, RequestId])
    boundary_lengths: dict[int, int] = field(default_factory=dict[int, int])  # tokens: how many
    ram_bytes: int = 0
    clock: int = 0
    floor: float = 0.0  # GreedyDual's inflation: the worth of what left last
    prefill_tokens_per_second: float = 0.0  # as measured; 0 is not known yet
    restored_bytes_per_second: float = 0.0


def evolve(state: Residency, event: Event) -> Residency:
    """Take ownership of `state`, apply `event`, hand it back.  Never fails, never decides."""
    match event:
        case PrefixLent(request_id=request_id, keys=keys):
            _give_back(state, request_id)
            state.lent[request_id] = keys
            for key in keys:
                state.blocks[key].num_lent += 1
            _touch(state, keys)
        case PrefixReturned(request_id=request_id):
            _give_back(state, request_id)
        case PrefixUserEnded(request_id=request_id):
            _give_back(state, request_id)
            for key in [k for k, r in state.computing.items() if r == request_id]:
                del state.computing[key]
        case PrefixComputing(request_id=request_id, keys=keys):
            state.computing |= dict.fromkeys(keys, request_id)
        case BlocksPublished(blocks=blocks, seconds=seconds):
            total = sum(b.num_tokens for b in blocks) or 1
            state.prefill_tokens_per_second = _learned(
                state.prefill_tokens_per_second, total, seconds
            )
            for info in blocks:
                resident = _enter(state, info)
                resident.seconds = seconds * info.num_tokens / total
                state.computing.pop(info.key, None)
            _touch(state, [b.key for b in blocks])
        case BlocksRestored(blocks=blocks, seconds=seconds):
            state.restored_bytes_per_second = _learned(
                state.restored_bytes_per_second, sum(b.num_bytes for b in blocks), seconds
            )
            for info in blocks:
                _enter(state, info)
            _touch(state, [b.key for b in blocks])
        case BlocksFound(blocks=blocks):
            for info in blocks:
                resident = state.blocks.get(info.key) or _know(state, info)
                resident.on_ssd = True
            _touch(state, [b.key for b in blocks])
        case RestoreStarted(keys=keys):
            for key in keys:
                state.blocks[key].restoring = True
        case WriteQueued(keys=keys):
            for key in keys:
                state.blocks[key].writing = True
        case BlocksWritten(keys=keys):
            for key in keys:
                state.blocks[key].writing, state.blocks[key].on_ssd = False, True
        case BlocksNotWritten(keys=keys):
            for key in keys:
                state.blocks[key].writing = False
                _drop_if_nowhere(state, key)
        case BlocksEvicted(keys=keys):
            for key in keys:
                resident = state.blocks[key]
                state.floor = max(state.floor, resident.worth)
                resident.in_ram = False
                state.ram_bytes -= resident.info.num_bytes
                _drop_if_nowhere(state, key)
        case BlocksForgotten(keys=keys):
            for key in keys:
                resident = state.blocks[key]
                resident.on_ssd = resident.restoring = False
                _drop_if_nowhere(state, key)
        case PrefixMissed(request_id=request_id) | PrefixAwaited(request_id=request_id):
            _give_back(state, request_id)
        case RestoreDeclined():
            pass
        case _:
            assert_never(event)
    return state


def fold(state: Residency, events: Iterable[Event]) -> Residency:
    for event in events:
        state = evolve(state, event)
    return state


def _enter(state: Residency, info: BlockInfo) -> Resident:
    """Put a block into RAM."""
    resident = state.blocks.get(info.key) or _know(state, info)
    resident.info = info
    resident.in_ram, resident.restoring = True, False
    state.ram_bytes += info.num_bytes
    return resident


def _know(state: Residency, info: BlockInfo) -> Resident:
    resident = state.blocks[info.key] = Resident(info)
    if info.kind == "boundary":
        lengths = state.boundary_lengths
        lengths[info.num_tokens] = lengths.get(info.num_tokens, 0) + 1
    return resident


def _drop_if_nowhere(state: Residency, key: BlockKey) -> None:
    resident = state.blocks[key]
    if resident.in_ram or resident.on_ssd or resident.writing:
        return
    del state.blocks[key]
    if resident.info.kind == "boundary":
        state.boundary_lengths[resident.info.num_tokens] -= 1
        if not state.boundary_lengths[resident.info.num_tokens]:
            del state.boundary_lengths[resident.info.num_tokens]


def _touch(state: Residency, keys: Sequence[BlockKey]) -> None:
    """Note that `keys` were of use, and with them all before them, which they need."""
    state.clock += 1
    for key in keys:
        resident = state.blocks[key]
        resident.used = state.clock
        resident.worth = state.floor + resident.seconds / max(resident.info.num_bytes, 1)
    for key in reversed(keys):
        resident = state.blocks[key]
        while (before := resident.info.parent) is not None and before in state.blocks:
            parent = state.blocks[before]
            if parent.used == state.clock and parent.worth >= resident.worth:
                break
            parent.used, parent.worth = state.clock, max(parent.worth, resident.worth)
            resident = parent


def _learned(rate: float, amount: int, seconds: float) -> float:
    """Return a rate that follows what is measured, a third of the way each time."""
    if seconds <= 0:
        return rate
    return amount / seconds if not rate else rate + (amount / seconds - rate) / 3


def _give_back(state: Residency, request_id: RequestId) -> None:
    for key in state.lent.pop(request_id, ()):
        state.blocks[key].num_lent -= 1
