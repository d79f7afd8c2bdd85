"""Residency where a state is blocks and a boundary: neither is of use without the other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, boundary
from mlxbun.domain.residency import (
    Budget,
    CloseSession,
    Find,
    Hold,
    Opened,
    Pruned,
    Publish,
    Relieve,
    Residency,
    Restored,
    RestoreFailed,
    Return,
    SessionId,
    Tick,
    Written,
    evolve,
)
from mlxbun.domain.sampling import RequestId, TokenId
from residency_driver import (
    SIZE,
    SPACE,
    A,
    B,
    after,
    budgets,
    cache,
    check_books,
    counts,
    evicted,
    find,
    infos,
    keys,
    requests,
    sessions,
    steps,
)


def state_of(letter: str, num_tokens: int, num_bytes: int = 30) -> tuple[BlockInfo, ...]:
    """Return a state that is kept in blocks and a boundary."""
    ids = [TokenId(ord(letter))] * num_tokens
    blocks = infos(letter, num_tokens // BLOCK)
    start = len(blocks) * BLOCK
    parent = blocks[-1].key if blocks else None
    key = boundary(SPACE, ids, after_blocks=True)
    return (*blocks, BlockInfo(key, parent, "boundary", start, num_tokens - start, num_bytes))


def find_state(letter: str, num_tokens: int, *lengths: int, request_id: RequestId = A) -> Find:
    """Ask for a prompt of so many tokens, some of whose `lengths` may be kept; longest first."""
    of = [(length, state_of(letter, length)[-1].key) for length in lengths]
    return Find(
        request_id, keys(letter, num_tokens // BLOCK), tuple(of), num_tokens - 1, alone=False
    )


def find_state_of(of: tuple[BlockInfo, ...], request_id: RequestId) -> Find:
    *blocks, last = of
    asked = ((last.end, last.key),)
    return Find(request_id, names(tuple(blocks)), asked, last.end, alone=False)


def names(state: tuple[BlockInfo, ...]) -> tuple[BlockKey, ...]:
    return tuple(block.key for block in state)


def test_a_boundary_is_lent_after_the_blocks_before_it() -> None:
    state, kept = cache(), state_of("x", 700)
    after(state, Publish(A, kept))
    assert state.end_lengths == {700: 1}
    asked = find_state("x", 900, 700)
    assert after(state, asked) == [residency.PrefixLent(A, names(kept), 700)]
    assert after(state, find("x", 3, B))[0] == residency.PrefixLent(B, keys("x", 2), 2 * BLOCK)
    alone = msgspec.structs.replace(asked, ends=())
    assert after(state, alone) == [residency.PrefixMissed(A)], "blocks alone are of no use"


def test_the_longest_boundary_whose_blocks_are_all_there_is_lent() -> None:
    state, short, long = cache(), state_of("x", 300), state_of("x", 900)
    after(state, Publish(A, short), Publish(A, long))
    asked = find_state("x", 1000, 900, 300)
    assert after(state, asked) == [residency.PrefixLent(A, names(long), 900)]
    after(state, Return(A))
    evolve(state, residency.BlocksEvicted((long[2].key,), 1))
    assert not residency.all_in_ram(state, long[-1].key)
    assert residency.all_in_ram(state, short[-1].key)
    assert after(state, asked) == [residency.PrefixLent(A, names(short), 300)]


def test_what_ram_lacks_of_a_state_is_restored_blocks_first() -> None:
    state, kept = cache(has_ssd=True), state_of("x", 700)
    after(state, Publish(B, kept[:1]), Opened(kept))
    asked = find_state("x", 900, 700)
    assert after(state, asked) == [
        residency.RestoreStarted(names(kept[1:])),
        residency.PrefixAwaited(A, kept[-1].key, "restoring"),
    ]
    after(state, Restored(kept[1:]))
    assert after(state, asked) == [residency.PrefixLent(A, names(kept), 700)]


def test_a_state_that_ram_cannot_hold_at_once_is_not_brought_there() -> None:
    state = cache(2, has_ssd=True)
    after(state, Opened((*state_of("x", 700), *state_of("x", 300))))
    events = after(state, find_state("x", 900, 700, 300))
    assert events[0] == residency.RestoreStarted(names(state_of("x", 300)))


def test_a_lost_block_takes_along_the_boundaries_after_it() -> None:
    state, kept = cache(has_ssd=True), state_of("x", 700)
    after(state, Opened((*kept, state_of("x", 300)[-1])))
    after(state, RestoreFailed((kept[1].key,), "bits flipped"))
    assert set(state.blocks) == set(names(state_of("x", 300)))


@pytest.mark.parametrize("retention", ["lru", "cost-size"])
def test_of_a_state_the_boundary_leaves_first(retention: Any) -> None:
    state, kept = Residency(Budget(3 * SIZE, retention=retention)), state_of("x", 700)
    after(state, Publish(A, kept, 1.0))
    assert evicted(after(state, Publish(A, infos("y", 1), 9.0))) == [kept[-1].key]
    assert evicted(after(state, Publish(A, infos("z", 1), 9.0))) == [kept[1].key]


def test_a_beginning_that_is_lent_stays_as_long_as_what_comes_after_it() -> None:
    """What comes after it may be worth more than what was lent."""
    state = Residency(Budget(100 * SIZE, retention="cost-size"))
    long, short = state_of("x", 700), state_of("x", 300)
    after(state, Publish(A, long, 9.0), Publish(A, short, 0.1))
    after(state, find_state("x", 900, 300), Return(A))
    gone = evicted(after(state, Relieve(40)))
    assert gone == [short[-1].key, long[-1].key]


def test_a_boundary_is_worth_what_all_that_it_saves_took() -> None:
    state, first, second = Residency(Budget(100 * SIZE)), state_of("x", 600), state_of("x", 512)
    after(state, Publish(A, first, 6.0))
    assert state.blocks[first[0].key].seconds == pytest.approx(2.56)
    assert state.blocks[first[-1].key].seconds == pytest.approx(6.0)
    after(state, Publish(A, second, 0.0))  # nothing is new but what cannot be cut
    assert state.blocks[second[-1].key].seconds == pytest.approx(5.12)
    assert state.prefill_tokens_per_second == pytest.approx(100.0)


LENGTHS = (40, 300, 2 * BLOCK, 700, 710)  # few, so that some are asked for again
states = st.builds(state_of, st.sampled_from("xxy"), st.sampled_from(LENGTHS))


class Sound(RuleBasedStateMachine):
    """A cache whose disk keeps its promises: parents are written first, and pruned last."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    @initialize(budget=budgets)
    def begin(self, budget: Budget) -> None:
        self.state = Residency(budget)

    @rule(request_id=requests, of=states, seconds=st.floats(0.0, 9.0))
    def publish(self, request_id: RequestId, of: tuple[BlockInfo, ...], seconds: float) -> None:
        """What is on the disk alone is not brought back for it."""
        new = next((i for i, block in enumerate(of) if not self.is_kept(block.key)), len(of) - 1)
        after(self.state, Publish(request_id, of[new:], seconds))

    @rule(count=counts)
    def write(self, count: int) -> None:
        waiting = [block for block in self.state.blocks.values() if block.writing]
        for block in sorted(waiting, key=lambda block: block.info.start)[:count]:
            parent = block.info.parent
            if parent is None or self.state.blocks[parent].on_ssd:
                after(self.state, Written((block.info.key,)))

    @rule(of=states)
    def prune(self, of: tuple[BlockInfo, ...]) -> None:
        parents = {block.info.parent for block in self.state.blocks.values()}
        there = [self.state.blocks[key] for key in names(of) if key in self.state.blocks]
        last = [b.info.key for b in there if b.on_ssd and b.info.key not in parents]
        after(self.state, Pruned(tuple(last)))

    @rule(request_id=requests, of=states, begins=st.booleans())
    def find(self, request_id: RequestId, of: tuple[BlockInfo, ...], begins: bool) -> None:
        asked = find_state_of(of, request_id)
        whole = all(self.is_kept(key) for key in names(of))
        events = after(self.state, asked)
        for event in events:
            if isinstance(event, residency.RestoreStarted):
                after(self.state, Restored(tuple(self.state.blocks[k].info for k in event.keys)))
            if isinstance(event, residency.PrefixLent):
                assert (event.keys, event.num_tokens) == (names(of), of[-1].end)
                assert whole
        if not whole:
            assert events == [residency.PrefixMissed(request_id)]
        if begins:
            after(self.state, Return(request_id))

    @rule(request_id=requests)
    def give_back(self, request_id: RequestId) -> None:
        after(self.state, Return(request_id))

    @rule(of=states, session=sessions)
    def hold(self, of: tuple[BlockInfo, ...], session: SessionId) -> None:
        after(self.state, Hold(session, names(of), self.now))

    @rule(session=sessions)
    def close(self, session: SessionId) -> None:
        after(self.state, CloseSession(session))

    @rule(seconds=steps)
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        after(self.state, Tick(self.now))

    @rule(count=counts)
    def relieve(self, count: int) -> None:
        after(self.state, Relieve(count * SIZE))

    def is_kept(self, key: BlockKey) -> bool:
        block = self.state.blocks.get(key)
        return block is not None and (block.in_ram or block.on_ssd)

    @invariant()
    def nothing_stays_without_what_it_needs(self) -> None:
        state = getattr(self, "state", None)
        if state is None:
            return
        for block in state.blocks.values():
            parent = block.info.parent
            if self.is_kept(block.info.key) and parent is not None:
                assert self.is_kept(parent)
        check_books(state, self.now)


TestSound = Sound.TestCase
TestSound.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
