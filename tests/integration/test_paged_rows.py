"""Rows in pages: how much they hold, what a step traces, and that pages find their way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import paged_attention as numpy_kernels
from mlxbun.adapters.mlx_compute import paged_rows
from mlxbun.adapters.mlx_compute.paged_attention import PAGE
from mlxbun.adapters.mlx_compute.paged_rows import PagedRows, pool_size, slots_for
from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel
from mlxbun.domain.sampling import RequestId


@pytest.fixture
def eager() -> Iterator[None]:
    """The double of the kernels computes at once, which a traced function cannot."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@given(st.integers(1, 100_000))
def test_a_pool_has_a_quarter_of_slack_at_most(num_pages: int) -> None:
    size = pool_size(num_pages)
    assert num_pages <= size <= max(32, 1.25 * num_pages)


@given(st.integers(1, 100_000))
def test_a_pool_of_its_own_size_stays_as_it_is(num_pages: int) -> None:
    assert pool_size(pool_size(num_pages)) == pool_size(num_pages)


@given(st.integers(1, 2000))
def test_slots_are_a_power_of_two(num_rows: int) -> None:
    slots = slots_for(num_rows)
    assert num_rows <= slots < 2 * num_rows + 1
    assert slots & (slots - 1) == 0


def start(states: PagedRows, lengths: list[int]) -> list[RequestId]:
    rows = [RequestId(f"row-{i}") for i in range(len(lengths))]
    for row, length in zip(rows, lengths, strict=True):
        states.open(row)
        mx.eval(states.extend(row, mx.array([[7] * (length - 1)])))
    mx.eval(states.forward((), None, rows, mx.array([7] * len(rows))).logits)
    return rows


@pytest.mark.usefixtures("eager")
def test_one_long_row_beside_seven_short_ones_holds_a_fifth_more_than_its_tokens(
    load: Callable[[str], Any],
) -> None:
    model = load("tiny-llama")
    states = PagedRows(model, numpy_kernels)
    lengths = [8192] + [64] * 7
    start(states, lengths)
    _, layers = model.layers[0], len(model.layers)
    heads, dim = model.args.num_key_value_heads, model.args.head_dim
    a_token = 2 * layers * heads * dim * 4
    assert states.num_bytes() <= 1.2 * sum(lengths) * a_token


@pytest.mark.usefixtures("eager")
def test_pages_of_rows_that_left_serve_the_next(load: Callable[[str], Any]) -> None:
    states = PagedRows(load("tiny-llama"), numpy_kernels)
    rows = start(states, [3 * PAGE, 3 * PAGE])
    held = states.num_bytes()
    for _ in range(8):
        new = RequestId("next")
        states.open(new)
        mx.eval(states.extend(new, mx.array([[5] * (3 * PAGE - 1)])))
        fed = mx.array([7] * len(states.batch))
        mx.eval(states.forward((rows[0],), fed, (new,), mx.array([7])).logits)
        mx.eval(states.forward((rows[0],), mx.array([7] * len(states.batch)), (), None).logits)
    assert states.num_bytes() == held


@pytest.mark.usefixtures("eager")
def test_what_a_long_row_had_is_given_back_and_short_ones_go_on(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    states, alone = PagedRows(model, numpy_kernels), PagedRows(model, numpy_kernels)
    short, others = [100, 30], start(alone, [100, 30])
    rows = start(states, [100, 8192, 30])
    held = states.num_bytes()
    stay = [rows[0], rows[2]]
    for fed in range(5, 40):  # over the end of a page
        got = states.forward(stay, mx.array([fed] * len(states.batch)), (), None)
        want = alone.forward(others, mx.array([fed] * len(alone.batch)), (), None)
        slots = [states.batch.index(row) for row in stay]
        np.testing.assert_allclose(got.logits[mx.array(slots)], want.logits[:2], atol=1e-5)
    assert states.num_bytes() == alone.num_bytes() < held / 3
    assert [int(states.caches(row)[0].offset) for row in stay] == [n + 35 for n in short]


@pytest.mark.usefixtures("eager")
def test_nothing_is_held_when_everybody_left(load: Callable[[str], Any]) -> None:
    states = PagedRows(load("tiny-llama"), numpy_kernels)
    start(states, [10, 100])
    states.keep_none()
    assert states.num_bytes() == 0


def test_a_model_with_other_caches_is_refused_by_name(load: Callable[[str], Any]) -> None:
    with pytest.raises(UnsuitableModel, match="RotatingKVCache"):
        PagedRows(load("tiny-gemma3"), numpy_kernels)


def test_a_model_in_a_precision_without_a_kernel_is_refused(load: Callable[[str], Any]) -> None:
    class NoKernels:
        attend = staticmethod(numpy_kernels.attend)
        fill = staticmethod(numpy_kernels.fill)

        @staticmethod
        def unsupported(dim: int, dtype: mx.Dtype) -> str | None:
            return f"no heads of {dim}"

    with pytest.raises(UnsuitableModel, match="no heads of"):
        PagedRows(load("tiny-llama"), NoKernels())


@pytest.mark.usefixtures("eager")
def test_graphs_of_shapes_that_were_are_let_go(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = list[object]()
    compile = mx.compile

    def counted(function: Any) -> Any:
        compiled.append(function)
        return compile(function)

    monkeypatch.setattr(paged_rows, "MOST_TRACES", 3)
    monkeypatch.setattr(mx, "compile", counted)
    states = PagedRows(load("tiny-llama"), numpy_kernels)
    rows = start(states, [5, 6])
    for _ in range(9):  # each step counts as a trace, since none is compiled here
        mx.eval(states.forward(rows, mx.array([7] * 2), (), None).logits)
    assert len(compiled) == 1, "what runs in one shape is kept"
    states.open(row := RequestId("another"))
    mx.eval(states.extend(row, mx.array([[7] * 4])))
    mx.eval(states.forward(rows, mx.array([7] * 2), [row], mx.array([7])).logits)
    assert len(compiled) == 2
