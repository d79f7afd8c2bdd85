"""What happened to prefix state: the events.  Their tags and fields are what logs keep."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.words import Cause, SessionId
from mlxbun.domain.sampling import RequestId


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
