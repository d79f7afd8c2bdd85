"""What a command makes happen, and what the next step computes."""

from __future__ import annotations

import math
from typing import assert_never

from mlxbun.domain.sampling import RequestId
from mlxbun.domain.scheduling.state import Scheduling
from mlxbun.domain.scheduling.words import (
    Cancel,
    Command,
    CommitStep,
    Drain,
    DrainStarted,
    Event,
    Fail,
    Finish,
    Hold,
    PlanStep,
    PrefixReused,
    Release,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestHeld,
    RequestQueued,
    RequestRejected,
    RequestReleased,
    Reuse,
    StepCommitted,
    StopAt,
    StopsSet,
    Submit,
)
from mlxbun.domain.steps import StepPlan


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
        case StopAt(request_id=request_id, stops=stops):
            row = state.waiting.get(request_id)
            if row is None:
                return []
            stops = tuple(s for s in sorted(set(stops)) if 0 < s < row.num_prompt_tokens - 1)
            return [StopsSet(request_id, stops)] if stops != row.stops else []
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
            fits = row.num_ahead <= min(budget + spare, state.limits.max_chunk_tokens)
            num_tokens = row.num_ahead if fits else budget
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
