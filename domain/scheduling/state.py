"""Everything that waits or runs, and the only place where that changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec import Struct, field

from mlxbun.domain.sampling import RequestId
from mlxbun.domain.scheduling.words import (
    DrainStarted,
    Event,
    Limits,
    PrefixReused,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestHeld,
    RequestQueued,
    RequestRejected,
    RequestReleased,
    StepCommitted,
    StopsSet,
)
from mlxbun.domain.steps import StepPlan


class Row(Struct):
    """A request inside the scheduler.  Counts are of what was planned."""

    num_prompt_tokens: int
    max_tokens: int
    num_prefilled: int = 0  # or reused
    num_drawn: int = 0
    held: bool = False
    stops: tuple[int, ...] = ()  # prompt tokens after which a chunk ends, ascending

    @property
    def num_unfilled(self) -> int:
        """Prompt tokens still to prefill; the last prompt token is the start's."""
        return self.num_prompt_tokens - 1 - self.num_prefilled

    @property
    def num_ahead(self) -> int:
        """Prompt tokens that the next chunk may read at most: up to a stop, or all."""
        end = next((s for s in self.stops if s > self.num_prefilled), self.num_prompt_tokens - 1)
        return end - self.num_prefilled


class Scheduling(Struct):
    """Everything that waits or runs.  Only `evolve` writes it."""

    limits: Limits
    waiting: dict[RequestId, Row] = field(default_factory=dict[RequestId, Row])  # oldest first
    rows: dict[RequestId, Row] = field(default_factory=dict[RequestId, Row])  # oldest first
    in_flight: dict[int, StepPlan] = field(default_factory=dict[int, StepPlan])
    next_step: int = 1
    prefilled_last: bool = False
    draining: bool = False
    prefill_tokens_per_second: float = 0.0
    decode_seconds: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing can be planned before somebody is heard."""
        return not self.rows and not self.in_flight and not self.admissible

    @property
    def admissible(self) -> list[RequestId]:
        """Who may be admitted next, oldest first."""
        return [request_id for request_id, row in self.waiting.items() if not row.held]


def evolve(state: Scheduling, event: Event) -> Scheduling:
    """Take ownership of `state`, apply `event`, hand it back.  Never fails, never decides."""
    match event:
        case RequestQueued(request_id=request_id, num_prompt_tokens=n, max_tokens=m):
            state.waiting[request_id] = Row(n, m)
        case RequestHeld(request_id=request_id):
            state.waiting[request_id].held = True
        case RequestReleased(request_id=request_id):
            state.waiting[request_id].held = False
        case PrefixReused(request_id=request_id, num_tokens=num_tokens):
            state.waiting[request_id].num_prefilled = num_tokens
        case StopsSet(request_id=request_id, stops=stops):
            state.waiting[request_id].stops = stops
        case RequestAdmitted(request_id=request_id):
            state.rows[request_id] = state.waiting.pop(request_id)
        case StepPlan(step=step, decode=decode, start=start, prefill=prefill):
            for request_id in (*decode, *start):
                state.rows[request_id].num_drawn += 1
            for request_id, num_tokens in prefill:
                state.rows[request_id].num_prefilled += num_tokens
            state.in_flight[step] = event
            state.next_step = step + 1
            state.prefilled_last = bool(prefill)
        case StepCommitted(step=step):
            del state.in_flight[step]
            _learn(state, event)
        case (
            RequestFinished(request_id=request_id)
            | RequestCancelled(request_id=request_id)
            | RequestFailed(request_id=request_id)
        ):
            state.waiting.pop(request_id, None)
            state.rows.pop(request_id, None)
        case RequestRejected():
            pass
        case DrainStarted():
            state.draining = True
        case _:
            assert_never(event)
    return state


def fold(state: Scheduling, events: Iterable[Event]) -> Scheduling:
    for event in events:
        state = evolve(state, event)
    return state


def _learn(state: Scheduling, event: StepCommitted) -> None:
    """Fold one step's seconds into the rates: moving averages over about four steps."""
    if event.num_decoded:
        state.decode_seconds = _towards(state.decode_seconds, event.elapsed_seconds)
    # A chunk of a few tokens measures overhead, not the rate.
    elif event.prefill_seconds and event.num_prefilled_tokens >= state.limits.min_chunk_tokens:
        rate = event.num_prefilled_tokens / event.prefill_seconds
        state.prefill_tokens_per_second = _towards(state.prefill_tokens_per_second, rate)


def _towards(average: float, value: float) -> float:
    return value if not average else average + (value - average) / 4
