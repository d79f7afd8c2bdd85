"""Residency: which prefix state is where, who may use it, and what leaves when room is short.

The cache may forget, it may never lie.  State in RAM is lent, not given: a donor stays as it is,
so any number of requests share one prefill, also while it is being computed.  What leaves RAM
leaves because the SSD has it, because there is no SSD, or because a hard ceiling forces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

from msgspec import Struct, field

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.sampling import RequestId

CEILING = 1.25  # of the target: beyond it state leaves RAM though no SSD has it


class Budget(Struct, frozen=True):
    """`ram_bytes`: the soft target.  `has_ssd`: whether blocks are written to a disk as well.

    `retention` "lru" evicts what was used longest ago; "cost-size" what saves the least work a
    byte (Cao and Irani 1997, GreedyDual-Size).
    """

    ram_bytes: int
    has_ssd: bool = False
    retention: Literal["lru", "cost-size"] = "lru"


class Find(Struct, frozen=True):
    """A request is about to be admitted.  `keys` are its prompt's blocks, first to last.

    `boundaries` are (tokens, key) of whole states that would fit, longest first.  `max_tokens`
    may be reused at most: one token at least is always computed.  `wanted` are the keys that the
    request would publish itself.  `from_ssd` is False for who waited for it enough.
    """

    request_id: RequestId
    keys: tuple[BlockKey, ...]
    boundaries: tuple[tuple[int, BlockKey], ...]
    max_tokens: int
    wanted: tuple[BlockKey, ...] = ()
    from_ssd: bool = True


class Compute(Struct, frozen=True):
    """A request will compute these blocks itself."""

    request_id: RequestId
    keys: tuple[BlockKey, ...]


class Publish(Struct, frozen=True):
    """Blocks of a request's state were copied into RAM.  `seconds` is what computing them took."""

    request_id: RequestId
    blocks: tuple[BlockInfo, ...]
    seconds: float = 0.0


class Return(Struct, frozen=True):
    """A request needs nothing that was lent to it any more."""

    request_id: RequestId


class End(Struct, frozen=True):
    """A request is over: it computes nothing more, and holds nothing."""

    request_id: RequestId


class Restored(Struct, frozen=True):
    """Blocks were read from the SSD into RAM."""

    blocks: tuple[BlockInfo, ...]


class RestoreFailed(Struct, frozen=True):
    """A block on the SSD could not be used; it and those after it are not there any more."""

    keys: tuple[BlockKey, ...]
    cause: str


class Written(Struct, frozen=True):
    """Blocks are durable on the SSD."""

    keys: tuple[BlockKey, ...]


class WriteFailed(Struct, frozen=True):
    """Blocks could not be written."""

    keys: tuple[BlockKey, ...]
    cause: str


class Opened(Struct, frozen=True):
    """What an SSD has from earlier, least recently used first."""

    blocks: tuple[BlockInfo, ...]


class Pruned(Struct, frozen=True):
    """The SSD forgot blocks to keep to its cap."""

    keys: tuple[BlockKey, ...]


class Clear(Struct, frozen=True):
    """Let all of RAM go that nobody borrows."""


Command = (
    Find
    | Compute
    | Publish
    | Return
    | End
    | Restored
    | RestoreFailed
    | Written
    | WriteFailed
    | Opened
    | Pruned
    | Clear
)


class PrefixLent(Struct, frozen=True, gc=False, tag="prefix_lent"):
    """The request starts with `num_tokens` tokens of state from RAM, in `keys`."""

    request_id: RequestId
    keys: tuple[BlockKey, ...]
    num_tokens: int


class PrefixMissed(Struct, frozen=True, gc=False, tag="prefix_missed"):
    """Nothing that is kept begins this prompt."""

    request_id: RequestId


class PrefixAwaited(Struct, frozen=True, gc=False, tag="prefix_awaited"):
    """What the request needs is on its way: another computes it, or it is read from the SSD."""

    request_id: RequestId
    key: BlockKey
    source: Literal["computing", "restoring"]


class PrefixComputing(Struct, frozen=True, gc=False, tag="prefix_computing"):
    request_id: RequestId
    keys: tuple[BlockKey, ...]


class RestoreStarted(Struct, frozen=True, gc=False, tag="restore_started"):
    keys: tuple[BlockKey, ...]


class BlocksPublished(Struct, frozen=True, gc=False, tag="blocks_published"):
    blocks: tuple[BlockInfo, ...]
    seconds: float


class BlocksRestored(Struct, frozen=True, gc=False, tag="blocks_restored"):
    blocks: tuple[BlockInfo, ...]


class WriteQueued(Struct, frozen=True, gc=False, tag="write_queued"):
    keys: tuple[BlockKey, ...]


class BlocksWritten(Struct, frozen=True, gc=False, tag="blocks_written"):
    keys: tuple[BlockKey, ...]


