"""What can happen to prefix state: the commands, and the events that they become."""

from __future__ import annotations

from typing import Literal, NewType

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.sampling import RequestId

SessionId = NewType("SessionId", str)  # a digest of what the client called it

Cause = Literal["room", "idle", "pressure", "overtaken"]


class Budget(Struct, frozen=True):
    """`ram_bytes`: the soft target.  `has_ssd`: whether blocks are written to a disk as well.

    `retention` "lru" evicts what was used longest ago; "cost-size" what saves the least work a
    byte (Cao and Irani 1997, GreedyDual-Size).  What the SSD has leaves RAM after `idle_seconds`
    without use; 0 keeps it.  A session lives `session_seconds` after its last publication.
    `tails_to_ssd` is False where the SSD would take all before a tail with it.
    """

    ram_bytes: int
    has_ssd: bool = False
    retention: Literal["lru", "cost-size"] = "lru"
    idle_seconds: float = 0.0
    session_seconds: float = 3600.0
    tails_to_ssd: bool = True


class Find(Struct, frozen=True):
    """A request is about to be admitted.  `keys` are its prompt's blocks, first to last.

    `ends` are (tokens, key) of boundaries or tails that would fit, longest first.  `max_tokens` may
    be reused at most: one token at least is always computed.  `wanted` are the keys that the
    request would publish itself.  `from_ssd` is False for who waited for it enough.  `alone` is
    False where blocks are of some layers only, and of no use without a boundary after them.
    """

    request_id: RequestId
    keys: tuple[BlockKey, ...]
    ends: tuple[tuple[int, BlockKey], ...]
    max_tokens: int
    wanted: tuple[BlockKey, ...] = ()
    from_ssd: bool = True
    alone: bool = True


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
    """Blocks were read from the SSD into RAM, in `seconds`."""

    blocks: tuple[BlockInfo, ...]
    seconds: float = 0.0


class RestoreFailed(Struct, frozen=True):
    """A block on the SSD could not be used; it and those after it are not there any more."""

    keys: tuple[BlockKey, ...]
    cause: str


class Prefetch(Struct, frozen=True):
    """A request that waits its turn will ask this; at most `max_bytes` are read ahead for it."""

    find: Find
    max_bytes: int


class StopRestores(Struct, frozen=True):
    """Blocks were not read, as nobody wants them any more; they are where they were."""

    keys: tuple[BlockKey, ...]


class Written(Struct, frozen=True):
    """Blocks are durable on the SSD."""

    keys: tuple[BlockKey, ...]


class WriteFailed(Struct, frozen=True):
    """Blocks could not be written."""

    keys: tuple[BlockKey, ...]
    cause: str


class WriteAgain(Struct, frozen=True):
    """The SSD may take blocks again that it did not: `max_blocks` of those in RAM, say."""

    max_blocks: int


class Opened(Struct, frozen=True):
    """What an SSD has from earlier, least recently used first, and how fast prompts were read."""

    blocks: tuple[BlockInfo, ...]
    prefill_tokens_per_second: float = 0.0


class Measured(Struct, frozen=True):
    """The SSD gave `num_bytes` in `seconds`, which nobody had asked for."""

    num_bytes: int
    seconds: float


class Pruned(Struct, frozen=True):
    """The SSD forgot blocks to keep to its cap."""

    keys: tuple[BlockKey, ...]


class Hold(Struct, frozen=True):
    """`keys` are what is kept of a session's last request, first to last, at `now` (seconds).

    They leave RAM last while the session lives.  Without any, the session keeps what it had.
    """

    session: SessionId
    keys: tuple[BlockKey, ...]
    now: float


class CloseSession(Struct, frozen=True):
    """A session needs its state no longer."""

    session: SessionId


class Overtake(Struct, frozen=True):
    """`keys` are tails whose tokens are in blocks now, of who began with them."""

    keys: tuple[BlockKey, ...]


class Settle(Struct, frozen=True):
    """No more will come: the SSD is to have the tails that may be of use."""


class Tick(Struct, frozen=True):
    """It is `now`, in seconds of a clock that never goes back."""

    now: float


class Fit(Struct, frozen=True):
    """Let go of what is over the budget; of `last` only when nothing else is left to go."""

    last: frozenset[BlockKey] = frozenset()


class Relieve(Struct, frozen=True):
    """The device's memory is short by `num_bytes`."""

    num_bytes: int


