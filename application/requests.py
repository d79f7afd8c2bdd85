"""What is asked of the engine and what it answers: a request for a row, items for its mailbox."""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from mlxbun.domain.journal import EventBatch
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import TokenLogprobs


class RequestSpec(Struct, frozen=True):
    """One row, resolved: everything that the engine needs to know of a request."""

    request_id: RequestId
    prompt_ids: tuple[TokenId, ...]
    max_tokens: int
    stop_ids: frozenset[TokenId]
    params: SamplingParams


class Accepted(Struct, frozen=True):
    """The request waits or runs; what comes next is tokens, or its end."""


class Reused(Struct, frozen=True):
    """The request began with the state of its prompt's first `num_tokens` tokens."""

    num_tokens: int


class Drawn(Struct, frozen=True, gc=False):
    """One token, in order."""

    token_id: TokenId
    logprobs: TokenLogprobs | None


class Ended(Struct, frozen=True):
    """Nothing follows.  `refusal` says why when it never ran or broke."""

    reason: FinishReason | Literal["cancelled", "failed", "rejected"]
    refusal: Refused | None = None


Item = Accepted | Reused | Drawn | Ended


class Mailbox(Protocol):
    """Where one request's items go.  Called on the event loop, in order."""

    def put(self, item: Item) -> None: ...


class Outbox(Struct, frozen=True):
    """What one turn of the engine says: items for requests, and the events behind them."""

    items: tuple[tuple[Mailbox, Item], ...]
    batch: EventBatch | None


class LoadFailed(RuntimeError):
    """The model could not be opened; the message says why and what to do."""
