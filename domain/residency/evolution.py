"""How each event changes where blocks are: the only place where that happens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.events import (
    BlocksEvicted,
    BlocksForgotten,
    BlocksFound,
    BlocksNotWritten,
    BlocksPublished,
    BlocksRestored,
    BlocksWritten,
    Event,
    PrefixAwaited,
    PrefixComputing,
    PrefixLent,
    PrefixMissed,
    PrefixReturned,
    PrefixUserEnded,
    PressureRelieved,
    RestoreDeclined,
    RestoresStopped,
    RestoreStarted,
    SessionHeld,
    SessionReleased,
    SsdMeasured,
    TailsSettled,
    TimePassed,
    WriteQueued,
)
from mlxbun.domain.residency.state import (
    Residency,
    Resident,
    Session,
    enqueue,
    look_again,
    note_idle,
    place_anew,
    tidy,
)
from mlxbun.domain.sampling import RequestId


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
                resident.seconds = _saved(state, info, seconds / total)
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
                _cover(state, resident)
            state.prefill_tokens_per_second = (
                state.prefill_tokens_per_second or event.prefill_tokens_per_second
            )
            _touch(state, [b.key for b in blocks])
        case SsdMeasured(num_bytes=num_bytes, seconds=seconds):
            state.restored_bytes_per_second = _learned(
                state.restored_bytes_per_second, num_bytes, seconds
            )
        case RestoreStarted(keys=keys):
            for key in keys:
                state.blocks[key].restoring = True
                state.restoring_bytes += state.blocks[key].info.num_bytes
        case RestoresStopped(keys=keys):
            for key in keys:
                _stop_restoring(state, state.blocks[key])
        case WriteQueued(keys=keys):
            for key in keys:
                state.blocks[key].writing = True
                place_anew(state, key)
        case BlocksWritten(keys=keys):
            for key in keys:
                state.blocks[key].writing = False
                _cover(state, state.blocks[key])
        case BlocksNotWritten(keys=keys):
            for key in keys:
                state.blocks[key].writing = False
                place_anew(state, key)
                _drop_if_nowhere(state, key)
            tidy(state)
        case BlocksEvicted(keys=keys):
            for key in keys:
                resident = state.blocks[key]
                state.floor = max(state.floor, resident.worth)
                resident.in_ram = False
                state.tails.pop(key, None)
                state.unsettled.pop(key, None)
                state.ram_bytes -= resident.info.num_bytes
                state.num_in_ram -= 1
                _drop_if_nowhere(state, key)
            tidy(state)
        case BlocksForgotten(keys=keys):
            for key in keys:
                resident = state.blocks[key]
                _stop_restoring(state, resident)
                resident.on_ssd = False
                enqueue(state, resident)
                _drop_if_nowhere(state, key)
            tidy(state)
        case PrefixMissed(request_id=request_id) | PrefixAwaited(request_id=request_id):
            _give_back(state, request_id)
        case SessionHeld(session=name, num_kept=num_kept, keys=keys, until=until):
            session = state.sessions.pop(name, None) or Session([], until)
            state.sessions[name] = session  # the last to end, as it was the last to be used
            session.until = until
            _let_go(state, session.keys[num_kept:])
            session.keys[num_kept:] = keys
            for key in keys:
                state.held[key] = state.held.get(key, 0) + 1
                place_anew(state, key)
            tidy(state)
        case SessionReleased(session=name):
            _let_go(state, state.sessions.pop(name).keys)
            tidy(state)
        case TailsSettled(keys=keys):
            for key in keys:
                state.unsettled.pop(key, None)
        case TimePassed(now=now):
            state.now = now
            look_again(state)
        case RestoreDeclined() | PressureRelieved():
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
    _stop_restoring(state, resident)
    resident.info = info
    resident.in_ram, resident.used_at = True, state.now
    state.ram_bytes += info.num_bytes
    state.num_in_ram += 1
    note_idle(state, resident)
    return resident


def _know(state: Residency, info: BlockInfo) -> Resident:
    resident = state.blocks[info.key] = Resident(info)
    if info.kind != "block":
        lengths = state.end_lengths
        lengths[info.end] = lengths.get(info.end, 0) + 1
    return resident


def _saved(state: Residency, info: BlockInfo, seconds_per_token: float) -> float:
    """Return the seconds of computing that a block saves; a boundary, all that is before it."""
    if info.kind != "boundary":
        return seconds_per_token * info.num_tokens
    rate = state.prefill_tokens_per_second
    return info.end * (seconds_per_token or (1 / rate if rate else 0.0))


def _drop_if_nowhere(state: Residency, key: BlockKey) -> None:
    resident = state.blocks[key]
    if resident.in_ram or resident.on_ssd or resident.writing:
        return
    del state.blocks[key]
    if resident.info.kind != "block":
        length = resident.info.end
        state.end_lengths[length] -= 1
        if not state.end_lengths[length]:
            del state.end_lengths[length]


def _touch(state: Residency, keys: Sequence[BlockKey]) -> None:
    """Note that `keys` were of use, and with them all before them, which they need."""
    state.clock += 1
    touched: dict[BlockKey, None] = dict.fromkeys(keys)
    for key in keys:
        resident = state.blocks[key]
        resident.used, resident.used_at = state.clock, state.now
        if resident.info.kind == "tail" and resident.in_ram:
            for order in (state.tails, state.unsettled):
                order.pop(key, None)
                order[key] = None
            may_be_written = state.budget.has_ssd and state.budget.tails_to_ssd
            if resident.on_ssd or not may_be_written:
                del state.unsettled[key]
        worth = state.floor + resident.seconds / max(resident.info.num_bytes, 1)
        resident.worth = max(resident.worth, worth)  # what comes after it may be worth more
    for key in reversed(keys):
        resident = state.blocks[key]
        while (before := resident.info.parent) is not None and before in state.blocks:
            parent = state.blocks[before]
            if parent.used == state.clock and parent.worth >= resident.worth:
                break
            parent.used, parent.used_at = state.clock, state.now
            parent.worth = max(parent.worth, resident.worth)
            touched[before] = None
            resident = parent
    for key in touched:
        enqueue(state, state.blocks[key])
    tidy(state)


def _learned(rate: float, amount: int, seconds: float) -> float:
    """Return a rate that follows what is measured, a third of the way each time."""
    if seconds <= 0:
        return rate
    return amount / seconds if not rate else rate + (amount / seconds - rate) / 3


def _give_back(state: Residency, request_id: RequestId) -> None:
    for key in state.lent.pop(request_id, ()):
        state.blocks[key].num_lent -= 1


def _let_go(state: Residency, keys: Sequence[BlockKey]) -> None:
    """Note that one session less holds `keys`."""
    for key in keys:
        state.held[key] -= 1
        if not state.held[key]:
            del state.held[key]
            place_anew(state, key)


def _cover(state: Residency, resident: Resident) -> None:
    """Note that the SSD has a block."""
    resident.on_ssd = True
    enqueue(state, resident)
    note_idle(state, resident)


def _stop_restoring(state: Residency, resident: Resident) -> None:
    if resident.restoring:
        resident.restoring = False
        state.restoring_bytes -= resident.info.num_bytes
