"""What a CPU computes its own way, against MLX's operations: exp, rotations, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.positional_encoding import RoPE

from mlxbun.adapters.mlx_compute import prompt_attention, slot_attention
from mlxbun.adapters.mlx_compute.one_row_products import cut_heads, pieces_of
from mlxbun.adapters.mlx_compute.quick_exp import bounded_exp, quick_exp
from mlxbun.adapters.mlx_compute.shared_rope import RotaryTable, SharedRope


@pytest.mark.parametrize("quick", [quick_exp, bounded_exp])
def test_exp_is_within_three_ten_millionths(quick: Callable[[mx.array], mx.array]) -> None:
    x = np.linspace(-86.9, 0, 200_001).astype(np.float32)
    got = np.array(mx.compile(quick)(mx.array(x))).astype(np.float64)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64)), rtol=3e-7)


def test_exp_of_what_never_counts_is_nothing() -> None:
    assert np.array(quick_exp(mx.array([-89.0, -1e4, -1e30, -np.inf]))).tolist() == [0.0] * 4
    assert np.array(bounded_exp(mx.array([-89.0, -1e4, -1e5, -1e6]))).tolist() == [0.0] * 4
    assert quick_exp(mx.array([0.0])).item() == bounded_exp(mx.array([0.0])).item() == 1.0


@given(
    st.lists(st.integers(0, 100_000), min_size=1, max_size=6),
    st.sampled_from([(16, 10_000.0, 1.0), (64, 1_000_000.0, 1.0), (32, 10_000.0, 0.25)]),
)
@settings(deadline=None, max_examples=30)
def test_a_shared_rotation_is_the_layer_s_own(
    positions: list[int], form: tuple[int, float, float]
) -> None:
    dims, base, scale = form
    rope: Any = RoPE(dims, traditional=False, base=base, scale=scale)
    shared = SharedRope(rope, RotaryTable(dims, base, scale))
    x = mx.random.normal((len(positions), 3, 1, dims), key=mx.random.key(1))
    offset = mx.array(positions)
    got = mx.compile(lambda x, offset: shared(x, offset=offset))(x, offset)
    # Angles of far positions are large, and float32 keeps 24 bits of them.
    np.testing.assert_allclose(
        np.array(got), np.array(rope(x, offset=offset)), atol=1e-6 + 3e-7 * max(positions)
    )


def test_prompts_and_heads_with_a_tail_are_rotated_by_mlx() -> None:
    rope: Any = RoPE(16, traditional=False, base=10_000.0)
    shared = SharedRope(rope, RotaryTable(16, 10_000.0, 1.0))
    prompt, tail = mx.random.normal((1, 2, 5, 16)), mx.random.normal((2, 2, 1, 24))
    assert mx.array_equal(shared(prompt, offset=3), rope(prompt, offset=3)).item()
    offset = mx.array([1, 9])
    assert mx.array_equal(shared(tail, offset=offset), rope(tail, offset=offset)).item()


@pytest.mark.parametrize("columns", [64, 640])
@pytest.mark.parametrize(("heads", "key_heads"), [(8, 8), (9, 3), (8, 1)])
def test_attention_over_slots_is_attention(heads: int, key_heads: int, columns: int) -> None:
    def random(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(sum(shape)))

    slots, dim = 16, 32
    queries, keys = random(slots, heads, 1, dim) * 3, random(slots, key_heads, columns, dim)
    values = random(slots, key_heads, columns, dim)
    lengths = mx.array([1 + 37 * i % columns for i in range(slots)])
    mask = (mx.arange(columns)[None] < lengths[:, None])[:, None, None, :]
    got = mx.compile(lambda q, k, v, m: slot_attention.attend(q, k, v, m, dim**-0.5, None))(
        queries, keys, values, mask
    )
    want = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=dim**-0.5, mask=mask)
    np.testing.assert_allclose(np.array(got), np.array(want), atol=2e-5)


@pytest.mark.parametrize(
    ("tokens", "columns"), [(64, 64), (3, 700), (64, 900), (150, 150), (200, 333)]
)
@pytest.mark.parametrize(("heads", "key_heads"), [(8, 8), (9, 3), (8, 1)])
def test_a_prompt_s_attention_is_attention(
    heads: int, key_heads: int, tokens: int, columns: int
) -> None:
    def random(*shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(sum(shape)))

    dim = 32
    queries = random(1, tokens, heads, dim).swapaxes(1, 2) * 3  # as model code makes them
    keys = random(1, key_heads, columns + 56, dim)[:, :, :columns]  # as a cache with room does
    values = random(1, key_heads, columns + 56, 2 * dim)[:, :, :columns]
    got = prompt_attention.attend(queries, keys, values, dim**-0.5, "causal", None)
    want = mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=dim**-0.5, mask="causal"
    )
    np.testing.assert_allclose(np.array(got), np.array(want), atol=2e-5)


@pytest.mark.parametrize("mask", [None, mx.zeros((100, 300))], ids=["none", "array"])
def test_a_prompt_s_other_masks_are_left_to_mlx(mask: mx.array | None) -> None:
    queries, keys = mx.random.normal((1, 4, 100, 16)), mx.random.normal((1, 2, 300, 16))
    got = prompt_attention.attend(queries, keys, keys, 0.25, mask, None)
    want = mx.fast.scaled_dot_product_attention(queries, keys, keys, scale=0.25, mask=mask)
    assert mx.array_equal(got, want).item()


def test_an_empty_slot_attends_to_nothing_and_breaks_nothing() -> None:
    keys = mx.zeros((32, 4, 64, 16))
    nothing = mx.zeros((32, 1, 1, 64), mx.bool_)
    got = slot_attention.attend(mx.ones((32, 4, 1, 16)), keys, keys, nothing, 0.25, None)
    assert np.isfinite(np.array(got)).all()


@pytest.mark.parametrize("shape", [(1700, 600), (3000, 576), (901, 1000)])
def test_one_row_in_pieces_is_the_product(shape: tuple[int, int]) -> None:
    weight = mx.random.normal(shape, key=mx.random.key(3)) / 30
    pieces = pieces_of(weight)
    assert pieces is not None
    x = mx.random.normal((1, 1, shape[1]), key=mx.random.key(4))
    assert pieces.suits(x)
    got, want = pieces.times(x), x @ weight.T
    assert got.shape == want.shape
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-4, atol=1e-4)


def test_small_and_half_weights_and_more_rows_go_in_one_piece() -> None:
    assert pieces_of(mx.zeros((100, 100))) is None
    assert pieces_of(mx.zeros((2000, 1000), mx.bfloat16)) is None
    pieces = pieces_of(mx.zeros((2000, 1000)))
    assert pieces is not None
    assert not pieces.suits(mx.zeros((2, 1, 1000)))


def test_a_tied_head_is_the_same_head_for_one_row_and_for_more() -> None:
    embedding: Any = Embedding(2000, 512)
    rows = mx.random.normal((3, 1, 512), key=mx.random.key(5))
    want = np.array(embedding.as_linear(rows))
    holder: Any = Module()  # type: ignore[no-untyped-call]
    holder.embed = embedding
    cut_heads(holder)
    np.testing.assert_allclose(np.array(embedding.as_linear(rows)), want, rtol=1e-5, atol=1e-5)
    one = np.array(embedding.as_linear(rows[:1]))
    np.testing.assert_allclose(one, want[:1], rtol=1e-4, atol=1e-4)
