"""What a command makes happen: lending, waiting, restoring, writing, evicting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from mlxbun.domain.blocks import BLOCK, BlockKey
from mlxbun.domain.residency.commands import (
    CloseSession,
    Command,
    Compute,
    End,
    Find,
    Fit,
    Hold,
    Measured,
    Opened,
    Overtake,
    Prefetch,
    Pruned,
    Publish,
    Relieve,
    Restored,
    RestoreFailed,
    Return,
    Settle,
    StopRestores,
    Tick,
    WriteAgain,
    WriteFailed,
    Written,
)
from mlxbun.domain.residency.events import (
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
    RestoreDeclined,
    RestoresStopped,
    RestoreStarted,
    SessionReleased,
    SsdMeasured,
    WriteQueued,
)
from mlxbun.domain.residency.eviction import fitted, relieved
from mlxbun.domain.residency.sessions import held
from mlxbun.domain.residency.state import Residency, is_in_ram, is_kept
from mlxbun.domain.residency.tails import overtaken, settled, too_many_tails
from mlxbun.domain.residency.timing import passed
from mlxbun.domain.residency.writing import lost_with, owed_to_ssd, unwritten_of


def decide(state: Residency, command: Command) -> list[Event]:
    """Return the events that make `command` so; an empty list if there is nothing to do.

    Whatever comes into RAM is let in.  `Fit` says what leaves for it, and is to follow.
    """
    match command:
        case Find():
            return _find(state, command)
        case Compute(request_id=request_id, keys=keys):
            mine = tuple(k for k in keys if k not in state.computing and not is_in_ram(state, k))
            return [PrefixComputing(request_id, mine)] if mine else []
        case Publish(blocks=blocks, seconds=seconds):
            new = tuple(b for b in blocks if not is_in_ram(state, b.key))
            if not new:
                return []
            events: list[Event] = [BlocksPublished(new, seconds)]
            if state.budget.has_ssd:
                unwritten = unwritten_of(state, new)
                events += [WriteQueued(unwritten)] if unwritten else []
            return events + too_many_tails(state, new)
        case Restored(blocks=blocks, seconds=seconds):
            new = tuple(b for b in blocks if not is_in_ram(state, b.key))
            return [BlocksRestored(new, seconds)] if new else []
        case RestoreFailed(keys=keys, cause=cause):
            there = lost_with(state, keys)
            return [BlocksForgotten(there, cause)] if there else []
        case Prefetch(find=find, max_bytes=max_bytes):
            return _prefetch(state, find, max_bytes)
        case StopRestores(keys=keys):
            there = tuple(k for k in keys if k in state.blocks and state.blocks[k].restoring)
            return [RestoresStopped(there)] if there else []
        case WriteFailed(keys=keys, cause=cause):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksNotWritten(there, cause)] if there else []
        case WriteAgain(max_blocks=max_blocks):
            owed = owed_to_ssd(state, max_blocks)
            return [WriteQueued(owed)] if owed else []
        case Written(keys=keys):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksWritten(there)] if there else []
        case Opened(blocks=blocks):
            found = BlocksFound(blocks, command.prefill_tokens_per_second)
            return [found] if blocks else []
        case Measured(num_bytes=num_bytes, seconds=seconds):
            return [SsdMeasured(num_bytes, seconds)] if num_bytes and seconds > 0 else []
        case Pruned(keys=keys):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksForgotten(there, "the SSD's cap")] if there else []
        case Return(request_id=request_id):
            return [PrefixReturned(request_id)] if request_id in state.lent else []
        case End(request_id=request_id):
            busy = request_id in state.lent or request_id in state.computing.values()
            return [PrefixUserEnded(request_id)] if busy else []
        case Hold():
            return held(state, command)
        case CloseSession(session=session):
            return [SessionReleased(session, "closed")] if session in state.sessions else []
        case Overtake(keys=keys):
            return overtaken(state, keys)
        case Settle():
            return settled(state, state.now)
        case Tick(now=now):
            return passed(state, now)
        case Fit(last=last):
            return fitted(state, last)
        case Relieve(num_bytes=num_bytes):
            return relieved(state, num_bytes)
        case _:
            assert_never(command)


def waiting_on(state: Residency, key: BlockKey) -> bool:
    """Return whether `key` is still on its way, for a request that was told to await it."""
    resident = state.blocks.get(key)
    return key in state.computing or (resident is not None and resident.restoring)


def all_in_ram(state: Residency, key: BlockKey) -> bool:
    """Return whether RAM has `key` and all before it."""
    at: BlockKey | None = key
    while at is not None and is_in_ram(state, at):
        at = state.blocks[at].info.parent
    return at is None


def _find(state: Residency, command: Find) -> list[Event]:
    """Lend the longest prefix in RAM, unless a longer one is on the SSD or on its way."""
    in_ram, keys = _reach(state, command, ssd=False)
    kept, all_keys = _reach(state, command, ssd=command.from_ssd)
    declined: list[Event] = []
    if kept > in_ram and not _worth_restoring(state, all_keys, kept - in_ram):
        declined = [RestoreDeclined(command.request_id, kept - in_ram)]
    elif kept > in_ram:
        missing = tuple(key for key in all_keys if not is_in_ram(state, key))
        fresh = tuple(key for key in missing if not state.blocks[key].restoring)
        awaited = PrefixAwaited(command.request_id, missing[-1], "restoring")
        return [RestoreStarted(fresh), awaited] if fresh else [awaited]
    for key in command.wanted:
        if not is_in_ram(state, key):
            if state.computing.get(key, command.request_id) != command.request_id:
                return [*declined, PrefixAwaited(command.request_id, key, "computing")]
            break
    if not keys:
        return [*declined, PrefixMissed(command.request_id)]
    return [*declined, PrefixLent(command.request_id, keys, in_ram)]


def _prefetch(state: Residency, find: Find, max_bytes: int) -> list[Event]:
    """Read ahead what `find` would have read, from the start, as far as `max_bytes` go."""
    in_ram, _ = _reach(state, find, ssd=False)
    kept, keys = _reach(state, find, ssd=find.from_ssd)
    if kept <= in_ram or not _worth_restoring(state, keys, kept - in_ram):
        return []
    fresh: list[BlockKey] = []
    for key in keys:
        block = state.blocks[key]
        if block.in_ram or block.restoring:
            continue
        max_bytes -= block.info.num_bytes
        if max_bytes < 0:
            break
        fresh.append(key)
    return [RestoreStarted(tuple(fresh), ahead=True)] if fresh else []


def _worth_restoring(state: Residency, keys: Sequence[BlockKey], num_tokens: int) -> bool:
    """Return whether reading what is missing is quicker than computing `num_tokens` tokens.

    What is on its way is waited for; what was never measured is tried.
    """
    missing = [state.blocks[key] for key in keys if not is_in_ram(state, key)]
    reading, computing = state.restored_bytes_per_second, state.prefill_tokens_per_second
    if not reading or not computing or any(block.restoring for block in missing):
        return True
    num_bytes = sum(block.info.num_bytes for block in missing)
    return num_bytes / reading < num_tokens / computing


def _reach(state: Residency, command: Find, *, ssd: bool) -> tuple[int, tuple[BlockKey, ...]]:
    """Return how many tokens are kept from the start, in RAM or on the SSD too, and in what.

    What RAM cannot hold at once is not brought there.
    """
    ended = _reach_an_end(state, command, ssd)
    if not command.alone:
        return ended
    room = state.budget.ram_bytes
    keys: list[BlockKey] = []
    num_tokens = 0
    for key in command.keys:
        if not is_kept(state, key, ssd):
            break
        info = state.blocks[key].info
        end = num_tokens + info.num_tokens
        room -= info.num_bytes
        if end > command.max_tokens or (ssd and room < 0):
            break
        keys.append(key)
        num_tokens = end
    return max(ended, (num_tokens, tuple(keys)), key=lambda reached: reached[0])


def _reach_an_end(state: Residency, command: Find, ssd: bool) -> tuple[int, tuple[BlockKey, ...]]:
    """Return the longest boundary or tail that is kept with all before it."""
    room = state.budget.ram_bytes
    for num_tokens, key in command.ends:
        if num_tokens > command.max_tokens or not is_kept(state, key, ssd):
            continue
        whole = (*command.keys[: state.blocks[key].info.start // BLOCK], key)
        if not all(is_kept(state, part, ssd) for part in whole):
            continue
        if not ssd or sum(state.blocks[part].info.num_bytes for part in whole) <= room:
            return num_tokens, whole
    return 0, ()
