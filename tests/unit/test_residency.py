"""Residency: what is lent, awaited, written and evicted, as rules and under random commands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Namespace, boundary, chain
from mlxbun.domain.residency import (
    Budget,
    Clear,
    Compute,
    End,
    Find,
    Opened,
    Pruned,
    Publish,
    Residency,
    Restored,
    RestoreFailed,
    Return,
    WriteFailed,
    Written,
    decide,
    evolve,
    fold,
)
from mlxbun.domain.sampling import RequestId, TokenId

SPACE = Namespace("00" * 32)
A, B = RequestId("A"), RequestId("B")
SIZE = 100


def prompt(letter: str, num_blocks: int) -> list[TokenId]:
    return [TokenId(ord(letter))] * (num_blocks * BLOCK)


def keys(letter: str, num_blocks: int) -> tuple[BlockKey, ...]:
    return tuple(chain(SPACE, prompt(letter, num_blocks)))


def infos(letter: str, num_blocks: int) -> tuple[BlockInfo, ...]:
    of = keys(letter, num_blocks)
    return tuple(
        BlockInfo(key, of[i - 1] if i else None, "block", i * BLOCK, BLOCK, SIZE)
        for i, key in enumerate(of)
    )


def find(letter: str, num_blocks: int, request_id: RequestId = A, spare: int = 1) -> Find:
    of = keys(letter, num_blocks)
    return Find(request_id, of, (), num_blocks * BLOCK - 1 + spare, of)


def after(state: Residency, *commands: Any) -> list[residency.Event]:
    """Apply commands; return the events of the last."""
    events: list[residency.Event] = []
    for command in commands:
        events = decide(state, command)
        for event in events:
            evolve(state, event)
    return events


def cache(blocks: int = 100, *, has_ssd: bool = False) -> Residency:
    return Residency(Budget(blocks * SIZE, has_ssd))


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
    assert state.boundary_lengths == {len(ids): 1}
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


letters = st.sampled_from("xyz")
counts = st.integers(1, 4)
requests = st.sampled_from([A, B])
commands = st.one_of(
    st.builds(find, letters, counts, requests, st.integers(0, 1)),
    st.builds(lambda r, x, n: Compute(r, keys(x, n)), requests, letters, counts),
    st.builds(lambda r, x, n: Publish(r, infos(x, n), 1.0), requests, letters, counts),
    st.builds(Return, requests),
    st.builds(End, requests),
    st.builds(lambda x, n: Written(keys(x, n)), letters, counts),
    st.builds(lambda x, n: WriteFailed(keys(x, n), "no space"), letters, counts),
    st.builds(lambda x, n: Restored(infos(x, n)), letters, counts),
    st.builds(lambda x, n: RestoreFailed(keys(x, n), "lost"), letters, counts),
    st.builds(lambda x, n: Opened(infos(x, n)), letters, counts),
    st.builds(lambda x, n: Pruned(keys(x, n)), letters, counts),
    st.just(Clear()),
)


@given(
    st.lists(commands, max_size=40),
    st.integers(0, 6),
    st.booleans(),
    st.sampled_from(["lru", "cost-size"]),
)
@settings(max_examples=300, deadline=None)
def test_under_any_commands_the_books_balance(
    script: list[residency.Command], blocks: int, has_ssd: bool, retention: Any
) -> None:
    budget = Budget(blocks * SIZE, has_ssd, retention)
    state, log = Residency(budget), list[residency.Event]()
    for command in script:
        events = decide(state, command)
        for event in events:
            if isinstance(event, residency.BlocksEvicted):
                borrowed = {key for of in state.lent.values() for key in of}
                assert not borrowed.intersection(event.keys), "lent state never leaves RAM"
            if isinstance(event, residency.PrefixLent):
                assert isinstance(command, Find)
                assert event.num_tokens <= command.max_tokens
                assert event.keys == command.keys[: len(event.keys)]
            evolve(state, event)
        log += events
        in_ram = [b for b in state.blocks.values() if b.in_ram]
        assert state.ram_bytes == sum(b.info.num_bytes for b in in_ram)
        lent_bytes = sum(b.info.num_bytes for b in in_ram if b.num_lent)
        assert state.ram_bytes <= max(budget.ram_bytes * residency.CEILING, lent_bytes)
        for key, block in state.blocks.items():
            assert block.num_lent == sum(key in of for of in state.lent.values())
            assert block.in_ram or block.on_ssd or block.writing
        for key in state.computing:
            assert state.computing[key] in (A, B)
    assert fold(Residency(budget), log) == state, "the log alone rebuilds the state"
