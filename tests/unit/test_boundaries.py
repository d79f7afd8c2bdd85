"""Where state that cannot be cut is copied."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.boundaries import APART, MAX_BOUNDARIES, chosen, stops

counts = st.lists(st.integers(0, 4000), max_size=12)


def test_the_most_useful_are_kept() -> None:
    assert chosen([3000, 300, 2000, 1000, 1500, 2500]) == (300, 1000, 2000, 3000)


def test_of_near_ones_the_first_in_the_prompt_is_kept_and_counts_for_all() -> None:
    assert chosen([3000, 300, 2900, 2000, 310, 1000, 1500]) == (300, 1000, 2000, 2900)
    assert chosen([490, 460]) == (460,), "the next turn computes 30 tokens again, and no more"
    assert chosen([700, 500, 300]) == (300, 700), "each is near to one that is kept"
    assert chosen([200, 100]) == (), "the beginning is near"


def test_a_prompt_is_kept_at_its_boundaries_and_at_its_end() -> None:
    assert stops((300, 900), 0, 1200) == (300, 900, 1200)
    assert stops((300, 900), 0, 905) == (300, 900), "the end is near enough"
    assert stops((), 0, 905) == (905,)
    assert stops((), 0, APART - 1) == ()


def test_what_is_near_to_what_a_prompt_began_with_is_not_kept_again() -> None:
    assert stops((300, 900), 280, 905) == (900,)
    assert stops((300, 900), 890, 905) == ()
    assert stops((300, 900), 890, 1300) == (1300,)


@given(counts)
def test_what_is_chosen_is_apart_ascending_and_little(candidates: list[int]) -> None:
    taken = chosen(candidates)
    assert set(taken) <= set(candidates) and len(taken) <= MAX_BOUNDARIES
    pairs = zip((0, *taken), taken, strict=False)
    assert all(after - before >= APART for before, after in pairs)
    if candidates:
        assert candidates[0] - max(t for t in (0, *taken) if t <= candidates[0]) < APART


@given(counts, st.integers(0, 4000), st.integers(0, 4000))
def test_stops_are_apart_and_within_what_is_read(
    candidates: list[int], begun: int, end: int
) -> None:
    found = stops(chosen(candidates), begun, end)
    assert all(b - a >= APART for a, b in zip((begun, *found), found, strict=False))
    assert all(begun < stop <= end for stop in found)
    for count in chosen(candidates):
        if begun < count < end:  # at most APART tokens are computed again up to it
            assert count - max(s for s in (begun, *found) if s <= count) < APART or count in found
