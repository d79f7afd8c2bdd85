"""Matrix products for the few rows of a decode step, as a CUDA kernel.

MLX's CUDA build hands products of two rows and more to cuBLASLt, each by way of a captured
graph: 10 to 20 microseconds of host time, where a kernel of its own costs 4.  A decode step is
a few hundred of them, so the host is the limit.  This kernel reads every weight once, on
tensor cores, and writes the parts of joint projections as arrays of their own.

A warp holds 16 or 32 rows of the weight and all rows of the input; the warps of a block divide
the inner dimension.  The order of the inner dimension is free as long as both sides agree, so a
thread loads 16 bytes in a row and feeds them to two instructions (m16n8k16 of the PTX manual).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.loading import on_cuda

MAX_ROWS = 64
# Up to how many rows, and how many bytes of weights, a product pays.  Above, the device needs
# longer than the host, and less in cuBLAS; one row has MLX's own kernel, cheap for the host.
# Measured on an H200 with Qwen3 8B and 0.6B, docs/benchmarks.md.
_PAYS = ((1, 24 << 20), (32, 56 << 20), (MAX_ROWS, 24 << 20))
_SHARED_BYTES = 48 << 10  # that a block may have without being asked
_BLOCKS = 132  # below that, a block takes 16 rows of the weight and not 32
_WARPS = (16, 8, 4)  # the most that divide the inner dimension in steps of 32


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
        and weight.shape[-1] % 128 == 0
        and weight.shape[0] % 16 == 0
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
    num_rows = x.size // num_inner
    tiles = 2 if num_outer % 32 == 0 and num_outer // 32 >= _BLOCKS else 1
    groups = -(-num_rows // 8)
    warp_bytes = 4 * groups * 8 * (16 * tiles + 1)
    most = _SHARED_BYTES // warp_bytes
    warps = next(w for w in _WARPS if w <= most and num_inner % (32 * w) == 0)
    # The kernel takes [rows, k] and [rows, 1, k] alike, and writes each part where it belongs:
    # a reshape or a split is no work for the device, but a microsecond for the host.
    found: list[mx.array] = _kernel(len(parts.sizes), bias is not None, x.ndim)(
        inputs=[x, weight, parts.ends] + ([bias] if bias is not None else []),
        template=[("T", x.dtype), ("GROUPS", groups), ("TILES", tiles), ("WARPS", warps)],
        grid=(32 * warps * (num_outer // (16 * tiles)), 1, 1),
        threadgroup=(32 * warps, 1, 1),
        output_shapes=[(*x.shape[:-1], size) for size in parts.sizes],
        output_dtypes=[x.dtype] * len(parts.sizes),
    )
    return found


@cache
def _kernel(num_parts: int, has_bias: bool, num_axes: int) -> Any:
    rows = " * ".join(f"x_shape[{axis}]" for axis in range(num_axes - 1))
    words = {
        "NUM_ROWS": rows,
        "NUM_INNER": f"x_shape[{num_axes - 1}]",
        "ADD_BIAS": "total += float(bias[column]);" if has_bias else "",
        "WRITE": "\n    ".join(
            f"if (part == {i}) out{i}[size_t(row) * width + at] = T(total);"
            for i in range(num_parts)
        ),
    }
    source = _SOURCE
    for word, instead in words.items():
        source = source.replace(word, instead)
    return mx.fast.cuda_kernel(
        name=f"mlxbun_project{num_parts}_{num_axes}{'_bias' if has_bias else ''}",
        input_names=["x", "weight", "ends", *(["bias"] if has_bias else [])],
        output_names=[f"out{i}" for i in range(num_parts)],
        source=source,
        header=_HEADER,
    )


_HEADER = """
template <typename T> struct Name { static constexpr bool half = false; };
template <> struct Name<__half> { static constexpr bool half = true; };

template <typename T>
__device__ __forceinline__ void multiply(
    float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  if constexpr (Name<T>::half) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}
"""
_SOURCE = """
  constexpr int HEIGHT = 16 * TILES;
  const int rows = NUM_ROWS, inner = NUM_INNER;
  const int steps = inner / (32 * WARPS);  // of 32 elements, for each warp
  const int stride = inner / 8;            // packs of 16 bytes a row
  __shared__ float shared[WARPS][GROUPS * 8][HEIGHT + 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int line = lane >> 2, quarter = lane & 3;
  const int first = blockIdx.x * HEIGHT;
  const uint4* w = reinterpret_cast<const uint4*>(weight) + size_t(first + line) * stride
      + warp * steps * 4 + quarter;
  const uint4* in = reinterpret_cast<const uint4*>(x) + size_t(line) * stride
      + warp * steps * 4 + quarter;
  float c[TILES][GROUPS][4];
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[t][g][i] = 0.0f;
#pragma unroll 4
  for (int step = 0; step < steps; step++) {
    uint4 a[TILES][2], b[GROUPS];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      a[t][0] = __ldcs(w + step * 4 + size_t(t * 16) * stride);
      a[t][1] = __ldcs(w + step * 4 + size_t(t * 16 + 8) * stride);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
      b[g] = g * 8 + line < rows ? in[step * 4 + size_t(g * 8) * stride] : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        multiply<T>(c[t][g], a[t][0].x, a[t][1].x, a[t][0].y, a[t][1].y, b[g].x, b[g].y);
        multiply<T>(c[t][g], a[t][0].z, a[t][1].z, a[t][0].w, a[t][1].w, b[g].z, b[g].w);
      }
  }
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
      const int row = g * 8 + quarter * 2, column = t * 16 + line;
      shared[warp][row][column] = c[t][g][0];
      shared[warp][row + 1][column] = c[t][g][1];
      shared[warp][row][column + 8] = c[t][g][2];
      shared[warp][row + 1][column + 8] = c[t][g][3];
    }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * HEIGHT; i += WARPS * 32) {
    const int row = i / HEIGHT, in_block = i % HEIGHT;
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < WARPS; v++) total += shared[v][row][in_block];
    const int column = first + in_block;
    ADD_BIAS
    int part = 0;
    while (column >= ends[part]) part++;
    const int start = part ? ends[part - 1] : 0;
    const int width = ends[part] - start, at = column - start;
    WRITE
  }
"""
