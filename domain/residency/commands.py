"""What is asked of residency, or told it: the commands."""

from __future__ import annotations

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.residency.words import SessionId
from mlxbun.domain.sampling import RequestId


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
