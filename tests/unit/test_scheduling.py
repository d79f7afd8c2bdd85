"""The scheduling decider: given events, when a command, then events."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxbun.domain.sampling import FinishReason, RequestId
from mlxbun.domain.scheduling import (
    Cancel,
    Command,
    CommitStep,
    Drain,
    DrainStarted,
    Event,
    Fail,
    Finish,
    Limits,
    PlanStep,
    PrefixReused,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRejected,
    Scheduling,
    StepCommitted,
    StopAt,
    StopsSet,
    Submit,
    decide,
    evolve,
    fold,
    looks_ahead,
    prefill_budget,
)
from mlxbun.domain.steps import StepPlan

A, B, C, D = (RequestId(name) for name in "ABCD")
LIMITS = Limits(max_rows=2, max_waiting=2, max_chunk_tokens=8, adaptive_chunks=False)


def given_(*events: Event, limits: Limits = LIMITS) -> Scheduling:
    return fold(Scheduling(limits), events)


def queued(request_id: RequestId, prompt: int = 5, max_tokens: int = 3) -> RequestQueued:
    return RequestQueued(request_id, prompt, max_tokens)


def plan_of(events: list[Event]) -> StepPlan:
    return next(event for event in events if isinstance(event, StepPlan))


def plans_of(events: list[Event]) -> list[tuple[RequestId, int]]:
    return [chunk for e in events if isinstance(e, StepPlan) for chunk in e.prefill]


def test_a_lone_request_is_admitted_and_prefilled_at_once() -> None:
    state = given_(queued(A))
    assert decide(state, PlanStep()) == [RequestAdmitted(A), StepPlan(1, prefill=((A, 4),))]


def test_the_last_prompt_token_is_left_for_the_start() -> None:
    state = given_(queued(A), RequestAdmitted(A), StepPlan(1, prefill=((A, 4),)))
    assert decide(state, PlanStep()) == [StepPlan(2, start=(A,))]


def test_a_prompt_of_one_token_starts_without_prefill() -> None:
    state = given_(queued(A, prompt=1))
    assert decide(state, PlanStep()) == [RequestAdmitted(A), StepPlan(1, start=(A,))]


def test_a_long_prompt_prefills_in_chunks_while_others_decode() -> None:
    state = given_(
        queued(A, prompt=1, max_tokens=9),
        RequestAdmitted(A),
        StepPlan(1, start=(A,)),
        queued(B, prompt=21),
    )
    plans = []
    for _ in range(6):
        events = decide(state, PlanStep())
        plans.append(plan_of(events))
        state = fold(state, events)
    assert plans == [
        StepPlan(2, prefill=((B, 8),)),
        StepPlan(3, decode=(A,)),
        StepPlan(4, prefill=((B, 8),)),
        StepPlan(5, decode=(A,)),
        StepPlan(6, prefill=((B, 4),)),
        StepPlan(7, decode=(A,), start=(B,)),
    ]


def test_short_prompts_share_the_budget_of_one_step_in_order_of_arrival() -> None:
    state = given_(queued(A, prompt=6), queued(B, prompt=6))
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 5), (B, 3))


def test_nothing_is_planned_beyond_a_row_s_last_token() -> None:
    state = given_(
        queued(A, prompt=1, max_tokens=2),
        RequestAdmitted(A),
        StepPlan(1, start=(A,)),
        StepPlan(2, decode=(A,)),
    )
    assert decide(state, PlanStep()) == []


def test_the_queue_holds_free_rows_and_waiters_and_no_more() -> None:
    state = given_(queued(A), queued(B), queued(C), queued(D))
    assert decide(state, Submit(RequestId("E"), 5, 3)) == [
        RequestRejected(RequestId("E"), "queue_full")
    ]


def test_a_drain_rejects_the_new_and_keeps_the_old() -> None:
    state = given_(queued(A), DrainStarted())
    assert decide(state, Drain()) == []
    assert decide(state, Submit(B, 5, 3)) == [RequestRejected(B, "draining")]
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 4),)


def test_a_row_that_ended_before_its_step_was_read_is_not_finished_twice() -> None:
    state = given_(
        queued(A, prompt=1),
        RequestAdmitted(A),
        StepPlan(1, start=(A,)),
        RequestCancelled(A),
    )
    assert decide(state, CommitStep(1, ((A, "stop"),), 0.1)) == [
        StepCommitted(1, 0, 1, 0, 0.1, 0.0)
    ]


def test_chunks_adapt_to_the_measured_rate_when_rows_decode() -> None:
    limits = Limits(stall_seconds=0.05, idle_stall_seconds=1.0, min_chunk_tokens=32)
    state = given_(
        queued(A, prompt=257),
        RequestAdmitted(A),
        StepPlan(1, prefill=((A, 256),)),
        StepCommitted(1, 0, 0, 256, 0.1, 0.1),
        limits=limits,
    )
    assert state.prefill_tokens_per_second == 2560
    assert prefill_budget(state) == 2048
    state = fold(state, [StepPlan(2, start=(A,))])
    assert prefill_budget(state) == 128


def test_long_steps_are_shared_fairly_between_those_who_read_and_those_who_decode() -> None:
    limits = Limits(stall_seconds=0.05, idle_stall_seconds=0.5, min_chunk_tokens=32)
    state = given_(queued(A, prompt=1), RequestAdmitted(A), StepPlan(1, start=(A,)), limits=limits)
    state.prefill_tokens_per_second, state.decode_seconds = 1000.0, 0.1
    assert prefill_budget(state, num_reading=1) == 96  # 0.1 s
    assert prefill_budget(state, num_reading=3) == 288  # 0.3 s
    assert prefill_budget(state, num_reading=30) == 480  # 0.5 s, and no more


def test_a_short_rest_is_read_along() -> None:
    state = given_(queued(A, prompt=47), limits=Limits(max_rows=2, idle_stall_seconds=0.01))
    state.prefill_tokens_per_second = 100.0
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 46),)


def reading(*prompts: int, budget: int) -> Scheduling:
    """Return a state in which prompts of so many tokens are read, `budget` tokens a step."""
    limits = Limits(max_rows=8, max_chunk_tokens=4096)
    names = [RequestId(chr(ord("A") + i)) for i in range(len(prompts))]
    state = given_(
        *(queued(name, prompt=n + 1) for name, n in zip(names, prompts, strict=True)), limits=limits
    )
    state.prefill_tokens_per_second = float(budget)
    return state


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one() -> None:
    state = reading(100_000, 20, budget=1024)
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 1004), (B, 20))


def test_of_those_that_are_short_the_shortest_is_read_first_and_the_first_keeps_half() -> None:
    state = reading(100_000, 900, 300, 200, budget=1024)
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 524), (C, 300), (D, 200))


def test_who_is_not_much_shorter_waits_for_its_turn() -> None:
    state = reading(5000, 2500, 4000, budget=1024)
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 1024),)


def test_where_a_step_is_too_short_for_two_they_take_turns() -> None:
    state = reading(6400, 640, budget=64)
    read = [A]
    for _ in range(8):
        events = decide(state, PlanStep())
        read += [request_id for request_id, _ in plans_of(events)]
        state = fold(state, events)
    assert read[1:].count(A) == read[1:].count(B) == 4


def test_a_stream_of_short_prompts_takes_half_of_the_time_of_a_long_one_at_most() -> None:
    for budget in (64, 128, 1024):
        state = reading(10_000, budget=budget)
        num_steps = 0
        while A in state.waiting or state.rows[A].num_unfilled:
            if C in state.rows:
                state = fold(state, [RequestFinished(C, "stop")])
            else:
                state = fold(state, [queued(C, prompt=100)])
            state = fold(state, decide(state, PlanStep()))
            num_steps += 1
        assert num_steps <= 4 * 10_000 / budget + 2  # every other one may be a start


def test_a_chunk_ends_where_the_state_is_to_be_copied() -> None:
    state = given_(queued(A, prompt=30), StopsSet(A, (3, 14, 25)), RequestAdmitted(A))
    ends = list[int]()
    while (row := state.rows[A]).num_unfilled:
        state = fold(state, decide(state, PlanStep()))
        ends.append(row.num_prefilled)
    assert ends == [3, 11, 14, 22, 25, 29]


def test_a_stop_that_is_behind_or_beyond_what_is_read_is_none() -> None:
    state = given_(queued(A, prompt=30))
    assert decide(state, StopAt(A, (29, 0, 12, 30, 4, 12))) == [StopsSet(A, (4, 12))]
    state = given_(queued(A, prompt=10), PrefixReused(A, 5), StopsSet(A, (5,)))
    assert decide(state, StopAt(A, (5,))) == [], "it is so already"
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 4),)
    assert decide(state, StopAt(B, (1,))) == [], "nobody waits"


def test_short_prompts_share_a_step_around_a_stop() -> None:
    state = given_(queued(A, prompt=6), StopsSet(A, (2,)), queued(B, prompt=6))
    assert plan_of(decide(state, PlanStep())).prefill == ((A, 2), (B, 5))


def test_a_chunk_is_never_longer_than_the_limit_however_small_that_is() -> None:
    state = given_(limits=Limits(max_chunk_tokens=8))
    state.prefill_tokens_per_second = 1e6
    assert prefill_budget(state) == 8


def test_a_short_prompt_does_not_wait_for_a_decode_step() -> None:
    state = given_(queued(A, prompt=1, max_tokens=9), RequestAdmitted(A), StepPlan(1, start=(A,)))
    state = fold(state, [StepPlan(2, decode=(A,)), queued(B, prompt=5)])
    assert plan_of(decide(state, PlanStep())) == StepPlan(3, prefill=((B, 4),))


def test_long_steps_are_read_before_the_next_is_planned() -> None:
    state = given_(limits=Limits(lookahead_seconds=0.02))
    assert looks_ahead(state)
    state.decode_seconds = 0.1
    assert not looks_ahead(state)


def test_what_decoded_is_read_before_somebody_s_prompt_where_the_host_computes() -> None:
    queue = (queued(A, prompt=1), RequestAdmitted(A), StepPlan(1, start=(A,)), queued(B))
    assert looks_ahead(given_(*queue))
    host = Limits(max_rows=2, lookahead_seconds=0.02)
    assert not looks_ahead(given_(*queue, limits=host)), "B comes next"
    assert not looks_ahead(given_(*queue, RequestAdmitted(B), limits=host)), "B's prompt is next"
    full = Limits(max_rows=1, lookahead_seconds=0.02)
    assert looks_ahead(given_(*queue, limits=full)), "B waits until A is over"


def test_fixed_chunks_ignore_the_rate() -> None:
    state = given_(limits=Limits(adaptive_chunks=False))
    state.prefill_tokens_per_second = 1.0
    assert prefill_budget(state) == 2048


# -- properties: random timelines --

request_ids = st.sampled_from([RequestId(f"r{i}") for i in range(12)])
reasons: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "length"])
steps = st.one_of(
    st.tuples(st.just("submit"), request_ids, st.integers(1, 40), st.integers(1, 6)),
    st.tuples(st.just("stop at"), request_ids, st.lists(st.integers(0, 40), max_size=3)),
    st.tuples(st.just("plan")),
    st.tuples(st.just("commit"), st.lists(st.tuples(request_ids, reasons), max_size=2)),
    st.tuples(st.just("finish"), request_ids),
    st.tuples(st.just("cancel"), request_ids),
    st.tuples(st.just("fail"), st.lists(request_ids, max_size=3)),
    st.tuples(st.just("drain")),
)


def command_of(step: tuple[object, ...], state: Scheduling) -> Command | None:
    """Return the command that a step of a script means in this state."""
    match step:
        case ("submit", str() as request_id, int() as prompt, int() as max_tokens):
            return Submit(RequestId(request_id), prompt, max_tokens)
        case ("stop at", str() as request_id, list() as stops):
            return StopAt(RequestId(request_id), tuple(stops))
        case ("plan",):
            return PlanStep() if len(state.in_flight) < 2 else None
        case ("commit", list() as finished):
            oldest = next(iter(state.in_flight), None)
            if oldest is None:
                return None
            over = tuple({r: (r, why) for r, why in finished}.values())
            return CommitStep(oldest, over, 0.01, 0.005)
        case ("finish", str() as request_id):
            return Finish(RequestId(request_id), "stop")
        case ("cancel", str() as request_id):
            return Cancel(RequestId(request_id))
        case ("fail", list() as ids):
            return Fail(tuple(dict.fromkeys(ids)), "broken")
        case _:
            return Drain()


@given(st.lists(steps, max_size=80), st.booleans())
@settings(deadline=None)
def test_the_log_alone_rebuilds_the_state_and_every_request_ends_once(
    script: list[tuple[object, ...]], adaptive: bool
) -> None:
    limits = Limits(max_rows=3, max_waiting=4, max_chunk_tokens=16, adaptive_chunks=adaptive)
    live, log = Scheduling(limits), list[Event]()
    open_requests = set[RequestId]()
    for step in script:
        command = command_of(step, live)
        if command is None:
            continue
        before = msgspec.msgpack.encode(live)
        events = decide(live, command)
        assert msgspec.msgpack.encode(live) == before, "decide must not write"
        for event in events:
            live = evolve(live, event)
            if isinstance(event, RequestQueued):
                assert event.request_id not in open_requests
                open_requests.add(event.request_id)
            elif isinstance(event, RequestFinished | RequestCancelled | RequestFailed):
                open_requests.remove(event.request_id)  # KeyError: it ended twice
        log += events
        assert open_requests == live.waiting.keys() | live.rows.keys()
        assert len(live.rows) <= limits.max_rows
        assert len(live.waiting) <= limits.max_waiting + limits.max_rows
        for row in live.rows.values():
            assert 0 <= row.num_prefilled <= row.num_prompt_tokens - 1
            assert row.num_drawn <= row.max_tokens
        for request_id, num_tokens in plans_of(events):
            row = live.rows[request_id]
            start = row.num_prefilled - num_tokens
            assert not any(start < stop < row.num_prefilled for stop in row.stops)
    stored = msgspec.msgpack.encode(log)
    assert fold(Scheduling(limits), msgspec.msgpack.decode(stored, type=list[Event])) == live


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 8)), min_size=1, max_size=7),
    st.sampled_from([None, 4, 8, 16]),
)
@settings(deadline=None)
def test_nobody_waits_for_ever(requests: list[tuple[int, int]], budget: int | None) -> None:
    """With chunks of a fixed size, and with steps that read `budget` tokens of all."""
    fixed = budget is None
    state = Scheduling(Limits(2, 64, 16, adaptive_chunks=not fixed, min_chunk_tokens=4))
    state.prefill_tokens_per_second = float(budget or 0)
    for i, (prompt, max_tokens) in enumerate(requests):
        state = fold(state, decide(state, Submit(RequestId(str(i)), prompt, max_tokens)))
    drawn = dict.fromkeys(map(str, range(len(requests))), 0)
    chunk = budget or 16
    for _ in range(4 * sum(prompt // chunk + max_tokens + 4 for prompt, max_tokens in requests)):
        events = decide(state, PlanStep())
        state = fold(state, events)
        plan = next((e for e in events if isinstance(e, StepPlan)), None)
        if plan is None:
            break
        finished = list[tuple[RequestId, FinishReason]]()
        for request_id in (*plan.decode, *plan.start):
            drawn[request_id] += 1
            if drawn[request_id] == requests[int(request_id)][1]:
                finished.append((request_id, "length"))
        state = fold(state, decide(state, CommitStep(plan.step, tuple(finished), 0.01)))
    assert state.idle
    assert [drawn[str(i)] for i in range(len(requests))] == [m for _, m in requests]
