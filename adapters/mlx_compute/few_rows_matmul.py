"""Matrix products for the few rows of a decode step, as a CUDA kernel.

MLX's CUDA build hands products of two rows and more to cuBLASLt, each by way of a captured
graph: 10 to 20 microseconds of host time, where a kernel of its own costs 4.  A decode step is
a few hundred of them, so the host is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.few_rows_blocking import MAX_ROWS, blocking
from mlxbun.adapters.mlx_compute.few_rows_source import Form, kernel
from mlxbun.adapters.mlx_compute.loading import on_cuda

# Up to how many rows, and how many bytes of weights, a product pays.  Above, the device needs
# longer than the host, and less in cuBLAS; one row has MLX's own kernel, cheap for the host.
# Measured on an H200 with Qwen3 8B and 0.6B, docs/benchmarks.md.
_PAYS = ((1, 24 << 20), (32, 56 << 20), (MAX_ROWS, 24 << 20))


def serves(linear: Any) -> bool:
    """Return whether a plain projection gains by `project` for some number of rows."""
    weight = linear.weight
    return _fits(weight) and weight.nbytes <= max(most for _, most in _PAYS)


def suits(x: mx.array, weight: mx.array) -> bool:
    """Return whether `project` gains on x [rows, 1, k] and weight [n, k] here.

    A prompt's tokens do not count as rows: their lengths would each want a kernel of its own.
    """
    num_rows = x.size // weight.shape[-1]
    return (
        x.dtype == weight.dtype
        and x.shape[-2] == 1
        and num_rows <= MAX_ROWS
        and weight.nbytes <= next(most for rows, most in _PAYS if num_rows <= rows)
        and _fits(weight)
    )


def _fits(weight: mx.array) -> bool:
    """Return whether the kernel knows weights of this type and shape, here."""
    return (
        weight.dtype in (mx.bfloat16, mx.float16)
        and blocking(1, *weight.shape) is not None
        and on_cuda()
    )


class Parts:
    """How the columns of a joint product divide: `sizes`, from left to right."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.ends = mx.array(list(accumulate(sizes)), dtype=mx.int32)
        mx.eval(self.ends)  # here, for a product may be called while a step is traced


def project(x: mx.array, weight: mx.array, bias: mx.array | None, parts: Parts) -> list[mx.array]:
    """Return x @ weight.T + bias in `parts`, each contiguous.

    x [..., k], weight [n, k], bias [n].
    """
    num_outer, num_inner = weight.shape
    way = blocking(x.size // num_inner, num_outer, num_inner)
    assert way is not None, "suits() was not asked"
    form = Form(
        dtype=str(x.dtype).removeprefix("mlx.core."),
        blocking=way,
        biased=bias is not None,
        num_axes=x.ndim,
        parts=len(parts.sizes),
    )
    more = [*([bias] if bias is not None else []), *([parts.ends] if form.parts > 1 else [])]
    return kernel(form)(
        inputs=[x, weight, *more],
        grid=(way.threads * (num_outer // way.height), 1, 1),
        threadgroup=(way.threads, 1, 1),
        output_shapes=[(*x.shape[:-1], size) for size in parts.sizes],
        output_dtypes=[x.dtype] * len(parts.sizes),
    )
