"""Which prompts share a forward: each is read once, and what padding may cost is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.mlx_compute.prompt_groups import MAX_TOKENS, group_prompts

LONGEST = 512
chunks_of_a_plan = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 64]), st.integers(1, 700)), max_size=40
)


@given(chunks_of_a_plan, st.integers(0, LONGEST))
def test_every_chunk_is_in_exactly_one_forward(chunks: list[tuple[int, int]], longest: int) -> None:
    groups = group_prompts(chunks, longest)
    assert sorted(place for group in groups for place in group) == list(range(len(chunks)))


@given(chunks_of_a_plan)
def test_forwards_and_their_prompts_are_in_the_order_of_arrival(
    chunks: list[tuple[int, int]],
) -> None:
    groups = group_prompts(chunks, LONGEST)
    assert groups == sorted(groups)
    assert all(group == sorted(group) for group in groups)


@given(chunks_of_a_plan, st.integers(0, LONGEST))
def test_only_fresh_and_short_chunks_share(chunks: list[tuple[int, int]], longest: int) -> None:
    for group in group_prompts(chunks, longest):
        if len(group) > 1:
            assert all(chunks[place][0] == 0 and chunks[place][1] <= longest for place in group)


@given(chunks_of_a_plan)
def test_a_shared_forward_is_no_larger_than_a_chunk_and_a_quarter_of_it_is_padding_at_most(
    chunks: list[tuple[int, int]],
) -> None:
    for group in group_prompts(chunks, LONGEST):
        lengths = [chunks[place][1] for place in group]
        computed = len(group) * max(lengths)
        assert computed == lengths[0] or computed <= MAX_TOKENS
        assert computed <= 1.25 * sum(lengths)


@given(st.integers(2, 100), st.integers(1, LONGEST))
def test_equal_prompts_need_no_more_forwards_than_their_tokens_do(count: int, length: int) -> None:
    groups = group_prompts([(0, length)] * count, LONGEST)
    assert len(groups) == -(-count // (MAX_TOKENS // length))


def test_nobody_shares_where_no_length_is_short() -> None:
    assert group_prompts([(0, 5), (0, 5), (0, 7)], 0) == [[0], [1], [2]]


def test_a_long_prompt_among_short_ones_is_read_alone() -> None:
    assert group_prompts([(0, 16), (0, 500), (0, 14), (32, 16)], LONGEST) == [[0, 2], [1], [3]]