Command = (
    Find
    | Compute
    | Publish
    | Return
    | End
    | Restored
    | RestoreFailed
    | Prefetch
    | StopRestores
    | Written
    | WriteFailed
    | WriteAgain
    | Opened
    | Measured
    | Pruned
    | Hold
    | CloseSession
    | Overtake
    | Settle
    | Tick
    | Fit
    | Relieve
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
    """Blocks are to be read from the SSD; `ahead` of need where whoever wants them is queued."""

    keys: tuple[BlockKey, ...]
    ahead: bool = False


class RestoresStopped(Struct, frozen=True, gc=False, tag="restores_stopped"):
    keys: tuple[BlockKey, ...]


class BlocksPublished(Struct, frozen=True, gc=False, tag="blocks_published"):
    blocks: tuple[BlockInfo, ...]
    seconds: float


class BlocksRestored(Struct, frozen=True, gc=False, tag="blocks_restored"):
    blocks: tuple[BlockInfo, ...]
    seconds: float = 0.0


class RestoreDeclined(Struct, frozen=True, gc=False, tag="restore_declined"):
    """The SSD has `num_tokens` tokens more, and computing them is quicker than reading them."""

    request_id: RequestId
    num_tokens: int


class WriteQueued(Struct, frozen=True, gc=False, tag="write_queued"):
    keys: tuple[BlockKey, ...]


class BlocksWritten(Struct, frozen=True, gc=False, tag="blocks_written"):
    keys: tuple[BlockKey, ...]


class BlocksNotWritten(Struct, frozen=True, gc=False, tag="blocks_not_written"):
    keys: tuple[BlockKey, ...]
    cause: str


class BlocksEvicted(Struct, frozen=True, gc=False, tag="blocks_evicted"):
    """Blocks left RAM.  `num_lost` of them are on no SSD either, tails not counted."""

    keys: tuple[BlockKey, ...]
    num_lost: int
    cause: Cause = "room"


class BlocksForgotten(Struct, frozen=True, gc=False, tag="blocks_forgotten"):
    """Blocks left the SSD."""

    keys: tuple[BlockKey, ...]
    cause: str


class BlocksFound(Struct, frozen=True, gc=False, tag="blocks_found"):
    """Blocks that an SSD had from earlier, and how fast prompts were read then."""

    blocks: tuple[BlockInfo, ...]
    prefill_tokens_per_second: float = 0.0


class SsdMeasured(Struct, frozen=True, gc=False, tag="ssd_measured"):
    num_bytes: int
    seconds: float


class PrefixReturned(Struct, frozen=True, gc=False, tag="prefix_returned"):
    request_id: RequestId


class PrefixUserEnded(Struct, frozen=True, gc=False, tag="prefix_user_ended"):
    request_id: RequestId


class SessionHeld(Struct, frozen=True, gc=False, tag="session_held"):
    """A session lives until `until`.  Its chain: the first `num_kept` keys it had, then `keys`."""

    session: SessionId
    num_kept: int
    keys: tuple[BlockKey, ...]
    until: float


class SessionReleased(Struct, frozen=True, gc=False, tag="session_released"):
    """A session's state leaves RAM as any other does.  "crowded out": there were too many."""

    session: SessionId
    cause: Literal["closed", "expired", "crowded out"]


class TailsSettled(Struct, frozen=True, gc=False, tag="tails_settled"):
    """It was decided of tails whether the SSD is to have them, until they are used again."""

    keys: tuple[BlockKey, ...]


class TimePassed(Struct, frozen=True, gc=False, tag="time_passed"):
    now: float


class PressureRelieved(Struct, frozen=True, gc=False, tag="pressure_relieved"):
    """Memory was short by `short_bytes`; the prefix cache gave `freed_bytes` back."""

    short_bytes: int
    freed_bytes: int


Event = (
    PrefixLent
    | PrefixMissed
    | PrefixAwaited
    | PrefixComputing
    | PrefixReturned
    | PrefixUserEnded
    | RestoreStarted
    | RestoresStopped
    | RestoreDeclined
    | BlocksPublished
    | BlocksRestored
    | WriteQueued
    | BlocksWritten
    | BlocksNotWritten
    | BlocksEvicted
    | BlocksForgotten
    | BlocksFound
    | SsdMeasured
    | SessionHeld
    | SessionReleased
    | TailsSettled
    | TimePassed
    | PressureRelieved
)
