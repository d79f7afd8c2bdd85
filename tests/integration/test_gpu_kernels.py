"""The kernels for GPUs against MLX's own operations.  Skipped where there is no GPU."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxbun.adapters.mlx_compute import few_rows_matmul, paged_attention
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
