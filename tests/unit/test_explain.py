"""Explanations are folds of events, and hold no text and no token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application.explain import KEPT_REQUESTS, Explanation, Explanations
from mlxbun.domain import residency, sampling
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey
from mlxbun.domain.journal import Event, EventBatch
from mlxbun.domain.residency import (
    BlocksEvicted,
    BlocksForgotten,
    BlocksPublished,
    BlocksRestored,
    PrefixAwaited,
    PrefixComputing,
    PrefixLent,
    PrefixMissed,
)
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.scheduling import (
    PrefixReused,
    RequestAdmitted,
    RequestCancelled,
    RequestQueued,
    StepCommitted,
)

ROW = RequestId("chatcmpl-a-0")
KEYS = tuple(BlockKey(f"{number:064x}") for number in range(8))
LENGTH = 4 * BLOCK + 10  # of a prompt: four blocks, and what is always computed


def block(number: int) -> BlockInfo:
    parent = KEYS[number - 1] if number else None
    return BlockInfo(KEYS[number], parent, "block", number * BLOCK, BLOCK, 1000)


def told(*events: Event | Sequence[Event]) -> Explanations:
    """Return what is made of `events`, each a batch of its own, one second after another."""
    explanations, sequences = Explanations(), count(1)
    for event in events:
        sequence = next(sequences)
        batch = (event,) if not isinstance(event, Sequence) else tuple(event)
        explanations.apply(EventBatch(sequence, batch), float(sequence))
    return explanations


def explained(*events: Event | Sequence[Event]) -> Explanation:
    found = told(*events).find("chatcmpl-a")
    assert found is not None and len(found) == 1
    return found[0]


def lent(num_blocks: int) -> list[Event]:
    """What is said of a row that begins with blocks and runs."""
    num_tokens = num_blocks * BLOCK
    return [
        PrefixLent(ROW, KEYS[:num_blocks], num_tokens),
        PrefixReused(ROW, num_tokens),
        RequestAdmitted(ROW),
    ]


QUEUED = RequestQueued(ROW, LENGTH, 8)
MISSED: list[Event] = [PrefixMissed(ROW), PrefixComputing(ROW, KEYS[:4]), RequestAdmitted(ROW)]


def test_a_prompt_that_was_there_is_a_hit_and_did_not_diverge() -> None:
    found = explained(QUEUED, lent(4))
    assert (found.reason, found.num_ram_tokens, found.num_ssd_tokens) == ("hit", 4 * BLOCK, 0)
    assert (found.num_computed_tokens, found.diverged_at) == (10, None)


def test_a_prompt_whose_beginning_was_there_is_partial_and_says_where_it_diverged() -> None:
    found = explained(QUEUED, lent(3))
    assert (found.reason, found.diverged_at) == ("partial", 3 * BLOCK)
    assert found.num_computed_tokens == BLOCK + 10


def test_a_prompt_of_which_nothing_was_there_is_a_miss() -> None:
    found = explained(QUEUED, MISSED)
    assert (found.reason, found.diverged_at, found.num_computed_tokens) == ("miss", 0, LENGTH)
    assert not found.was_evicted and found.waited_seconds == {}


@pytest.mark.parametrize(("length", "reason"), [(BLOCK, "too_short"), (BLOCK + 1, "miss")])
def test_a_prompt_without_a_complete_block_is_too_short(length: int, reason: str) -> None:
    found = explained(RequestQueued(ROW, length, 8), [PrefixMissed(ROW), RequestAdmitted(ROW)])
    assert found.reason == reason


def test_without_any_word_of_the_cache_it_is_off() -> None:
    assert explained(QUEUED, RequestAdmitted(ROW)).reason == "off"


def test_who_waits_or_left_before_its_turn_was_not_admitted() -> None:
    assert explained(QUEUED).reason == "not_admitted"
    waits = PrefixAwaited(ROW, KEYS[0], "computing")
    left = explained(QUEUED, waits, RequestCancelled(ROW))
    assert left.reason == "not_admitted" and left.waited_seconds == {"computing": 1.0}


def test_what_was_read_from_the_disk_for_it_is_told_apart() -> None:
    before = BlocksRestored((block(0),))  # for somebody else, long ago
    waits = PrefixAwaited(ROW, KEYS[3], "restoring")
    found = explained(before, QUEUED, waits, BlocksRestored((block(1), block(2))), lent(4))
    assert (found.num_ram_tokens, found.num_ssd_tokens) == (2 * BLOCK, 2 * BLOCK)
    assert found.waited_seconds == {"restoring": 2.0}


def test_waits_add_up_by_what_was_waited_for() -> None:
    computing = PrefixAwaited(ROW, KEYS[0], "computing")
    restoring = PrefixAwaited(ROW, KEYS[1], "restoring")
    found = explained(
        QUEUED, computing, computing, restoring, MISSED, StepCommitted(1, 1, 0, 0, 9, 0)
    )
    assert found.waited_seconds == {"computing": 2.0, "restoring": 1.0}


def test_what_was_there_and_left_is_told_from_what_never_was() -> None:
    published = BlocksPublished((block(0), block(1)), 1.0)
    evicted = BlocksEvicted((KEYS[0],), 1)
    assert explained(published, evicted, QUEUED, MISSED).was_evicted
    assert explained(BlocksForgotten((KEYS[0],), "cap"), QUEUED, MISSED).was_evicted
    assert not explained(published, evicted, published, QUEUED, MISSED).was_evicted
    assert not explained(evicted, QUEUED, PrefixComputing(ROW, KEYS[:4]), lent(4)).was_evicted


def test_what_was_saved_is_estimated_by_the_measured_rate() -> None:
    assert explained(QUEUED, lent(4)).saved_seconds is None
    slow, fast = StepCommitted(1, 0, 0, 100, 1.0, 1.0), StepCommitted(2, 0, 0, 412, 1.0, 1.0)
    assert explained(slow, fast, QUEUED, lent(4)).saved_seconds == 4 * BLOCK / 256
    assert explained(slow, QUEUED, MISSED).saved_seconds == 0.0


def test_short_steps_say_how_fast_prompts_are_read_only_where_nothing_else_does() -> None:
    short, long = StepCommitted(1, 0, 0, 4, 1.0, 1.0), StepCommitted(2, 0, 0, 256, 1.0, 1.0)
    assert explained(short, QUEUED, lent(4)).saved_seconds == 4 * BLOCK / 4
    assert explained(short, long, short, QUEUED, lent(4)).saved_seconds == 4 * BLOCK / 256


def test_what_a_row_computed_and_the_cache_took_in_is_counted_for_it() -> None:
    published = BlocksPublished((block(2), block(3)), 1.0)
    computing = PrefixComputing(ROW, KEYS[2:4])
    found = explained(QUEUED, [*lent(2)[:2], computing], RequestAdmitted(ROW), published)
    assert found.num_published_tokens == 2 * BLOCK
    assert explained(QUEUED, lent(2), published).num_published_tokens == 0
    states = [
        BlockInfo(key, None, "boundary", 0, n, 9) for key, n in zip(KEYS, (300, 700), strict=False)
    ]
    both: list[Event] = [PrefixComputing(ROW, KEYS[:2]), BlocksPublished(tuple(states), 1.0)]
    assert explained(QUEUED, both).num_published_tokens == 700, "they are of the same tokens"
    ended = residency.PrefixUserEnded(ROW)
    assert explained(QUEUED, computing, ended, published).num_published_tokens == 0


def test_each_row_of_a_request_is_explained() -> None:
    other = RequestId("chatcmpl-a-1")
    queued = RequestQueued(other, 20, 8)
    found = told([QUEUED, queued], lent(4), [PrefixMissed(other), RequestAdmitted(other)])
    rows = found.find("chatcmpl-a")
    assert rows is not None and [row.reason for row in rows] == ["hit", "too_short"]


def test_the_last_requests_are_known_and_no_others() -> None:
    names = [f"chatcmpl-{number}" for number in range(KEPT_REQUESTS + 2)]
    found = told(*(RequestQueued(RequestId(f"{name}-0"), 10, 1) for name in names))
    assert [name for name in names if found.find(name) is None] == names[:2]
    assert found.find("chatcmpl") is None and found.find("") is None


ROWS = [RequestId(f"r{number}-0") for number in range(3)]
rows, keys = st.sampled_from(ROWS), st.lists(st.sampled_from(KEYS), unique=True).map(tuple)
infos = st.lists(st.sampled_from(range(8)), unique=True).map(lambda found: tuple(map(block, found)))
some = st.integers(1, LENGTH - 1)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(RequestQueued, rows, st.just(LENGTH), st.just(8)),
    st.builds(RequestAdmitted, rows),
    st.builds(RequestCancelled, rows),
    st.builds(PrefixReused, rows, some),
    st.builds(PrefixLent, rows, keys, some),
    st.builds(PrefixMissed, rows),
    st.builds(PrefixAwaited, rows, st.sampled_from(KEYS), st.just("restoring")),
    st.builds(PrefixComputing, rows, st.just(KEYS[:1])),
    st.builds(BlocksRestored, infos),
    st.builds(BlocksPublished, infos, st.just(1.0)),
    st.builds(BlocksEvicted, keys, st.just(0)),
    st.builds(residency.BlocksWritten, keys),
    st.builds(sampling.TokensCommitted, st.just(1), st.just((ROW,)), st.just((TokenId(1),))),
)


@given(st.lists(events, max_size=60))
def test_whatever_happens_the_parts_sum_to_the_prompt_and_nothing_is_negative(
    script: list[Event],
) -> None:
    made = told(*script)
    for row in ROWS:
        for found in made.find(row.rpartition("-")[0]) or ():
            parts = (found.num_ram_tokens, found.num_ssd_tokens, found.num_computed_tokens)
            assert sum(parts) == LENGTH and min(parts) >= 0
            assert min(found.waited_seconds.values(), default=0.0) >= 0.0
