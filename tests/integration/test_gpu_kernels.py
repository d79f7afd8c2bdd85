"""The kernels for GPUs against MLX's own operations.  Skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.positional_encoding import RoPE

from mlxbun.adapters.mlx_compute import few_rows_matmul, paged_attention
from mlxbun.adapters.mlx_compute.few_rows_blocking import columns_a_sum
from mlxbun.adapters.mlx_compute.fused_decode import kernels as fused
from mlxbun.adapters.mlx_compute.fused_decode.decoder import turns_of
from mlxbun.adapters.mlx_compute.fused_decode.step import Flow
from mlxbun.adapters.mlx_compute.paged_attention import PAGE

pytestmark = pytest.mark.skipif(
    paged_attention.source() is None, reason="there is no custom kernel for this device"
)
DTYPES = [mx.float32, mx.bfloat16, mx.float16]


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    array = mx.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
    mx.eval(array)
    return array


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "key_heads", "dim", "width", "lengths"),
    [
        (16, 8, 128, 4, [200]),
        (16, 8, 128, 64, [300]),
        (8, 8, 64, 4, [0, 63, 64]),
        (32, 8, 128, 64, [1, 200, 2000, 777]),
        (12, 2, 128, 4, [100, 5]),
        (6, 1, 256, 16, [500, 10]),
    ],
)
def test_attention_over_pages_is_attention(
    dtype: mx.Dtype, heads: int, key_heads: int, dim: int, width: int, lengths: list[int]
) -> None:
    rng = np.random.default_rng(0)
    pool = [random(rng, (200, key_heads, PAGE, dim), dtype) for _ in range(2)]
    pages, used = rng.permutation(199) + 1, 0
    table = np.zeros((len(lengths), width), np.int32)
    for line, length in zip(table, lengths, strict=True):
        count = length // PAGE + 1
        line[:count] = pages[used : used + count]
        used += count
    queries = random(rng, (len(lengths), heads, 1, dim), dtype)
    new = [random(rng, (len(lengths), key_heads, 1, dim), dtype) for _ in range(2)]
    old = [np.array(p.astype(mx.float32)) for p in pool]
    (keys, values), tokens = pool, mx.array(np.array(lengths, np.int32))
    out = paged_attention.attend(
        queries, new[0], new[1], keys, values, mx.array(table), tokens, dim**-0.5
    )
    mx.eval(out)
    for row, length in enumerate(lengths):
        at = np.arange(length)
        seen = [
            np.concatenate(
                [
                    side[table[row][at // PAGE], :, at % PAGE],
                    np.array(fresh.astype(mx.float32))[row, :, 0][None],
                ]
            ).swapaxes(0, 1)[None]
            for side, fresh in zip(old, new, strict=True)
        ]
        want = mx.fast.scaled_dot_product_attention(
            queries[row : row + 1].astype(mx.float32), *map(mx.array, seen), scale=dim**-0.5
        )
        tolerance = 2e-3 if dtype == mx.float32 else 2e-2
        np.testing.assert_allclose(
            np.array(out[row : row + 1].astype(mx.float32)), np.array(want), atol=tolerance
        )
        for side, fresh in zip(pool, new, strict=True):
            wrote = side[int(table[row][length // PAGE]), :, length % PAGE]
            assert mx.array_equal(wrote, fresh[row, :, 0]).item()


@pytest.mark.parametrize("length", [1, 64, 200])
def test_a_prompt_is_copied_into_its_pages(length: int) -> None:
    rng = np.random.default_rng(1)
    pool = [random(rng, (9, 2, PAGE, 64), mx.bfloat16) for _ in range(2)]
    prompt = [random(rng, (1, 2, 256, 64), mx.bfloat16) for _ in range(2)]
    pages = [5, 2, 7, 1][: length // PAGE + 1]
    where = mx.array(pages, dtype=mx.int32)
    mx.eval(paged_attention.fill(prompt[0], prompt[1], pool[0], pool[1], where, length))
    for side, new in zip(pool, prompt, strict=True):
        for token in range(length):
            there = side[pages[token // PAGE], :, token % PAGE]
            assert mx.array_equal(there, new[0, :, token]).item()


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "inner", "sizes"),
    [
        (1, 1024, (2048, 1024, 1024)),
        (3, 4096, (4096,)),
        (8, 3072, (1024,)),
        (20, 4096, (12288, 12288)),
        (32, 12288, (4096,)),
        (40, 1024, (4096, 1024)),
        (64, 3072, (1024,)),
        (2, 128, (16, 32)),
    ],
)
@pytest.mark.parametrize("biased", [False, True])
def test_few_rows_multiply_as_many_do(
    dtype: mx.Dtype, rows: int, inner: int, sizes: tuple[int, ...], biased: bool
) -> None:
    if not mx.cuda.is_available():
        pytest.skip("the kernel is for CUDA")
    rng = np.random.default_rng(2)
    x = random(rng, (rows, 1, inner), dtype)
    weight = (random(rng, (sum(sizes), inner), dtype) * inner**-0.5).astype(dtype)
    bias = random(rng, (sum(sizes),), dtype) if biased else None
    want = x.astype(mx.float32) @ weight.astype(mx.float32).T
    want = want if bias is None else want + bias.astype(mx.float32)
    found = few_rows_matmul.project(x, weight, bias, few_rows_matmul.Parts(sizes))
    assert [part.shape for part in found] == [(rows, 1, size) for size in sizes]
    np.testing.assert_allclose(
        np.array(mx.concatenate(found, axis=-1).astype(mx.float32)), np.array(want), atol=4e-2
    )


needs_cuda = pytest.mark.skipif(not mx.cuda.is_available(), reason="the kernel is for CUDA")
EPS = 1e-6


def near(found: mx.array, want: mx.array) -> None:
    """See that half precision is all that differs."""
    off = np.array(found.astype(mx.float32)) - np.array(want)
    apart = np.linalg.norm(off) / np.linalg.norm(np.array(want))
    assert apart < 1e-2, f"{apart:.3g} of the norm"


def normed(x: mx.array, gain: mx.array) -> mx.array:
    out: mx.array = mx.fast.rms_norm(x.astype(mx.float32), gain.astype(mx.float32), EPS)
    return out


@needs_cuda
@pytest.mark.parametrize("has_gains", [True, False])
@pytest.mark.parametrize(
    ("heads", "key_heads", "dim", "width", "lengths"),
    [
        (16, 8, 128, 4, [200]),
        (16, 8, 128, 64, [300, 3000]),
        (9, 3, 64, 4, [0, 63, 64]),
        (32, 8, 128, 64, [1, 200, 2000, 777]),
        (2, 2, 256, 4, [100, 5]),
    ],
)
def test_attention_from_a_joint_projection_norms_and_rotates(
    heads: int, key_heads: int, dim: int, width: int, lengths: list[int], has_gains: bool
) -> None:
    rng = np.random.default_rng(3)
    rows, dtype = len(lengths), mx.bfloat16
    joint = random(rng, (rows, (heads + 2 * key_heads) * dim), dtype)
    gains = random(rng, (2, dim), dtype) if has_gains else None
    tokens = mx.array(np.array(lengths, np.int32))
    rope: Any = RoPE(dim, base=10000.0)
    parts = joint.reshape(rows, -1, 1, dim)
    queries, keys, values = mx.split(parts, [heads, heads + key_heads], axis=1)
    if gains is not None:
        queries = mx.fast.rms_norm(queries, gains[0], EPS)
        keys = mx.fast.rms_norm(keys, gains[1], EPS)
    queries, keys = rope(queries, offset=tokens), rope(keys, offset=tokens)
    table = np.arange(1, rows * width + 1, dtype=np.int32).reshape(rows, width)
    places = mx.array(np.concatenate([np.array(lengths, np.int32)[:, None], table], axis=1))
    shape = (rows * width + 1, key_heads, PAGE, dim)
    pools = [[random(np.random.default_rng(i), shape, dtype) for i in (4, 5)] for _ in range(2)]
    scale = dim**-0.5
    (old_keys, old_values), (new_keys, new_values) = pools
    want = paged_attention.attend(
        queries, keys, values, old_keys, old_values, mx.array(table), tokens, scale
    )
    found = paged_attention.attend_joint(
        joint, turns_of(rope, tokens, dim), gains, new_keys, new_values, places, scale, EPS
    )
    mx.eval(want, found)
    near(found, want.reshape(rows, heads * dim).astype(mx.float32))
    for side in range(2):
        near(pools[1][side], pools[0][side].astype(mx.float32))


@needs_cuda
@pytest.mark.parametrize("rows", [1, 5, 16, 32, 64])
@pytest.mark.parametrize(
    ("width", "joint", "inner"), [(1024, 4096, 3072), (576, 960, 1536), (4096, 6144, 12288)]
)
def test_products_of_a_fused_layer(rows: int, width: int, joint: int, inner: int) -> None:
    rng = np.random.default_rng(6)
    dtype, wide = mx.bfloat16, mx.float32

    def weight(num_outer: int, num_inner: int) -> mx.array:
        wide_one: mx.array = random(rng, (num_outer, num_inner), wide) * num_inner**-0.5
        return wide_one.astype(dtype)

    before = Flow(random(rng, (width,), dtype), random(rng, (3, rows, width), dtype))
    gain = random(rng, (width,), dtype)
    x, down = random(rng, (rows, inner), dtype), weight(width, inner)
    flow = fused.added(x, down, before, gain)
    want = before.state.astype(wide) + x.astype(wide) @ down.astype(wide).T
    check_flow(flow, want)
    after, bias, both = weight(joint, width), random(rng, (joint,), dtype), weight(2 * inner, width)
    hidden = normed(flow.state, gain)
    product = hidden @ after.astype(wide).T
    near(fused.normed(flow, after, None, EPS), product)
    near(fused.normed(flow, after, bias, EPS), product + bias.astype(wide))
    gate, up = mx.split(hidden @ both.astype(wide).T, 2, axis=-1)
    near(fused.gated(flow, both, EPS), gate * mx.sigmoid(gate) * up)


def check_flow(flow: Flow, want: mx.array) -> None:
    """See that `flow` has the state [rows, width] `want` in the forms that products read."""
    assert flow.packed is not None
    state, scaled, sums = flow.packed
    near(state, want)
    near(scaled, want * flow.gain.astype(mx.float32))
    rows, width = want.shape
    num_sums = width // columns_a_sum(rows, width)
    squares = sums.view(mx.float32).reshape(-1)[: rows * num_sums].reshape(rows, num_sums)
    near(squares.sum(axis=1), (want * want).sum(axis=1))


@needs_cuda
def test_a_token_is_embedded_as_a_flow() -> None:
    rng = np.random.default_rng(7)
    embedding, gain = random(rng, (50, 576), mx.bfloat16), random(rng, (576,), mx.bfloat16)
    flow = fused.begin(mx.array([3, 49, 3]), embedding, gain)
    want = embedding[mx.array([3, 49, 3])].astype(mx.float32)
    assert mx.array_equal(flow.state, want).item()
    check_flow(flow, want)
