"""Which rows share a group of slots: rules over counts, whatever the model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.mlx_compute.row_states import bucket
from mlxbun.adapters.mlx_compute.slot_plan import (
    REGROUP,
    SLACK,
    Prices,
    Shape,
    columns_for,
    homes,
    joined,
    length_class,
    opened,
    runs,
    tidied,
    worth_regrouping,
)

LLAMA_8B = Prices(cell=2 * 8 * 128 * 2, group=1 << 20)  # half precision
TINY = Prices(cell=2 * 2 * 16 * 4, group=1 << 20)
lengths_of_rows = st.lists(st.integers(0, 20_000), min_size=1, max_size=40)
prices = st.builds(
    Prices, st.integers(1, 1 << 14), st.integers(0, 1 << 24), st.sampled_from((16, 64, 256))
)


@given(st.integers(1, 200_000))
def test_capacity_has_an_eighth_of_slack_at_most(needed: int) -> None:
    assert needed <= columns_for(needed) <= max(needed + 63, needed * 9 // 8)


@given(st.integers(1, 200_000), st.sampled_from((16, 256)))
def test_a_class_is_a_power_of_two_that_is_less_than_twice_the_need(
    needed: int, first: int
) -> None:
    size = length_class(needed, first)
    assert size & (size - 1) == 0
    assert needed <= size < max(2 * needed, first + 1)


@given(lengths_of_rows, prices)
def test_every_row_is_in_one_group_with_room_for_its_next_token(
    lengths: list[int], prices: Prices
) -> None:
    groups = runs(lengths, prices)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        shape = opened(len(group), max(lengths[i] for i in group))
        assert shape.slots >= len(group)
        assert all(lengths[i] < shape.columns for i in group)


@given(lengths_of_rows, prices)
def test_groups_of_rows_that_just_came_are_not_worth_making_anew(
    lengths: list[int], prices: Prices
) -> None:
    placed, shapes = homes([], lengths, prices)
    assert all(home is None for home, _ in placed)
    assert not worth_regrouping(shapes, lengths, prices)


@given(lengths_of_rows, lengths_of_rows, prices)
def test_new_rows_never_cost_much_more_than_in_groups_of_their_own(
    there: list[int], new: list[int], prices: Prices
) -> None:
    _, before = homes([], there, prices)
    placed, after = homes(before, new, prices)
    _, apart = homes([], new, prices)
    assert sorted(i for _, run in placed for i in run) == list(range(len(new)))
    assert prices.of(after) <= SLACK ** len(placed) * (prices.of(before) + prices.of(apart))
    assert sum(shape.rows for shape in after) == len(there) + len(new)


def test_a_long_row_does_not_make_short_rows_long() -> None:
    lengths = [64] * 3 + [8192] + [64] * 4
    for prices in (TINY, LLAMA_8B):
        assert runs(lengths, prices) == [[0, 1, 2, 4, 5, 6, 7], [3]]


def test_rows_of_nearly_equal_length_are_one_group() -> None:
    assert len(runs([1000, 1040, 1100, 900], LLAMA_8B)) == 1
    assert len(runs([2000, 2100, 2200, 2300], LLAMA_8B)) == 1


def test_a_tiny_model_has_one_group_where_padding_is_cheaper_than_operations() -> None:
    assert len(runs([20, 700, 40, 300], TINY)) == 1
    assert len(runs([20, 700, 40, 300], LLAMA_8B)) > 1


def test_a_row_that_finds_all_slots_taken_does_not_copy_a_large_group() -> None:
    full = opened(32, 2048)
    placed, shapes = homes([full], [2048], LLAMA_8B)
    assert placed == [(None, [0])]
    assert shapes == [full, opened(1, 2048)]


def test_slots_do_not_stay_empty_where_another_group_costs_less() -> None:
    assert [len(run) for run in runs([2048] * 33, LLAMA_8B)] == [1, 32]
    assert [len(run) for run in runs([2048] * 31, LLAMA_8B)] == [31]
    assert [len(run) for run in runs([20] * 33, TINY)] == [33]


def test_a_row_takes_an_empty_slot_where_there_is_one() -> None:
    group = Shape(rows=31, slots=32, longest=2048, column=2100, columns=2176)
    placed, shapes = homes([group], [2048], LLAMA_8B)
    assert placed == [(0, [0])]
    assert shapes == [joined(group, 1, 2048)]
    assert shapes[0].columns == group.columns


@given(st.integers(1, 40), st.integers(0, 40), st.integers(0, 9000), st.integers(0, 9000))
def test_a_tidied_group_still_holds_its_rows(
    rows: int, left: int, longest: int, holes: int
) -> None:
    column = longest + holes
    shape = Shape(rows, bucket(rows + left), longest, column, columns_for(column + 1))
    tidy = tidied(shape)
    assert rows <= tidy.slots <= shape.slots
    assert tidy.slots < 2 * bucket(rows)
    assert longest <= tidy.column < tidy.columns <= shape.columns
    assert tidied(tidy) == tidy


def test_regrouping_waits_until_it_pays_for_the_copy() -> None:
    lengths = [64] * 7 + [8192]
    _, good = homes([], lengths, LLAMA_8B)
    assert not worth_regrouping(good, lengths, LLAMA_8B)
    assert worth_regrouping([opened(8, 8192)], lengths, LLAMA_8B)
    assert LLAMA_8B.of([opened(8, 8192)]) > REGROUP * LLAMA_8B.of(good)