class BlocksNotWritten(Struct, frozen=True, gc=False, tag="blocks_not_written"):
    keys: tuple[BlockKey, ...]
    cause: str


class BlocksEvicted(Struct, frozen=True, gc=False, tag="blocks_evicted"):
    """Blocks left RAM.  `lost` of them are on no SSD either."""

    keys: tuple[BlockKey, ...]
    num_lost: int


class BlocksForgotten(Struct, frozen=True, gc=False, tag="blocks_forgotten"):
    """Blocks left the SSD."""

    keys: tuple[BlockKey, ...]
    cause: str


class BlocksFound(Struct, frozen=True, gc=False, tag="blocks_found"):
    """Blocks that an SSD had from earlier."""

    blocks: tuple[BlockInfo, ...]


class PrefixReturned(Struct, frozen=True, gc=False, tag="prefix_returned"):
    request_id: RequestId


class PrefixUserEnded(Struct, frozen=True, gc=False, tag="prefix_user_ended"):
    request_id: RequestId


Event = (
    PrefixLent
    | PrefixMissed
    | PrefixAwaited
    | PrefixComputing
    | PrefixReturned
    | PrefixUserEnded
    | RestoreStarted
    | BlocksPublished
    | BlocksRestored
    | WriteQueued
    | BlocksWritten
    | BlocksNotWritten
    | BlocksEvicted
    | BlocksForgotten
    | BlocksFound
)


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


def decide(state: Residency, command: Command) -> list[Event]:
    """Return the events that make `command` so; an empty list if there is nothing to do."""
    match command:
        case Find():
            return _find(state, command)
        case Compute(request_id=request_id, keys=keys):
            mine = tuple(k for k in keys if k not in state.computing and not _in_ram(state, k))
            return [PrefixComputing(request_id, mine)] if mine else []
        case Publish(blocks=blocks, seconds=seconds):
            new = tuple(b for b in blocks if not _in_ram(state, b.key))
            if not new:
                return []
            events: list[Event] = [BlocksPublished(new, seconds)]
            if state.budget.has_ssd:
                unwritten = _unwritten(state, new)
                events += [WriteQueued(unwritten)] if unwritten else []
            return events + _evicted(state, new)
        case Restored(blocks=blocks):
            new = tuple(b for b in blocks if not _in_ram(state, b.key))
            return [BlocksRestored(new), *_evicted(state, new)] if new else []
        case RestoreFailed(keys=keys, cause=cause):
            there = _lost_with(state, keys)
            return [BlocksForgotten(there, cause)] if there else []
        case WriteFailed(keys=keys, cause=cause):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksNotWritten(there, cause), *_evicted(state, ())] if there else []
        case Written(keys=keys):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksWritten(there), *_evicted(state, (), frozenset(there))] if there else []
        case Opened(blocks=blocks):
            return [BlocksFound(blocks)] if blocks else []
        case Pruned(keys=keys):
            there = tuple(k for k in keys if k in state.blocks)
            return [BlocksForgotten(there, "the SSD's cap")] if there else []
        case Return(request_id=request_id):
            return [PrefixReturned(request_id)] if request_id in state.lent else []
        case End(request_id=request_id):
            busy = request_id in state.lent or request_id in state.computing.values()
            return [PrefixUserEnded(request_id)] if busy else []
        case Clear():
            free = tuple(k for k, b in state.blocks.items() if b.in_ram and not b.num_lent)
            return [_leaving(state, free)] if free else []
        case _:
            assert_never(command)


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
            for info in blocks:
                resident = _enter(state, info)
                resident.seconds = seconds * info.num_tokens / total
                state.computing.pop(info.key, None)
            _touch(state, [b.key for b in blocks])
        case BlocksRestored(blocks=blocks):
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
        case _:
            assert_never(event)
    return state


def fold(state: Residency, events: Iterable[Event]) -> Residency:
    for event in events:
        state = evolve(state, event)
    return state


def waiting_on(state: Residency, key: BlockKey) -> bool:
    """Return whether `key` is still on its way, for a request that was told to await it."""
    resident = state.blocks.get(key)
    return key in state.computing or (resident is not None and resident.restoring)


def _find(state: Residency, command: Find) -> list[Event]:
    """Lend the longest prefix in RAM, unless a longer one is on the SSD or on its way."""
    in_ram, keys = _reach(state, command, ssd=False)
    kept, all_keys = _reach(state, command, ssd=command.from_ssd)
    if kept > in_ram:
        missing = tuple(key for key in all_keys if not _in_ram(state, key))
        fresh = tuple(key for key in missing if not state.blocks[key].restoring)
        awaited = PrefixAwaited(command.request_id, missing[-1], "restoring")
        return [RestoreStarted(fresh), awaited] if fresh else [awaited]
    for key in command.wanted:
        if not _in_ram(state, key):
            if state.computing.get(key, command.request_id) != command.request_id:
                return [PrefixAwaited(command.request_id, key, "computing")]
            break
    if not keys:
        return [PrefixMissed(command.request_id)]
    return [PrefixLent(command.request_id, keys, in_ram)]


