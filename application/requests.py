"""What is asked of the engine and what it answers: a request for a row, items for its mailbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Literal, Protocol

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, Tensor
from mlxbun.domain.constraint import RowGrammar
from mlxbun.domain.generation_checkpoint import GenerationKey
from mlxbun.domain.journal import EventBatch
from mlxbun.domain.packed_logprobs import PackedLogprobs
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import TokenLogprobs


class Resume(Struct, frozen=True):
    """What an earlier attempt left: its tokens, what was told of them, and state to go on with.

    `state` is parts, one after another: from the first token on where they end with a boundary.
    """

    token_ids: tuple[TokenId, ...]
    logprobs: PackedLogprobs | None = None
    state: Sequence[tuple[BlockInfo, Sequence[Tensor]]] = ()


class RequestSpec(Struct, frozen=True):
    """One row, resolved: everything that is asked of a request.

    `stop` are strings that the text side looks for.  `boundaries` are token counts, ascending, at
    which other prompts may part from this one.  `session` is what the client calls the
    conversation: its state stays longest.  `generation` names the answer for its
    checkpoints, None where there are none; `resume` is where an earlier attempt stopped.
    `grammar` is what the answer keeps to.
    """

    request_id: RequestId
    prompt_ids: tuple[TokenId, ...]
    max_tokens: int
    stop_ids: frozenset[TokenId]
    params: SamplingParams
    stop: tuple[str, ...] = ()
    generation: GenerationKey | None = None
    resume: Resume | None = None
    session: str | None = None
    boundaries: tuple[int, ...] = ()
    grammar: RowGrammar | None = None

    @property
    def drawn(self) -> tuple[TokenId, ...]:
        """The tokens of the answer that are there already."""
        return self.resume.token_ids if self.resume is not None else ()

    @property
    def known_ids(self) -> tuple[TokenId, ...]:
        """The tokens that the row reads: the prompt, and what was drawn of the answer."""
        return self.prompt_ids + self.drawn


class Accepted(Struct, frozen=True):
    """The request waits or runs; what comes next is tokens, or its end.

    The first `num_replayed` of them were drawn by an earlier attempt.
    """

    num_replayed: int = 0


class Reused(Struct, frozen=True):
    """The request began with the state of its prompt's first `num_tokens` tokens."""

    num_tokens: int


class Drawn(Struct, frozen=True, gc=False):
    """One token, in order."""

    token_id: TokenId
    logprobs: TokenLogprobs | None


def replayed(resume: Resume) -> list[Drawn]:
    """Return the tokens of an earlier attempt, as it was told of them."""
    told = resume.logprobs.unpacked() if resume.logprobs is not None else ()
    return list(map(Drawn, resume.token_ids, told or repeat(None)))


class Ended(Struct, frozen=True):
    """Nothing follows.  `refusal` says why when it never ran or broke."""

    reason: FinishReason | Literal["cancelled", "failed", "rejected"]
    refusal: Refused | None = None


Item = Accepted | Reused | Drawn | Ended


class Mailbox(Protocol):
    """Where one request's items go.  Called on the event loop, in order."""

    def put(self, item: Item) -> None: ...


class Submitter(Protocol):
    """Whoever takes requests: the engine, or what stands before it.  As `Engine`'s methods."""

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None: ...

    def finish(self, request_id: RequestId, reason: FinishReason) -> None: ...

    def cancel(self, request_id: RequestId) -> None: ...


class Outbox(Struct, frozen=True):
    """What one turn of the engine says: items for requests, and the events behind them.

    `calls` are made on the event loop, after the rest was heard.
    """

    items: tuple[tuple[Mailbox, Item], ...]
    batch: EventBatch | None
    calls: tuple[Callable[[], None], ...] = ()
