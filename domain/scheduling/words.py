"""What can happen to requests: limits, the commands, and the events that they become."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId
from mlxbun.domain.steps import StepPlan


class Limits(Struct, frozen=True):
    """What the scheduler may use.

    Chunks are counted in prompt tokens.  `stall_seconds` is how long one should take while rows
    decode, `idle_stall_seconds` how long at most; see `prefill_budget`.
    """

    max_rows: int = 8
    max_waiting: int = 64
    max_chunk_tokens: int = 2048
    # Fixed chunks reproduce mlx-lm's shapes; adaptive ones bound how long a chunk holds
    # up the rows that decode.
    adaptive_chunks: bool = True
    stall_seconds: float = 0.02
    idle_stall_seconds: float = 1.0
    min_chunk_tokens: int = 64
    # Finite where the device does not run apart from the host: longer steps are read before
    # the next is planned, as looking ahead gains nothing and a newcomer waits a step more.
    lookahead_seconds: float = math.inf


class Submit(Struct, frozen=True):
    request_id: RequestId
    num_prompt_tokens: int
    max_tokens: int


class Hold(Struct, frozen=True):
    """What a waiting request begins with is on its way; others may go first."""

    request_id: RequestId


class Release(Struct, frozen=True):
    """A held request need not wait any more."""

    request_id: RequestId


class Reuse(Struct, frozen=True):
    """A waiting request begins with the state of its prompt's first `num_tokens` tokens, or of 0.

    The last word counts.
    """

    request_id: RequestId
    num_tokens: int


class StopAt(Struct, frozen=True):
    """Read a waiting request's prompt in chunks that end at these token counts, ascending.

    The state there is copied, which no other chunk allows.  The last word counts.
    """

    request_id: RequestId
    stops: tuple[int, ...]


class PlanStep(Struct, frozen=True):
    """Say what to compute next."""


class CommitStep(Struct, frozen=True):
    """Step `step` was read, `elapsed_seconds` after the one before it.

    `prefill_seconds` is how long its prefill took, 0 without one; `num_wide` and `kv_bytes`
    are as in `StepResult`.
    """

    step: int
    finished: tuple[tuple[RequestId, FinishReason], ...]
    elapsed_seconds: float
    prefill_seconds: float = 0.0
    num_wide: int = 0
    kv_bytes: int = 0


class Finish(Struct, frozen=True):
    """The text side ended a request (a stop string)."""

    request_id: RequestId
    reason: FinishReason


class Cancel(Struct, frozen=True):
    """Nobody wants the request any more."""

    request_id: RequestId


class Fail(Struct, frozen=True):
    """The rows cannot go on, through no fault of their requests."""

    request_ids: tuple[RequestId, ...]
    cause: str


class Drain(Struct, frozen=True):
    """Admit nobody new; finish what is here."""


Command = (
    Submit
    | Hold
    | Release
    | Reuse
    | StopAt
    | PlanStep
    | CommitStep
    | Finish
    | Cancel
    | Fail
    | Drain
)


class RequestQueued(Struct, frozen=True, gc=False, tag="request_queued"):
    request_id: RequestId
    num_prompt_tokens: int
    max_tokens: int


class RequestRejected(Struct, frozen=True, gc=False, tag="request_rejected"):
    request_id: RequestId
    code: Literal["queue_full", "draining"]


class RequestHeld(Struct, frozen=True, gc=False, tag="request_held"):
    request_id: RequestId


class RequestReleased(Struct, frozen=True, gc=False, tag="request_released"):
    request_id: RequestId


class PrefixReused(Struct, frozen=True, gc=False, tag="prefix_reused"):
    request_id: RequestId
    num_tokens: int


class StopsSet(Struct, frozen=True, gc=False, tag="stops_set"):
    request_id: RequestId
    stops: tuple[int, ...]


class RequestAdmitted(Struct, frozen=True, gc=False, tag="request_admitted"):
    request_id: RequestId


class StepCommitted(Struct, frozen=True, gc=False, tag="step_committed"):
    """One event a step, for all rows."""

    step: int
    num_decoded: int
    num_started: int
    num_prefilled_tokens: int
    elapsed_seconds: float
    prefill_seconds: float
    num_wide: int = 0
    kv_bytes: int = 0


class RequestFinished(Struct, frozen=True, gc=False, tag="request_finished"):
    request_id: RequestId
    reason: FinishReason


class RequestCancelled(Struct, frozen=True, gc=False, tag="request_cancelled"):
    request_id: RequestId


class RequestFailed(Struct, frozen=True, gc=False, tag="request_failed"):
    request_id: RequestId
    cause: str


class DrainStarted(Struct, frozen=True, gc=False, tag="drain_started"):
    pass


Event = (
    RequestQueued
    | RequestRejected
    | RequestHeld
    | RequestReleased
    | PrefixReused
    | StopsSet
    | RequestAdmitted
    | StepPlan
    | StepCommitted
    | RequestFinished
    | RequestCancelled
    | RequestFailed
    | DrainStarted
)


def refusal(event: RequestRejected) -> Refused:
    """Return what the client is told."""
    if event.code == "draining":
        return Refused("draining", "the server is shutting down; no new requests are taken")
    return Refused("queue_full", "the queue is full; try again in a moment")
