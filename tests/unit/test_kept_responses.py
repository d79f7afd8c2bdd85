from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.kept_responses import (
    Command,
    Delete,
    Event,
    Keep,
    KeptResponses,
    ResponseId,
    ResponseKept,
    ResponseLeft,
    ResponseTooLarge,
    Use,
    decide,
    evolve,
    fold,
)

TTL = 100.0
A, B, C = (ResponseId(name) for name in "abc")


def run(*commands: Command, max_bytes: int = 10) -> tuple[KeptResponses, list[Event]]:
    state = KeptResponses(max_bytes, TTL)
    log: list[Event] = []
    for command in commands:
        events = decide(state, command)
        state = fold(state, events)
        log += events
    return state, log


def test_what_was_not_used_for_longest_leaves_for_what_is_new() -> None:
    state, log = run(Keep(A, 4, 0), Keep(B, 4, 1), Use(A, 2), Keep(C, 4, 3))
    assert list(state.responses) == [A, C]
    assert ResponseLeft(B, "evicted") in log


def test_use_does_not_make_younger() -> None:
    state, log = run(Keep(A, 1, 0), Use(A, TTL - 1), Use(A, TTL))
    assert not state.responses
    assert log[-1] == ResponseLeft(A, "expired")


def test_what_is_larger_than_all_room_is_not_kept_and_costs_nobody_its_place() -> None:
    state, log = run(Keep(A, 4, 0), Keep(B, 11, 1))
    assert list(state.responses) == [A]
    assert log[-1] == ResponseTooLarge(B, 11)


def test_a_kept_one_is_replaced_and_a_deleted_one_is_gone() -> None:
    state, log = run(Keep(A, 4, 0), Keep(A, 6, 1), Delete(A, 2), Delete(A, 3))
    assert not state.responses
    assert log == [
        ResponseKept(A, 4, 0),
        ResponseLeft(A, "replaced"),
        ResponseKept(A, 6, 1),
        ResponseLeft(A, "deleted"),
    ]


IDS = st.sampled_from([A, B, C, ResponseId("d"), ResponseId("e")])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["keep", "use", "delete"]),
        IDS,
        st.integers(0, 12),
        st.floats(0, 60, allow_nan=False),
    ),
    max_size=40,
)


def commands(steps: list[tuple[str, ResponseId, int, float]]) -> list[Command]:
    now, said = 0.0, list[Command]()
    for verb, response_id, num_bytes, seconds in steps:
        now += seconds
        if verb == "keep":
            said.append(Keep(response_id, num_bytes, now))
        else:
            said.append((Use if verb == "use" else Delete)(response_id, now))
    return said


@given(STEPS)
def test_room_and_age_hold_after_every_command_and_the_log_alone_rebuilds_the_state(
    steps: list[tuple[str, ResponseId, int, float]],
) -> None:
    state, log = KeptResponses(20, TTL), list[Event]()
    for command in commands(steps):
        before = msgspec.json.encode(state)
        events = decide(state, command)
        assert msgspec.json.encode(state) == before
        for event in events:
            state = evolve(state, event)
        log += events
        assert state.used_bytes == sum(kept.num_bytes for kept in state.responses.values())
        assert state.used_bytes <= state.max_bytes
        assert all(command.now_seconds - k.at_seconds < TTL for k in state.responses.values())
        if isinstance(command, Keep):
            assert (command.response_id in state.responses) == (command.num_bytes <= 20)
        if isinstance(command, Delete):
            assert command.response_id not in state.responses
    assert fold(KeptResponses(20, TTL), log) == state


@given(STEPS)
def test_nothing_leaves_before_it_must(
    steps: list[tuple[str, ResponseId, int, float]],
) -> None:
    """What is evicted would not have fitted: with it, the room would be exceeded."""
    state = KeptResponses(20, TTL)
    for command in commands(steps):
        sizes = {i: kept.num_bytes for i, kept in state.responses.items()}
        events = decide(state, command)
        state = fold(state, events)
        evicted = [e.response_id for e in events if getattr(e, "why", "") == "evicted"]
        for response_id in evicted[-1:]:
            assert state.used_bytes + sizes[response_id] > state.max_bytes
