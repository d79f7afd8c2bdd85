"""Tails: what follows the last block of a prompt or an answer is not computed again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, Namespace, chain, tails
from mlxbun.domain.residency import (
    MAX_TAILS,
    SETTLE_SECONDS,
    BlocksEvicted,
    Budget,
    Find,
    Overtake,
    PrefixLent,
    Publish,
    Residency,
    RestoreStarted,
    Return,
    Settle,
    TailsSettled,
    Tick,
    WriteQueued,
    Written,
    decide,
    next_due,
)
from mlxbun.domain.sampling import RequestId, TokenId
from residency_driver import SIZE, SPACE, A, B, after, find, infos, keys, prompt

LATE = 1000.0


def tail(letter: str, length: int, rest: str | None = None) -> BlockInfo:
    """Return what follows the last block of `length` tokens, spelled with `rest`."""
    whole = length // BLOCK
    ids = [*prompt(letter, whole), *[TokenId(ord(rest or letter))] * (length - whole * BLOCK)]
    (info,) = tails(SPACE, ids, keys(letter, whole), [length])
    return BlockInfo(info.key, info.parent, info.kind, info.start, info.num_tokens, SIZE // 4)


def find_tail(request_id: RequestId, *found: BlockInfo, num_blocks: int = 2) -> Find:
    ends = sorted(((info.end, info.key) for info in found), reverse=True)
    return Find(request_id, keys("x", num_blocks), tuple(ends), num_blocks * BLOCK + BLOCK - 1)


def cache(has_ssd: bool = False) -> Residency:
    state = Residency(Budget(1000 * SIZE, has_ssd))
    after(state, Tick(LATE))
    return state


@given(st.lists(st.integers(0, 3), max_size=600), st.lists(st.integers(0, 700), max_size=5))
def test_a_tail_s_key_says_which_tokens_end_where(raw: list[int], lengths: list[int]) -> None:
    ids = [TokenId(i) for i in raw]
    found = tails(SPACE, ids, chain(SPACE, ids), lengths)
    usable = [n for n in lengths if n <= len(ids) and n % BLOCK]
    assert [info.end for info in found] == usable
    for info in found:
        assert 0 < info.num_tokens < BLOCK and info.start == info.end // BLOCK * BLOCK
        alone = ids[: info.end]
        assert tails(SPACE, alone, chain(SPACE, alone), [info.end]) == [info]
        for place in {0, info.end - 1}:
            other = list(alone)
            other[place] = TokenId(9)
            (changed,) = tails(SPACE, other, chain(SPACE, other), [info.end])
            assert changed.key != info.key
        elsewhere = Namespace("11" * 32)
        (foreign,) = tails(elsewhere, alone, chain(elsewhere, alone), [info.end])
        assert foreign.key != info.key


def test_a_tail_is_lent_after_its_blocks() -> None:
    state, end = cache(), tail("x", 2 * BLOCK + 100)
    after(state, Publish(A, (*infos("x", 2), end)))
    lent = after(state, find_tail(B, end))
    assert lent == [PrefixLent(B, (*keys("x", 2), end.key), 2 * BLOCK + 100)]


def test_blocks_that_reach_further_than_a_tail_are_lent() -> None:
    state, end = cache(), tail("x", BLOCK + 100)
    after(state, Publish(A, (*infos("x", 2), end)))
    assert after(state, find_tail(B, end)) == [PrefixLent(B, keys("x", 2), 2 * BLOCK)]


def test_a_tail_whose_blocks_left_is_not_lent() -> None:
    state, end = cache(), tail("x", 2 * BLOCK + 100)
    after(state, Publish(A, (*infos("x", 2), end)))
    residency.evolve(state, BlocksEvicted((keys("x", 2)[1],), 1))
    assert after(state, find_tail(B, end)) == [PrefixLent(B, keys("x", 1), BLOCK)]


def test_the_tail_that_was_used_longest_ago_makes_room_for_one_too_many() -> None:
    state = cache()
    every = [tail("x", BLOCK + 1 + i) for i in range(MAX_TAILS + 2)]
    after(state, Publish(A, infos("x", 1)))
    for info in every[:MAX_TAILS]:
        assert not any(isinstance(e, BlocksEvicted) for e in after(state, Publish(A, (info,))))
    after(state, find_tail(A, every[0], num_blocks=1))  # it is used, and lent
    gone = decide(state, Publish(A, (every[MAX_TAILS],)))
    assert gone[-1] == BlocksEvicted((every[1].key,), 0)
    after(state, Publish(A, (every[MAX_TAILS],)))
    assert len(state.tails) == MAX_TAILS


def test_a_tail_leaves_when_its_tokens_are_in_a_block_and_nobody_begins_with_it() -> None:
    state, end = cache(), tail("x", BLOCK + 100)
    after(state, Publish(A, (*infos("x", 1), end)), find_tail(B, end, num_blocks=1))
    assert after(state, Overtake((end.key,))) == []
    after(state, Return(B))
    assert decide(state, Overtake((end.key,))) == [BlocksEvicted((end.key,), 0, "overtaken")]


def on_disk(state: Residency, num_blocks: int = 1) -> None:
    after(state, Publish(A, infos("x", num_blocks)), Written(keys("x", num_blocks)))


def test_a_disk_gets_a_tail_when_nobody_goes_on_from_it() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    on_disk(state)
    published = decide(state, Publish(A, (end,)))
    assert not any(isinstance(e, WriteQueued) for e in published)
    after(state, Publish(A, (end,)))
    assert next_due(state) == LATE + SETTLE_SECONDS
    assert not any(isinstance(e, WriteQueued) for e in after(state, Tick(LATE + 9)))
    settled = decide(state, Tick(LATE + SETTLE_SECONDS))
    assert settled[:2] == [TailsSettled((end.key,)), WriteQueued((end.key,))]
    after(state, Tick(LATE + SETTLE_SECONDS))
    assert next_due(state) is None
    assert not decide(state, Settle())


def test_a_tail_that_is_used_is_looked_at_later() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    on_disk(state)
    after(state, Publish(A, (end,)), Tick(LATE + 9), find_tail(B, end, num_blocks=1))
    assert next_due(state) == LATE + 9 + SETTLE_SECONDS


def test_a_disk_does_not_get_a_tail_after_which_the_conversation_went_on() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    on_disk(state)
    after(state, Publish(A, (end,)), Publish(A, infos("x", 2)))
    assert decide(state, Settle()) == [TailsSettled((end.key,))]


def test_a_disk_does_not_get_a_tail_whose_block_it_has_not() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    after(state, Publish(A, (*infos("x", 1), end)))
    after(state, residency.WriteFailed(keys("x", 1), "it is full"))
    assert decide(state, Settle()) == [TailsSettled((end.key,))]


def test_a_tail_that_is_being_written_stays_until_it_is() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    on_disk(state)
    after(state, Publish(A, (end,)), Settle())
    assert decide(state, Overtake((end.key,))) == []
    relieved = decide(state, residency.Relieve(SIZE))
    assert relieved[-1] == BlocksEvicted(keys("x", 1), 0, "pressure"), "what the disk has is first"
    after(state, residency.WriteFailed((end.key,), "it is full"))
    assert decide(state, residency.Relieve(1))[-1] == BlocksEvicted((end.key,), 0, "pressure")
    assert decide(state, Overtake((end.key,))) == [BlocksEvicted((end.key,), 0, "overtaken")]


def test_a_disk_that_would_take_all_before_it_gets_no_tail() -> None:
    state, end = Residency(Budget(1000 * SIZE, True, tails_to_ssd=False)), tail("x", BLOCK + 100)
    on_disk(state)
    after(state, Publish(A, (end,)))
    assert next_due(state) is None and not decide(state, Settle())


def test_a_tail_is_nothing_that_a_disk_is_owed() -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    on_disk(state)
    after(state, Publish(A, (end,)))
    assert decide(state, residency.WriteAgain(10)) == []
    # And it leaves like what the disk has: it holds nobody up.
    gone = decide(state, residency.Relieve(1))
    assert gone[-1] == BlocksEvicted((end.key,), 0, "pressure")


@pytest.mark.parametrize("reaches", [BLOCK + 100, BLOCK])
def test_a_tail_comes_back_from_a_disk_with_its_blocks(reaches: int) -> None:
    state, end = cache(has_ssd=True), tail("x", BLOCK + 100)
    after(state, residency.Opened((*infos("x", 1), end)))
    asked = find_tail(B, *([end] if reaches > BLOCK else []), num_blocks=1)
    started = after(state, asked)[0]
    whole = (*keys("x", 1), end.key) if reaches > BLOCK else keys("x", 1)
    assert started == RestoreStarted(whole)
    after(state, residency.Restored((*infos("x", 1), end) if reaches > BLOCK else infos("x", 1)))
    assert after(state, asked) == [PrefixLent(B, whole, reaches)]


def test_rates_and_worth_of_a_tail_are_of_its_own_tokens() -> None:
    state, end = cache(), tail("x", BLOCK + 100)
    after(state, Publish(A, infos("x", 1), 2.56), Publish(A, (end,), 1.0))
    assert state.blocks[end.key].seconds == pytest.approx(1.0)
    assert find("x", 1).ends == ()
