"""Scheduling: who is admitted, and what the next step computes.

A request waits, prefills (all of its prompt but the last token, in chunks), starts (one
forward over the last prompt token draws its first token), then decodes until it ends.  A
plan is data: which rows decode, which start, which prefill how many tokens.  Steps are
pipelined, so a plan is made before the step before it was read; a row that turns out to
have ended has one unused slot, which nobody sees.  A step either prefills or decodes: while
rows decode the two take turns, so that no stream waits for more than one chunk and a short
prompt starts with the next step.

Pure: no tensors, no model, no clock.  Seconds are measured by the engine and arrive in
`CommitStep`; the log alone rebuilds the state, the measured rates included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, assert_never

from msgspec import Struct, field

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


Command = Submit | Hold | Release | Reuse | PlanStep | CommitStep | Finish | Cancel | Fail | Drain


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
    | RequestAdmitted
    | StepPlan
    | StepCommitted
    | RequestFinished
    | RequestCancelled
    | RequestFailed
    | DrainStarted
)


class Row(Struct):
    """A request inside the scheduler.  Counts are of what was planned."""

    num_prompt_tokens: int
    max_tokens: int
    num_prefilled: int = 0  # or reused
    num_drawn: int = 0
    held: bool = False

    @property
    def num_unfilled(self) -> int:
        """Prompt tokens still to prefill; the last prompt token is the start's."""
        return self.num_prompt_tokens - 1 - self.num_prefilled


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


def decide(state: Scheduling, command: Command) -> list[Event]:
    """Return the events that make `command` so; an empty list if there is nothing to do."""
    match command:
        case Submit(request_id=request_id, num_prompt_tokens=num_prompt, max_tokens=max_tokens):
            if request_id in state.waiting or request_id in state.rows:
                return []
            if state.draining:
                return [RequestRejected(request_id, "draining")]
            if len(state.waiting) >= state.limits.max_waiting + _free_rows(state):
                return [RequestRejected(request_id, "queue_full")]
            return [RequestQueued(request_id, num_prompt, max_tokens)]
        case Hold(request_id=request_id):
            row = state.waiting.get(request_id)
            return [RequestHeld(request_id)] if row is not None and not row.held else []
        case Release(request_id=request_id):
            row = state.waiting.get(request_id)
            return [RequestReleased(request_id)] if row is not None and row.held else []
        case Reuse(request_id=request_id, num_tokens=num_tokens):
            row = state.waiting.get(request_id)
            if row is None or not 0 <= num_tokens < row.num_prompt_tokens:
                return []
            changed = num_tokens != row.num_prefilled
            return [PrefixReused(request_id, num_tokens)] if changed else []
        case PlanStep():
            return _plan(state)
        case CommitStep(step=step, finished=finished):
            plan = state.in_flight.get(step)
            if plan is None:
                return []
            committed = StepCommitted(
                step,
                len(plan.decode),
                len(plan.start),
                sum(n for _, n in plan.prefill),
                command.elapsed_seconds,
                command.prefill_seconds,
                command.num_wide,
                command.kv_bytes,
            )
            over = [RequestFinished(r, why) for r, why in finished if r in state.rows]
            return [committed, *over]
        case Finish(request_id=request_id, reason=reason):
            return [RequestFinished(request_id, reason)] if _is_live(state, request_id) else []
        case Cancel(request_id=request_id):
            return [RequestCancelled(request_id)] if _is_live(state, request_id) else []
        case Fail(request_ids=request_ids, cause=cause):
            return [RequestFailed(r, cause) for r in request_ids if _is_live(state, r)]
        case Drain():
            return [] if state.draining else [DrainStarted()]
        case _:
            assert_never(command)


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


def refusal(event: RequestRejected) -> Refused:
    """Return what the client is told."""
    if event.code == "draining":
        return Refused("draining", "the server is shutting down; no new requests are taken")
    return Refused("queue_full", "the queue is full; try again in a moment")


def prefill_budget(state: Scheduling, num_reading: int = 1) -> int:
    """Return how many prompt tokens the next prefill step may read, for `num_reading` rows.

    Fixed: `max_chunk_tokens`.  Adaptive: as many as were lately read in a time, in steps of
    `min_chunk_tokens`.  The time is `idle_stall_seconds` while nobody decodes, so that cancels
    and arrivals are heard.  While rows decode it is `stall_seconds`, or, where steps are long,
    the readers' fair share: as much for each of them as a decode step takes for each who
    decodes.
    """
    limits = state.limits
    if not limits.adaptive_chunks:
        return limits.max_chunk_tokens
    rate = state.prefill_tokens_per_second
    if not rate:
        return min(limits.max_chunk_tokens, 4 * limits.min_chunk_tokens)
    num_decoding = sum(1 for row in state.rows.values() if row.num_drawn)
    seconds = limits.idle_stall_seconds
    if num_decoding:
        share = state.decode_seconds * num_reading / num_decoding
        seconds = min(seconds, max(limits.stall_seconds, share))
    steps = max(1, int(rate * seconds) // limits.min_chunk_tokens)
    return min(limits.max_chunk_tokens, steps * limits.min_chunk_tokens)


def next_in(state: Scheduling) -> list[RequestId]:
    """Return who the next plan will admit."""
    free = _free_rows(state)
    return state.admissible[:free] if free else []


def looks_ahead(state: Scheduling) -> bool:
    """Return whether the next step should be planned before the last one is read.

    Where the device does not run apart, submitting a prefill takes as long as computing it, so
    what decoded before it is read first.
    """
    if math.isinf(state.limits.lookahead_seconds):
        return True
    arriving = bool(next_in(state))
    reading = any(row.num_unfilled > 0 for row in state.rows.values())
    return not arriving and not reading and state.decode_seconds < state.limits.lookahead_seconds


def _plan(state: Scheduling) -> list[Event]:
    admitted = next_in(state)
    rows = [*state.rows.items(), *((r, state.waiting[r]) for r in admitted)]
    decode: list[RequestId] = []
    start: list[RequestId] = []
    prefill: list[tuple[RequestId, int]] = []
    reading = sum(1 for _, row in rows if row.num_unfilled)
    budget = prefill_budget(state, reading)
    # A rest too short for a step of its own is read along.
    spare = state.limits.min_chunk_tokens if state.limits.adaptive_chunks else 0
    for request_id, row in rows:
        if row.num_drawn:
            if row.num_drawn < row.max_tokens:
                decode.append(request_id)
        elif not row.num_unfilled:
            start.append(request_id)
        elif budget > 0 and (not prefill or budget >= spare):
            fits = row.num_unfilled <= min(budget + spare, state.limits.max_chunk_tokens)
            num_tokens = row.num_unfilled if fits else budget
            budget -= num_tokens
            prefill.append((request_id, num_tokens))
    if prefill and not (state.prefilled_last and (decode or start)):
        decode, start = [], []
    else:
        prefill = []
    events: list[Event] = [RequestAdmitted(r) for r in admitted]
    if decode or start or prefill:
        events.append(StepPlan(state.next_step, tuple(decode), tuple(start), tuple(prefill)))
    return events


def _free_rows(state: Scheduling) -> int:
    return max(0, state.limits.max_rows - len(state.rows))


def _is_live(state: Scheduling, request_id: RequestId) -> bool:
    return request_id in state.waiting or request_id in state.rows


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
