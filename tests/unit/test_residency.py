"""Residency: what is lent, awaited, written and evicted, as rules and under random commands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, boundary
from mlxbun.domain.residency import (
    Budget,
    CloseSession,
    Compute,
    End,
    Find,
    Fit,
    Hold,
    Measured,
    Opened,
    Prefetch,
    Pruned,
    Publish,
    Relieve,
    Residency,
    Restored,
    RestoreFailed,
    Return,
    SessionId,
    StopRestores,
    Tick,
    WriteAgain,
    WriteFailed,
    Written,
    decide,
    evolve,
    fold,
)
from residency_driver import (
    SIZE,
    SPACE,
    A,
    B,
    S,
    T,
    after,
    arrived,
    budgets,
    cache,
    check_books,
    counts,
    evicted,
    find,
    infos,
    keys,
    leaving_order,
    letters,
    prompt,
    requests,
    sessions,
    steps,
)


def test_what_nobody_computed_is_missed() -> None:
    assert after(cache(), find("x", 2)) == [residency.PrefixMissed(A)]


def test_what_was_published_is_lent_and_stays() -> None:
    state = cache()
    lent = after(state, Publish(B, infos("x", 2)), find("x", 3))
    assert lent == [residency.PrefixLent(A, keys("x", 2), 2 * BLOCK)]
    again = after(state, find("x", 3, B))
    assert again == [residency.PrefixLent(B, keys("x", 2), 2 * BLOCK)]


def test_a_whole_prompt_is_never_lent() -> None:
    """One token at least is computed, so its last block is not reused if it is all there is."""
    state = cache()
    lent = after(state, Publish(B, infos("x", 2)), find("x", 2, spare=0))
    assert lent == [residency.PrefixLent(A, keys("x", 1), BLOCK)]


def test_a_second_request_waits_for_what_the_first_computes() -> None:
    state = cache()
    after(state, Compute(A, keys("x", 2)))
    assert after(state, find("x", 2, B)) == [
        residency.PrefixAwaited(B, keys("x", 2)[0], "computing")
    ]
    assert residency.waiting_on(state, keys("x", 2)[0])
    after(state, Publish(A, infos("x", 2)))
    assert not residency.waiting_on(state, keys("x", 2)[0])
    assert after(state, find("x", 2, B)) == [residency.PrefixLent(B, keys("x", 2), 2 * BLOCK)]


def test_nobody_waits_for_a_request_that_is_over() -> None:
    state = cache()
    after(state, Compute(A, keys("x", 2)), End(A))
    assert after(state, find("x", 2, B)) == [residency.PrefixMissed(B)]


def test_least_recently_used_leaves_first_and_of_a_chain_the_end() -> None:
    state = cache(4)
    after(state, Publish(A, infos("x", 2)), Publish(A, infos("y", 2)), find("x", 3), Return(A))
    evicted = after(state, Publish(A, infos("z", 1)))[-1]
    assert evicted == residency.BlocksEvicted((keys("y", 2)[1],), 1)


def test_lent_state_never_leaves() -> None:
    state = cache(2)
    after(state, Publish(A, infos("x", 2)), find("x", 3, B))
    events = after(state, Publish(A, infos("y", 2)))
    evicted = [e for e in events if isinstance(e, residency.BlocksEvicted)]
    assert all(key not in keys("x", 2) for event in evicted for key in event.keys)


def test_with_an_ssd_only_what_it_has_leaves_below_the_ceiling() -> None:
    state = cache(4, has_ssd=True)
    events = after(state, Publish(A, infos("x", 4)), Publish(A, infos("y", 1)))
    assert not [e for e in events if isinstance(e, residency.BlocksEvicted)]
    assert after(state, Written(keys("x", 4)))[-1] == residency.BlocksEvicted((keys("x", 4)[3],), 0)


def test_beyond_the_ceiling_state_is_lost_and_reported() -> None:
    state = cache(4, has_ssd=True)
    events = after(state, Publish(A, infos("x", 4)), Publish(A, infos("y", 4)))
    evicted = events[-1]
    assert isinstance(evicted, residency.BlocksEvicted)
    assert evicted.num_lost == len(evicted.keys) == 3


def test_what_the_ssd_has_is_restored_for_who_asks_and_shared_by_who_comes() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 2)))
    first = after(state, find("x", 3))
    assert first == [
        residency.RestoreStarted(keys("x", 2)),
        residency.PrefixAwaited(A, keys("x", 2)[1], "restoring"),
    ]
    second = after(state, find("x", 3, B))
    assert second == [residency.PrefixAwaited(B, keys("x", 2)[1], "restoring")]
    after(state, Restored(infos("x", 2)))
    assert after(state, find("x", 3, B)) == [residency.PrefixLent(B, keys("x", 2), 2 * BLOCK)]


def test_what_is_read_ahead_is_bounded_shared_and_can_be_stopped() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 3)))
    ahead = after(state, Prefetch(find("x", 4), 2 * SIZE))
    assert ahead == [residency.RestoreStarted(keys("x", 2), ahead=True)]
    assert not after(state, Prefetch(find("x", 2, B), 9 * SIZE)), "it is on its way"
    assert after(state, find("x", 4, B)) == [
        residency.RestoreStarted(keys("x", 3)[2:]),
        residency.PrefixAwaited(B, keys("x", 3)[2], "restoring"),
    ]
    stopped = after(state, StopRestores(keys("x", 3)))
    assert stopped == [residency.RestoresStopped(keys("x", 3))]
    assert not residency.waiting_on(state, keys("x", 3)[2])
    assert not after(state, StopRestores(keys("x", 3)))
    assert after(state, find("x", 4))[0] == residency.RestoreStarted(keys("x", 3))


def test_who_waited_for_a_bad_block_computes() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 2)), find("x", 3), RestoreFailed(keys("x", 2), "bits flipped"))
    assert not residency.waiting_on(state, keys("x", 2)[1])
    assert after(state, find("x", 3)) == [residency.PrefixMissed(A)]


@pytest.mark.parametrize(("reading_seconds", "restores"), [(0.1, True), (10.0, False)])
def test_what_is_quicker_to_compute_than_to_read_is_computed(
    reading_seconds: float, restores: bool
) -> None:
    """One block took a second to compute, and another `reading_seconds` to read."""
    state = cache(has_ssd=True)
    after(state, Publish(A, infos("y", 1), 1.0), Opened((*infos("x", 2), *infos("z", 1))))
    after(state, Restored(infos("z", 1), reading_seconds))
    events = after(state, find("x", 3))
    if restores:
        assert events[0] == residency.RestoreStarted(keys("x", 2))
    else:
        assert events == [residency.RestoreDeclined(A, 2 * BLOCK), residency.PrefixMissed(A)]


def test_a_boundary_is_lent_at_its_length_alone() -> None:
    state = cache()
    ids = prompt("x", 2)
    key = boundary(SPACE, ids)
    after(state, Publish(A, (BlockInfo(key, None, "boundary", 0, len(ids), SIZE),)))
    assert state.end_lengths == {len(ids): 1}
    wants = Find(B, (), ((len(ids), key),), len(ids) + 5)
    assert after(state, wants) == [residency.PrefixLent(B, (key,), len(ids))]
    too_long = Find(A, (), ((len(ids), key),), len(ids) - 1)
    assert after(state, too_long) == [residency.PrefixMissed(A)]


def test_cost_size_keeps_what_was_dear_to_compute() -> None:
    for retention, leaves in (("lru", "x"), ("cost-size", "y")):
        state = Residency(Budget(2 * SIZE, retention=retention))  # type: ignore[arg-type]
        after(state, Publish(A, infos("x", 1), 9.0), Publish(A, infos("y", 1), 1.0))
        evicted = after(state, Publish(A, infos("z", 1), 5.0))[-1]
        assert evicted == residency.BlocksEvicted(keys(leaves, 1), 1), retention


@pytest.mark.parametrize("num_blocks", [1, 3, 40])
def test_what_is_too_much_by_itself_leaves_at_its_end(num_blocks: int) -> None:
    state = cache(2)
    after(state, Publish(A, infos("x", num_blocks)))
    assert state.ram_bytes <= 2 * SIZE
    there = [key for key in keys("x", num_blocks) if key in state.blocks]
    assert tuple(there) == keys("x", num_blocks)[: min(2, num_blocks)]


def test_what_ram_cannot_hold_is_not_brought_there() -> None:
    """It would leave again before it is used, and be asked for again, for ever."""
    state = cache(2, has_ssd=True)
    events = after(state, Opened(infos("x", 4)), find("x", 5))
    assert events[0] == residency.RestoreStarted(keys("x", 2))
    after(state, Restored(infos("x", 2)))
    assert after(state, find("x", 5)) == [residency.PrefixLent(A, keys("x", 2), 2 * BLOCK)]
    nothing = cache(0, has_ssd=True)
    assert after(nothing, Opened(infos("x", 4)), find("x", 5)) == [residency.PrefixMissed(A)]


def test_a_disk_that_is_known_to_be_slower_than_computing_is_not_asked() -> None:
    """A new process knows it from a block that was read, and from what an earlier one measured."""
    state = cache(has_ssd=True)
    slow = Measured(SIZE, 10.0)
    after(state, Opened(infos("x", 2), prefill_tokens_per_second=BLOCK), slow)
    declined, missed, *_ = after(state, find("x", 3))
    assert declined == residency.RestoreDeclined(A, 2 * BLOCK)
    assert missed == residency.PrefixMissed(A)


def test_a_disk_whose_speed_alone_is_known_is_asked() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 2)), Measured(SIZE, 10.0))
    assert after(state, find("x", 3))[0] == residency.RestoreStarted(keys("x", 2))


def test_what_was_measured_here_counts_for_more_than_what_an_earlier_process_noted() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(A, infos("y", 1), 1.0))
    after(state, Opened(infos("x", 2), prefill_tokens_per_second=1e9))
    assert state.prefill_tokens_per_second == BLOCK
    assert not after(state, Measured(0, 1.0)) and not after(state, Measured(SIZE, 0.0))


def test_who_waited_enough_begins_with_what_is_in_ram() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(B, infos("x", 1)), Opened(infos("x", 2)))
    asked = msgspec.structs.replace(find("x", 3), from_ssd=False, wanted=())
    assert after(state, asked) == [residency.PrefixLent(A, keys("x", 1), BLOCK)]


def test_who_awaits_a_block_that_was_computed_meanwhile_waits_no_more() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 1)), find("x", 2), Publish(B, infos("x", 1)))
    assert not residency.waiting_on(state, keys("x", 1)[0])
    assert not after(state, Restored(infos("x", 1)))
    assert not residency.waiting_on(state, keys("x", 1)[0])


def test_a_lost_block_takes_along_what_the_ssd_had_after_it() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 4)), RestoreFailed(keys("x", 2)[1:], "bits flipped"))
    assert tuple(state.blocks) == keys("x", 1)


def test_what_was_not_written_is_written_with_what_comes_after_it() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(A, infos("x", 2)), WriteFailed(keys("x", 2), "no space"))
    events = after(state, Publish(A, infos("x", 3)))
    assert events[-1] == residency.WriteQueued(keys("x", 3))


def test_what_was_not_written_is_written_again_the_last_used_first() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(A, infos("x", 3)), WriteFailed(keys("x", 3), "no space"))
    after(state, Publish(A, infos("y", 2)), WriteFailed(keys("y", 2), "no space"))
    assert after(state, WriteAgain(3)) == [residency.WriteQueued((*keys("y", 2), *keys("x", 1)))]
    assert after(state, WriteAgain(9)) == [residency.WriteQueued(keys("x", 3)[1:])]
    assert not after(state, WriteAgain(9)), "all of it is on its way"


def test_what_comes_after_a_block_that_is_lost_is_not_written_again() -> None:
    state = cache(has_ssd=True)
    after(state, Opened(infos("x", 1)), Publish(A, infos("x", 3)[1:]))
    after(state, WriteFailed(keys("x", 3)[1:], "no space"))
    assert decide(state, WriteAgain(9)) == [residency.WriteQueued(keys("x", 3)[1:])]
    after(state, Pruned(keys("x", 1)))
    assert not after(state, WriteAgain(9))


def test_nothing_is_written_again_where_nothing_is_written() -> None:
    state = cache()
    after(state, Publish(A, infos("x", 3)))
    assert not after(state, WriteAgain(9))


@pytest.mark.parametrize("retention", ["lru", "cost-size"])
def test_what_a_block_needs_stays_as_long_as_it(retention: Any) -> None:
    """A beginning that is published long before its end, and other state in between."""
    state = Residency(Budget(3 * SIZE, retention=retention))
    after(state, Publish(A, infos("x", 1), 1.0), Publish(A, infos("y", 1), 2.0))
    after(state, Publish(A, infos("x", 2), 9.0))
    evicted = after(state, Publish(A, infos("z", 1), 3.0))[-1]
    assert evicted == residency.BlocksEvicted(keys("y", 1), 1)


def test_who_asks_again_and_gets_nothing_holds_nothing() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(B, infos("x", 1)), find("x", 2))
    assert state.lent
    after(state, Opened(infos("x", 2)), find("x", 3))
    assert not state.lent and not state.blocks[keys("x", 1)[0]].num_lent


def hold(letter: str, num_blocks: int, session: SessionId = S, now: float = 0.0) -> Hold:
    return Hold(session, keys(letter, num_blocks), now)


def test_what_a_session_holds_leaves_after_everything_else() -> None:
    state = cache(4)
    after(state, hold("x", 2), Publish(A, infos("x", 2)))
    for letter in "abcdef":
        after(state, Publish(A, infos(letter, 2)))
    there = [key for key, block in state.blocks.items() if block.in_ram]
    assert set(there) == {*keys("x", 2), *keys("f", 2)}
    after(state, Publish(A, infos("y", 9)))
    assert all(key in state.blocks for key in keys("x", 2)), "what is too much is cut instead"


def test_sessions_make_room_for_each_other() -> None:
    state = cache(4)
    for letter, session in (("x", S), ("y", T)):
        after(state, hold(letter, 3, session), Publish(A, infos(letter, 3)))
    there = {key for key, block in state.blocks.items() if block.in_ram}
    assert there == {*keys("x", 1), *keys("y", 3)}, "the older one gives its end"


def test_a_closed_session_holds_nothing() -> None:
    state = cache(4)
    after(state, hold("x", 2), Publish(A, infos("x", 2)))
    assert after(state, CloseSession(S)) == [residency.SessionReleased(S, "closed")]
    assert not after(state, CloseSession(S)) and not state.held
    events = after(state, Publish(A, infos("y", 4)))
    assert evicted(events) == [keys("x", 2)[1], keys("x", 2)[0]]


def test_only_what_a_sessions_last_request_left_is_held() -> None:
    state = cache(4)
    after(state, hold("x", 2), Publish(A, infos("x", 2)))
    events = after(state, hold("y", 2), Publish(A, infos("y", 2)), Publish(A, infos("z", 2)))
    assert evicted(events) == [keys("x", 2)[1], keys("x", 2)[0]]


def test_a_turn_that_goes_on_says_only_what_is_new() -> None:
    state = cache()
    after(state, hold("x", 2, now=5.0))
    (event,) = after(state, hold("x", 3, now=6.0))
    assert event == residency.SessionHeld(S, 2, keys("x", 3)[2:], 6.0 + 3600.0)
    (event,) = after(state, Hold(S, (), 7.0))
    assert event == residency.SessionHeld(S, 3, (), 7.0 + 3600.0), "nothing new: it lives on"
    assert state.sessions[S].keys == list(keys("x", 3))


def test_a_session_ends_an_hour_after_its_last_publication() -> None:
    state = cache(2)
    after(state, hold("x", 2, S, 0.0), hold("y", 1, T, 10.0), hold("x", 2, S, 20.0))
    assert after(state, Tick(3610.0))[0] == residency.SessionReleased(T, "expired")
    assert list(state.sessions) == [S]
    assert after(state, Tick(3620.0))[0] == residency.SessionReleased(S, "expired")
    assert not state.held


def test_tokens_that_two_sessions_share_are_held_for_both_and_lent_to_anybody() -> None:
    state = cache(2)
    after(state, hold("x", 2, S), Publish(A, infos("x", 2)), hold("x", 2, T), CloseSession(S))
    assert state.held == dict.fromkeys(keys("x", 2), 1)
    assert after(state, find("x", 3, B)) == [residency.PrefixLent(B, keys("x", 2), 2 * BLOCK)]


def test_there_are_only_so_many_sessions() -> None:
    state = cache()
    names = [SessionId(f"s{n}") for n in range(residency.MAX_SESSIONS)]
    after(state, *(hold("x", 1, name) for name in names))
    events = after(state, hold("y", 1, T))
    assert events[0] == residency.SessionReleased(names[0], "crowded out")
    assert len(state.sessions) == residency.MAX_SESSIONS and T in state.sessions


def test_what_was_restored_for_somebody_stays_though_sessions_hold_the_room() -> None:
    state = cache(3, has_ssd=True)
    after(state, hold("x", 3), Publish(A, infos("x", 3)), Written(keys("x", 3)))
    after(state, Opened(infos("y", 2)), find("y", 3, B))
    events = after(state, Restored(infos("y", 2)))
    assert evicted(events) == [keys("x", 3)[2], keys("x", 3)[1]]
    assert after(state, find("y", 3, B)) == [residency.PrefixLent(B, keys("y", 2), 2 * BLOCK)]


def test_a_session_keeps_what_it_holds_while_others_wait_for_the_disk() -> None:
    state = cache(4, has_ssd=True)
    after(state, hold("x", 3), Publish(A, infos("x", 3)), Written(keys("x", 3)))
    assert not evicted(after(state, Publish(A, infos("y", 2))))
    assert evicted(after(state, Written(keys("y", 2)))) == [keys("y", 2)[1]]


def idle_cache(seconds: float = 300.0) -> Residency:
    return Residency(Budget(100 * SIZE, True, idle_seconds=seconds))


def test_what_is_idle_leaves_ram_once_the_ssd_has_it() -> None:
    state = idle_cache()
    after(state, Tick(1000.0), Publish(A, infos("x", 2)), Publish(A, infos("y", 2)))
    assert residency.next_due(state) is None, "the SSD has nothing yet"
    after(state, Written(keys("x", 2)))
    assert residency.next_due(state) == 1300.0
    assert not evicted(after(state, Tick(1299.0)))
    events = after(state, Tick(1300.0))
    assert isinstance(events[0], residency.BlocksEvicted) and events[0].cause == "idle"
    assert set(events[0].keys) == set(keys("x", 2)) and events[0].num_lost == 0
    assert residency.next_due(state) is None
    after(state, Written(keys("y", 2)))
    assert set(evicted(after(state, Tick(1301.0)))) == set(keys("y", 2))
    assert not state.ram_bytes
    assert isinstance(after(state, find("x", 3))[0], residency.RestoreStarted)


def test_what_is_used_again_is_not_idle() -> None:
    state = idle_cache()
    after(state, Tick(1000.0), Publish(A, infos("x", 2)), Written(keys("x", 2)))
    after(state, Tick(1200.0), find("x", 3, B), Return(B))
    assert not evicted(after(state, Tick(1400.0)))
    assert residency.next_due(state) == 1500.0
    assert set(evicted(after(state, Tick(1500.0)))) == set(keys("x", 2))


def test_what_is_borrowed_is_not_idle() -> None:
    state = idle_cache()
    after(state, Tick(1000.0), Publish(A, infos("x", 2)), Written(keys("x", 2)), find("x", 3, B))
    assert not evicted(after(state, Tick(5000.0)))
    after(state, Return(B))
    assert set(evicted(after(state, Tick(5300.0)))) == set(keys("x", 2))


def test_a_time_too_short_for_the_clock_ends_nothing() -> None:
    state = idle_cache(1e-12)
    after(state, Tick(1e9), Publish(A, infos("x", 2)), Written(keys("x", 2)), find("x", 3, B))
    assert not evicted(after(state, Tick(2e9))), "it is borrowed"
    after(state, Return(B))
    assert set(evicted(after(state, Tick(3e9)))) == set(keys("x", 2))


@pytest.mark.parametrize("retention", ["lru", "cost-size"])
def test_what_is_used_a_thousand_times_is_noted_a_few_times(retention: Any) -> None:
    state = Residency(Budget(100 * SIZE, retention=retention))
    after(state, Publish(A, infos("y", 2), 1.0), Publish(A, infos("x", 2), 9.0))
    for _ in range(1000):
        after(state, find("x", 3), Return(A))
    assert sum(map(len, state.queues)) <= 2 * 4 + 64


def test_without_a_time_nothing_is_idle() -> None:
    state = idle_cache(0.0)
    after(state, Publish(A, infos("x", 2)), Written(keys("x", 2)))
    assert residency.next_due(state) is None
    assert not evicted(after(state, Tick(1e9)))


def test_under_pressure_what_the_ssd_has_leaves_first() -> None:
    state = cache(has_ssd=True)
    after(state, Publish(A, infos("x", 2)), hold("y", 2), Publish(A, infos("y", 2)))
    after(state, Written(keys("y", 2)))
    events = after(state, Relieve(2 * SIZE - 1))
    assert events == [
        residency.PressureRelieved(2 * SIZE - 1, 2 * SIZE),
        residency.BlocksEvicted((keys("y", 2)[1], keys("y", 2)[0]), 0, "pressure"),
    ]
    events = after(state, Relieve(50 * SIZE))
    assert events[0] == residency.PressureRelieved(50 * SIZE, 2 * SIZE)
    assert evicted(events) == [keys("x", 2)[1], keys("x", 2)[0]]
    assert not after(state, Relieve(1))


commands = st.one_of(
    st.builds(find, letters, counts, requests, st.integers(0, 1)),
    st.builds(lambda r, x, n: Compute(r, keys(x, n)), requests, letters, counts),
    st.builds(lambda r, x, n: Publish(r, infos(x, n), 1.0), requests, letters, counts),
    st.builds(Return, requests),
    st.builds(End, requests),
    st.builds(lambda x, n: Written(keys(x, n)), letters, counts),
    st.builds(lambda x, n: WriteFailed(keys(x, n), "no space"), letters, counts),
    st.builds(WriteAgain, counts),
    st.builds(lambda x, n: Restored(infos(x, n)), letters, counts),
    st.builds(lambda x, n: RestoreFailed(keys(x, n), "lost"), letters, counts),
    st.builds(lambda x, n, b: Prefetch(find(x, n, B), b * SIZE), letters, counts, counts),
    st.builds(lambda x, n: StopRestores(keys(x, n)), letters, counts),
    st.builds(lambda x, n: Opened(infos(x, n)), letters, counts),
    st.builds(lambda x, n: Pruned(keys(x, n)), letters, counts),
    st.builds(lambda x, n, s: hold(x, n, s), letters, counts, sessions),
    st.builds(CloseSession, sessions),
    st.builds(Tick, steps),
    st.builds(lambda n: Relieve(n * SIZE), counts),
)


def check_eviction(state: Residency, event: residency.BlocksEvicted) -> None:
    """Check that what leaves is what has to, before it has left."""
    borrowed = {key for of in state.lent.values() for key in of}
    assert not borrowed.intersection(event.keys), "lent state never leaves RAM"
    assert event.num_lost == sum(not state.blocks[key].on_ssd for key in event.keys)
    going = set(event.keys)
    if event.cause == "idle":
        assert not event.num_lost, "what is idle is never lost"
        return
    order = leaving_order(state)
    for covered in (True, False):
        for is_held in (True, False):
            alike = [
                key
                for key in order
                if (state.blocks[key].on_ssd or not state.budget.has_ssd) == covered
                and (key in state.held) == is_held
            ]
            leave = [key for key in alike if key in going]
            assert leave == alike[: len(leave)], "the first in order leave"


@given(st.lists(commands, min_size=8, max_size=60), budgets)
@settings(max_examples=300, deadline=None)
def test_under_any_commands_the_books_balance(
    script: list[residency.Command], budget: Budget
) -> None:
    state, log, now = Residency(budget), list[residency.Event](), 0.0
    for command in script:
        if isinstance(command, Tick):
            now += command.now
            command = Tick(now)
        elif isinstance(command, Hold):
            command = msgspec.structs.replace(command, now=now)
        for each in (command, Fit(arrived(command))):
            before = msgspec.json.encode(state)
            events = decide(state, each)
            assert msgspec.json.encode(state) == before, "to decide changes nothing"
            for event in events:
                if isinstance(event, residency.BlocksEvicted) and not arrived(command):
                    check_eviction(state, event)
                if isinstance(event, residency.PrefixLent):
                    assert isinstance(command, Find)
                    assert event.num_tokens <= command.max_tokens
                    assert event.keys == command.keys[: len(event.keys)]
                if isinstance(event, residency.WriteQueued):
                    check_queued(state, event)
                    assert not isinstance(command, WriteAgain) or (
                        len(event.keys) <= command.max_blocks
                    )
                evolve(state, event)
            log += events
            taken = [e for e in events if isinstance(e, residency.BlocksEvicted)]
            if isinstance(each, Fit) and not each.last and taken:
                check_sessions(state, log, taken[0])
        check_books(state, now)
    assert fold(Residency(budget), log) == state, "the log alone rebuilds the state"


def check_queued(state: Residency, event: residency.WriteQueued) -> None:
    """Check that only what is in RAM and nowhere else is written, and nothing of it twice."""
    assert len(set(event.keys)) == len(event.keys)
    for number, key in enumerate(event.keys):
        block = state.blocks[key]
        assert block.in_ram and not block.on_ssd and not block.writing
        before = state.blocks.get(block.info.parent) if block.info.parent is not None else None
        if before is not None and before.in_ram:
            earlier = before.info.key in event.keys[:number]
            assert before.on_ssd or before.writing or earlier


def check_sessions(
    state: Residency, log: list[residency.Event], event: residency.BlocksEvicted
) -> None:
    """Check that no session loses room to what no session holds."""
    if any(key in state.held for key in event.keys):
        free = [key for key in leaving_order(state) if key not in state.held]
        assert not free, "all that no session holds went before"
