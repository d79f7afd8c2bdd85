"""How products of few rows are divided: every way covers the product and fits the device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.mlx_compute.few_rows_blocking import (
    MAX_ROWS,
    Blocking,
    blocking,
    columns_a_sum,
)

SHARED_BYTES = 48 << 10  # that a block may have without being asked
FORMS = st.sampled_from([{}, {"gated": True}, {"adds": True}])
ROWS = st.integers(1, MAX_ROWS)


def shared_bytes(way: Blocking) -> int:
    """Return what the kernel declares: buffers of a block's sums, and a factor a row."""
    rows = 8 * way.groups
    a_buffer = rows * (way.height + 4)
    buffers = max(1, min(way.deep, 11264 // a_buffer))
    return 4 * (buffers * a_buffer + rows)


@given(ROWS, st.integers(1, 5000), st.integers(1, 400), FORMS)
def test_a_way_covers_the_product_and_fits_a_block(
    num_rows: int, num_outer: int, num_steps: int, form: dict[str, bool]
) -> None:
    num_outer *= 32
    way = blocking(num_rows, num_outer, 32 * num_steps, **form)
    assert way is not None
    assert num_outer % way.height == 0
    assert num_steps % way.deep == 0
    assert 8 * way.groups >= num_rows
    assert way.threads <= 512
    assert shared_bytes(way) <= SHARED_BYTES
    assert way.ahead % way.inputs_ahead == 0  # so that a step's input has a place of its own
    if form.get("gated"):
        assert way.tiles == 2  # a gate and what it gates
    if form.get("adds"):
        assert way.height <= 32  # a warp sums the squares of a row


@given(ROWS, st.integers(1, 500))
def test_sums_of_squares_fit_into_a_state(num_rows: int, sixteens: int) -> None:
    width = 16 * sixteens
    sums = width // columns_a_sum(num_rows, width)
    assert 4 * sums <= 2 * width  # float32 where there is room for half precision


@pytest.mark.parametrize(
    ("num_rows", "num_outer", "num_inner", "form"),
    [
        (MAX_ROWS + 1, 4096, 1024, {}),
        (1, 4096, 1000, {}),
        (1, 4090, 1024, {}),
        (1, 4096 + 16, 1024, {"gated": True}),
    ],
)
def test_what_the_kernel_cannot_divide_has_no_way(
    num_rows: int, num_outer: int, num_inner: int, form: dict[str, bool]
) -> None:
    assert blocking(num_rows, num_outer, num_inner, **form) is None
