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
from typing import Any

import mlx.core as mx

MAX_ROWS = 32
_BLOCKS = 132  # below that, a block takes 16 rows of the weight and not 32
_WARPS = (16, 8, 4)  # the most that divide the inner dimension in steps of 32


def suits(x: mx.array, weight: mx.array) -> bool:
    """Return whether `project` can multiply x [..., k] and weight [n, k] here."""
    num_inner = weight.shape[-1]
    return (
        x.dtype == weight.dtype
        and x.dtype in (mx.bfloat16, mx.float16)
        and x.size // num_inner <= MAX_ROWS
        and num_inner % 128 == 0
        and weight.shape[0] % 16 == 0
        and on_cuda()
    )


@cache
def on_cuda() -> bool:
    """Return whether the default device runs CUDA kernels."""
    return mx.default_device() != mx.Device(mx.cpu) and mx.cuda.is_available()


def project(
    x: mx.array, weight: mx.array, bias: mx.array | None, sizes: Sequence[int]
) -> list[mx.array]:
    """Return x @ weight.T + bias in parts of `sizes` columns, each contiguous.

    x [..., k], weight [n, k], bias [n]; `sizes` are one to three multiples of 16 that sum to n.
    """
    num_rows = x.size // x.shape[-1]
    num_outer, num_inner = weight.shape
    tiles = 2 if num_outer % 32 == 0 and num_outer // 32 >= _BLOCKS else 1
    if any(size % (16 * tiles) for size in sizes):
        tiles = 1
    warps = next(w for w in _WARPS if num_inner % (32 * w) == 0)
    parts = len(sizes)
    out: list[mx.array] = _kernel(parts, bias is not None)(
        inputs=[x, weight] + ([bias] if bias is not None else []),
        template=[
            ("T", x.dtype),
            ("ROWS", num_rows),
            ("INNER", num_inner),
            ("TILES", tiles),
            ("WARPS", warps),
            *((f"SIZE{i}", size) for i, size in enumerate(sizes)),
        ],
        grid=(32 * warps * (num_outer // (16 * tiles)), 1, 1),
        threadgroup=(32 * warps, 1, 1),
        output_shapes=[(*x.shape[:-1], size) for size in sizes],
        output_dtypes=[x.dtype] * parts,
    )
    return out


@cache
def _kernel(parts: int, has_bias: bool) -> Any:
    write = "".join(
        f"if (at < SIZE{i}) {{ out{i}[size_t(row) * SIZE{i} + at] = T(total); continue; }} "
        f"at -= SIZE{i};\n      "
        for i in range(parts)
    )
    add = "total += float(bias[first + in_block]);" if has_bias else ""
    return mx.fast.cuda_kernel(
        name=f"mlxbun_project_{parts}{'b' if has_bias else ''}",
        input_names=["x", "weight", *(["bias"] if has_bias else [])],
        output_names=[f"out{i}" for i in range(parts)],
        source=_SOURCE.replace("WRITE", write).replace("ADD_BIAS", add),
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
  constexpr int GROUPS = (ROWS + 7) / 8;       // of 8 rows of x
  constexpr int STEPS = INNER / (32 * WARPS);  // of 32 elements, for each warp
  constexpr int STRIDE = INNER / 8;            // packs of 16 bytes a row
  constexpr int HEIGHT = 16 * TILES;
  __shared__ float shared[WARPS][GROUPS * 8][HEIGHT + 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int line = lane >> 2, quarter = lane & 3;
  const int first = blockIdx.x * HEIGHT;
  const uint4* w = reinterpret_cast<const uint4*>(weight) + size_t(first + line) * STRIDE
      + warp * STEPS * 4 + quarter;
  const uint4* in = reinterpret_cast<const uint4*>(x) + size_t(line) * STRIDE
      + warp * STEPS * 4 + quarter;
  float c[TILES][GROUPS][4];
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
#pragma unroll
      for (int i = 0; i < 4; i++) c[t][g][i] = 0.0f;
#pragma unroll 4
  for (int step = 0; step < STEPS; step++) {
    uint4 a[TILES][2], b[GROUPS];
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      a[t][0] = __ldcs(w + step * 4 + size_t(t * 16) * STRIDE);
      a[t][1] = __ldcs(w + step * 4 + size_t(t * 16 + 8) * STRIDE);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
      b[g] = g * 8 + line < ROWS ? in[step * 4 + size_t(g * 8) * STRIDE] : make_uint4(0, 0, 0, 0);
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
  for (int i = threadIdx.x; i < ROWS * HEIGHT; i += WARPS * 32) {
    const int row = i / HEIGHT, in_block = i % HEIGHT;
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < WARPS; v++) total += shared[v][row][in_block];
    ADD_BIAS
    int at = first + in_block;
    WRITE
  }
"""
