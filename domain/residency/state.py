"""Where every block is, and in which order blocks would leave RAM."""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush

from msgspec import Struct, field

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.order import Rank, tidied
from mlxbun.domain.residency.words import Budget, SessionId
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
    used_at: float = 0.0  # when, in seconds
    noted_at: float | None = None  # its time in `Residency.idle`
    seconds: float = 0.0  # that computing it took
    worth: float = 0.0  # GreedyDual's value


class Session(Struct):
    """What a client's last request left, first to last, and when that is not held any more."""

    keys: list[BlockKey]
    until: float


NUM_QUEUES = 4  # held by a session: + 2; on no SSD, where there is one: + 1


class Residency(Struct):
    """Every block that is kept or on its way.  Only `evolve` writes it.

    `queues` say what leaves RAM before what, `idle` when which block was used; both may hold
    more than is so.  `held` counts the live sessions that a block belongs to.  `end_lengths` are
    those of boundaries and tails, `tails` the ones in RAM, least recently used first, `unsettled`
    those of them of which it was not decided whether the SSD is to have them.
    """

    budget: Budget
    blocks: dict[BlockKey, Resident] = field(default_factory=dict[BlockKey, Resident])
    lent: dict[RequestId, tuple[BlockKey, ...]] = field(
        default_factory=dict[RequestId, tuple[BlockKey, ...]]
    )
    computing: dict[BlockKey, RequestId] = field(default_factory=dict[BlockKey, RequestId])
    sessions: dict[SessionId, Session] = field(default_factory=dict[SessionId, Session])
    held: dict[BlockKey, int] = field(default_factory=dict[BlockKey, int])
    queues: list[list[Rank]] = field(
        default_factory=lambda: [list[Rank]() for _ in range(NUM_QUEUES)]
    )
    idle: list[Rank] = field(default_factory=list[Rank])
    end_lengths: dict[int, int] = field(default_factory=dict[int, int])  # tokens: how many
    tails: dict[BlockKey, None] = field(default_factory=dict[BlockKey, None])
    unsettled: dict[BlockKey, None] = field(default_factory=dict[BlockKey, None])
    ram_bytes: int = 0
    num_in_ram: int = 0
    restoring_bytes: int = 0
    clock: int = 0
    now: float = 0.0  # seconds, as last heard
    floor: float = 0.0  # GreedyDual's inflation: the worth of what left last
    prefill_tokens_per_second: float = 0.0  # as measured; 0 is not known yet
    restored_bytes_per_second: float = 0.0


# -- the order of leaving --


def is_kept(state: Residency, key: BlockKey, ssd: bool) -> bool:
    resident = state.blocks.get(key)
    return resident is not None and (resident.in_ram or (ssd and resident.on_ssd))


def is_in_ram(state: Residency, key: BlockKey) -> bool:
    return is_kept(state, key, ssd=False)


def queue_of(state: Residency, resident: Resident) -> int:
    """Return which of the queues a block in RAM waits in."""
    owed_to_ssd = state.budget.has_ssd and (resident.info.kind != "tail" or resident.writing)
    covered = resident.on_ssd or not owed_to_ssd
    if resident.info.key in state.held:
        return 2 if covered else 3
    return 0 if covered else 1


def holds(state: Residency, queue: int, entry: Rank) -> bool:
    """Return whether an entry of a queue is a block's own, and the block in RAM."""
    resident = state.blocks.get(entry[2])
    return (
        resident is not None
        and resident.in_ram
        and queue_of(state, resident) == queue
        and _rank(state, resident) == entry
    )


def _rank(state: Residency, resident: Resident) -> Rank:
    """Return what is least for what should leave first; of a chain, its end."""
    least = resident.used if state.budget.retention == "lru" else resident.worth
    return (least, -resident.info.start, resident.info.key)


def enqueue(state: Residency, resident: Resident) -> None:
    """Note a block's place in the order, which changed.  `tidy` is to follow."""
    if resident.in_ram:
        heappush(state.queues[queue_of(state, resident)], _rank(state, resident))


def place_anew(state: Residency, key: BlockKey) -> None:
    resident = state.blocks.get(key)
    if resident is not None:
        enqueue(state, resident)


def tidy(state: Residency) -> None:
    """Keep the queues short, and their tops true."""
    for queue, heap in enumerate(state.queues):
        tidied(heap, partial(holds, state, queue), state.num_in_ram)


# -- what is idle --


def note_idle(state: Residency, resident: Resident) -> None:
    """See to it that a block which may leave RAM is looked at when it was not used for long."""
    may_leave = state.budget.idle_seconds and resident.in_ram and resident.on_ssd
    if may_leave and resident.noted_at is None:
        resident.noted_at = resident.used_at
        heappush(state.idle, (resident.used_at, 0, resident.info.key))


def look_again(state: Residency) -> None:
    """Look at every block whose time has come, and note when to look again."""
    since = state.now - state.budget.idle_seconds
    due: list[Rank] = []  # first, since what is noted anew may be due again
    while state.idle and state.idle[0][0] <= since:
        due.append(heappop(state.idle))
    for noted, _, key in due:
        resident = state.blocks.get(key)
        if resident is None or resident.noted_at != noted:
            continue
        resident.noted_at = None
        if resident.used_at <= since:  # it could not leave: somebody borrows it
            resident.used_at = state.now
        note_idle(state, resident)
