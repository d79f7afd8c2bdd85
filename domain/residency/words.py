"""What can happen to prefix state: the commands, and the events that they become."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.sampling import RequestId


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
    """Blocks were read from the SSD into RAM, in `seconds`."""

    blocks: tuple[BlockInfo, ...]
    seconds: float = 0.0


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
    | RestoreDeclined
    | BlocksPublished
    | BlocksRestored
    | WriteQueued
    | BlocksWritten
    | BlocksNotWritten
    | BlocksEvicted
    | BlocksForgotten
    | BlocksFound
)
