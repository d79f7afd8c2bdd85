"""What a command makes happen, and what the next step computes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import assert_never

from mlxbun.domain.sampling import RequestId
from mlxbun.domain.scheduling.state import Row, Scheduling
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
    readers: dict[RequestId, Row] = {}
    for request_id, row in rows:
        if row.num_drawn:
            if row.num_drawn < row.max_tokens:
                decode.append(request_id)
        elif row.num_unfilled:
            readers[request_id] = row
        else:
            start.append(request_id)
    prefill: tuple[tuple[RequestId, int], ...] = ()
    if readers and not (state.prefilled_last and (decode or start)):
        prefill = _chunks(state, readers)
        decode, start = [], []
    events: list[Event] = [RequestAdmitted(r) for r in admitted]
    if decode or start or prefill:
        events.append(StepPlan(state.next_step, tuple(decode), tuple(start), prefill))
    return events


def _chunks(
    state: Scheduling, readers: Mapping[RequestId, Row]
) -> tuple[tuple[RequestId, int], ...]:
    """Return how much of whose prompt the next step reads, in the order of arrival.

    Who came first reads first.  But who has less than half as much left as the first of all shares
    its step, the one with the least left first, and takes half of it at most; where a step is too
    short for two, they take turns.
    """
    budget, unit = prefill_budget(state, len(readers)), state.limits.min_chunk_tokens
    chunks: dict[RequestId, int] = {}
    first = next(iter(readers.values()))
    quick = sorted(
        (r for r, row in readers.items() if 2 * row.num_unfilled < first.num_unfilled),
        key=lambda request_id: readers[request_id].num_unfilled,
    )
    if quick and state.limits.adaptive_chunks:
        share = budget // 2 // unit * unit
        if not share and state.next_step // 2 % 2:  # a decode may stand between two of them
            share = budget
        budget -= share - _give(state, quick, share, readers, chunks)
    _give(state, list(readers), budget, readers, chunks)
    return tuple((request_id, chunks[request_id]) for request_id in readers if request_id in chunks)


def _give(
    state: Scheduling,
    order: Sequence[RequestId],
    budget: int,
    readers: Mapping[RequestId, Row],
    chunks: dict[RequestId, int],
) -> int:
    """Give out `budget` tokens in `order`, as chunks of those who have none; return what is left.

    A rest too short for a step of its own is read along.
    """
    spare = state.limits.min_chunk_tokens if state.limits.adaptive_chunks else 0
    longest, given = state.limits.max_chunk_tokens, bool(chunks)
    for request_id in order:
        if request_id in chunks:
            continue
        if budget <= 0 or (given and budget < spare):
            break
        row = readers[request_id]
        fits = row.num_ahead <= min(budget + spare, longest)
        chunks[request_id] = row.num_ahead if fits else budget
        budget -= chunks[request_id]
        given = True
    return max(0, budget)


def _free_rows(state: Scheduling) -> int:
    return max(0, state.limits.max_rows - len(state.rows))


def _is_live(state: Scheduling, request_id: RequestId) -> bool:
    return request_id in state.waiting or request_id in state.rows