def _reach(state: Residency, command: Find, *, ssd: bool) -> tuple[int, tuple[BlockKey, ...]]:
    """Return how many tokens are kept from the start, in RAM or on the SSD too, and in what.

    What RAM cannot hold at once is not brought there.
    """
    room = state.budget.ram_bytes
    for num_tokens, key in command.boundaries:
        if num_tokens > command.max_tokens or not _is_kept(state, key, ssd):
            continue
        if not ssd or state.blocks[key].info.num_bytes <= room:
            return num_tokens, (key,)
    keys: list[BlockKey] = []
    num_tokens = 0
    for key in command.keys:
        if not _is_kept(state, key, ssd):
            break
        info = state.blocks[key].info
        end = num_tokens + info.num_tokens
        room -= info.num_bytes
        if end > command.max_tokens or (ssd and room < 0):
            break
        keys.append(key)
        num_tokens = end
    return num_tokens, tuple(keys)


def _is_kept(state: Residency, key: BlockKey, ssd: bool) -> bool:
    resident = state.blocks.get(key)
    return resident is not None and (resident.in_ram or (ssd and resident.on_ssd))


def _in_ram(state: Residency, key: BlockKey) -> bool:
    return _is_kept(state, key, ssd=False)


def _is_safe(state: Residency, key: BlockKey) -> bool:
    """Return whether a block is on the SSD, or on its way there."""
    resident = state.blocks.get(key)
    return resident is not None and (resident.on_ssd or resident.writing)


def _unwritten(state: Residency, new: Sequence[BlockInfo]) -> tuple[BlockKey, ...]:
    """Return what to write of `new`, after those before it in RAM that were not written."""
    found: dict[BlockKey, None] = {}
    for info in new:
        before: list[BlockKey] = []
        at = info.parent
        while at is not None and _in_ram(state, at) and not _is_safe(state, at):
            before.append(at)
            at = state.blocks[at].info.parent
        found |= dict.fromkeys(reversed(before))
        if not _is_safe(state, info.key):
            found[info.key] = None
    return tuple(found)


def _lost_with(state: Residency, keys: Sequence[BlockKey]) -> tuple[BlockKey, ...]:
    """Return `keys` that are known, and what the SSD has after them: it lost all of it."""
    lost = dict.fromkeys(keys)
    for resident in sorted(state.blocks.values(), key=lambda b: b.info.start):
        if resident.on_ssd and resident.info.parent in lost:
            lost[resident.info.key] = None
    return tuple(key for key in lost if key in state.blocks)


def _evicted(
    state: Residency, incoming: Sequence[BlockInfo], durable: frozenset[BlockKey] = frozenset()
) -> list[Event]:
    """Choose what leaves RAM once `incoming` is there and `durable` is on the SSD.

    Nothing leaves while all fits the target.

    What no SSD has stays above the target, up to the ceiling, where there is an SSD to wait for.
    """
    over = state.ram_bytes + sum(b.num_bytes for b in incoming) - state.budget.ram_bytes
    if over <= 0:
        return []
    mercy = int(state.budget.ram_bytes * (CEILING - 1)) if state.budget.has_ssd else 0
    candidates = [(_priority(state, b), b) for b in state.blocks.values() if b.in_ram]
    candidates = [(p, b) for p, b in candidates if not b.num_lent]
    candidates.sort(key=lambda pair: pair[0])
    leaving: dict[BlockKey, None] = {}
    for safe in (True, False):
        for _, resident in candidates:
            if over <= (0 if safe else mercy):
                break
            key = resident.info.key
            covered = resident.on_ssd or key in durable or not state.budget.has_ssd
            if covered == safe and key not in leaving:
                leaving[key] = None
                over -= resident.info.num_bytes
    for info in sorted(incoming, key=lambda b: -b.start):  # too much by itself: its end goes
        if over <= mercy:
            break
        leaving[info.key] = None
        over -= info.num_bytes
    return [_leaving(state, tuple(leaving), durable)] if leaving else []


def _leaving(
    state: Residency, keys: tuple[BlockKey, ...], durable: frozenset[BlockKey] = frozenset()
) -> BlocksEvicted:
    on_ssd = {key for key in keys if key in state.blocks and state.blocks[key].on_ssd} | durable
    lost = sum(key not in on_ssd for key in keys)
    return BlocksEvicted(keys, lost)


def _priority(state: Residency, resident: Resident) -> tuple[float, int]:
    """Return a key that is least for what should leave first; of a chain, its end."""
    least = resident.used if state.budget.retention == "lru" else resident.worth
    return (least, -resident.info.start)


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


def _give_back(state: Residency, request_id: RequestId) -> None:
    for key in state.lent.pop(request_id, ()):
        state.blocks[key].num_lent -= 1
