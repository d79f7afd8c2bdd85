"""The kernels of paged_attention, in the two languages that MLX compiles at run time.

Both say the same.  A body's constants come from its template; `SCALE` is in its header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from msgspec import Struct

_INPUTS = {
    "attend": ("queries", "new_keys", "new_values", "keys", "values", "table", "lengths"),
    "attend_parts": ("queries", "new_keys", "new_values", "keys", "values", "table", "lengths"),
    "merge": ("parts", "sums"),
    "fill": ("new_keys", "new_values", "keys", "values", "pages", "num_tokens"),
}
_OUTPUTS = {
    "attend": ("out",),
    "attend_parts": ("parts", "sums"),
    "merge": ("out",),
    "fill": ("done",),
}


class Source(Struct, frozen=True):
    """The kernels in one language: a header for all, a body for each."""

    language: str
    header: str
    bodies: dict[str, str]

    def kernel(self, name: str, unique: str, scale: float) -> Callable[..., list[mx.array]]:
        make: Any = mx.fast.cuda_kernel if self.language == "cuda" else mx.fast.metal_kernel
        # Scores are kept in base 2, whose exponential is an instruction.
        base_two = scale * 1.4426950408889634
        made: Callable[..., list[mx.array]] = make(
            name=unique,
            input_names=list(_INPUTS[name]),
            output_names=list(_OUTPUTS[name]),
            source=self.bodies[name],
            header=self.header.replace("SCALE_VALUE", f"{base_two:.9e}f"),
        )
        return made


_CUDA_HEADER = """
#define SCALE SCALE_VALUE
#define LOWEST -1e30f

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T at[N]; };
"""

# A thread of a group of 8 holds every eighth pack of 16 bytes of a head.
_CUDA_ATTEND = """
  constexpr int PACK = 16 / sizeof(T);
  constexpr int PACKS = DIM / (8 * PACK);
  constexpr int MINE = PACKS * PACK;
  constexpr int GROUPS = WARPS * 4;
  using P = Pack<T, PACK>;
  __shared__ float shared_acc[WARPS][QUERIES][DIM];
  __shared__ float shared_max[WARPS][QUERIES];
  __shared__ float shared_sum[WARPS][QUERIES];
  const int lane = threadIdx.x & 7, group = threadIdx.x >> 3;
  const int warp = threadIdx.x >> 5, in_warp = threadIdx.x & 31;
  const int first = blockIdx.x * QUERIES, row = blockIdx.y, split = blockIdx.z;
  const int heads = gridDim.x * QUERIES, key_heads = keys_shape[1], splits = gridDim.z;
  const int width = table_shape[1];
  const int key_head = first / (heads / key_heads);
  const bool writes = first % (heads / key_heads) == 0;
  const int length = lengths[row];
  const int part = (length + splits) / splits;
  const int begin = split * part;
  const int end = min(begin + part, length + 1);
  float q[QUERIES][MINE], acc[QUERIES][MINE], top[QUERIES], sum[QUERIES];
#pragma unroll
  for (int g = 0; g < QUERIES; g++) {
    const P* from = reinterpret_cast<const P*>(queries + (size_t(row) * heads + first + g) * DIM);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
      const P pack = from[p * 8 + lane];
#pragma unroll
      for (int i = 0; i < PACK; i++) q[g][p * PACK + i] = float(pack.at[i]) * SCALE;
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) acc[g][i] = 0.0f;
    top[g] = LOWEST;
    sum[g] = 0.0f;
  }
  const size_t fresh = (size_t(row) * key_heads + key_head) * DIM;
  for (int base = begin; base < end; base += GROUPS) {
    const int token = base + group;
    const bool live = token < end;
    const int safe = live ? token : begin;
    const size_t page = table[row * width + safe / PAGE];
    const size_t place = ((page * key_heads + key_head) * PAGE + safe % PAGE) * DIM;
    const bool is_new = safe == length;
    const P* k = reinterpret_cast<const P*>(is_new ? new_keys + fresh : keys + place);
    const P* v = reinterpret_cast<const P*>(is_new ? new_values + fresh : values + place);
    P key[PACKS], value[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; p++) { key[p] = k[p * 8 + lane]; value[p] = v[p * 8 + lane]; }
    if (is_new && live && writes) {
      P* to_k = const_cast<P*>(reinterpret_cast<const P*>(keys + place));
      P* to_v = const_cast<P*>(reinterpret_cast<const P*>(values + place));
#pragma unroll
      for (int p = 0; p < PACKS; p++) {
        to_k[p * 8 + lane] = key[p];
        to_v[p * 8 + lane] = value[p];
      }
    }
#pragma unroll
    for (int g = 0; g < QUERIES; g++) {
      float score = 0.0f;
#pragma unroll
      for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < PACK; i++) score += q[g][p * PACK + i] * float(key[p].at[i]);
      score += __shfl_xor_sync(0xffffffff, score, 1);
      score += __shfl_xor_sync(0xffffffff, score, 2);
      score += __shfl_xor_sync(0xffffffff, score, 4);
      score = live ? score : LOWEST;
      const float above = fmaxf(top[g], score);
      const float fade = exp2f(top[g] - above);
      const float weight = live ? exp2f(score - above) : 0.0f;
      top[g] = above;
      sum[g] = sum[g] * fade + weight;
#pragma unroll
      for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < PACK; i++)
          acc[g][p * PACK + i] = acc[g][p * PACK + i] * fade + weight * float(value[p].at[i]);
    }
  }
#pragma unroll
  for (int g = 0; g < QUERIES; g++) {
#pragma unroll
    for (int apart = 8; apart < 32; apart *= 2) {
      const float other = __shfl_xor_sync(0xffffffff, top[g], apart);
      const float above = fmaxf(top[g], other);
      const float fade = exp2f(top[g] - above);
      sum[g] *= fade;
      sum[g] += __shfl_xor_sync(0xffffffff, sum[g], apart);
#pragma unroll
      for (int i = 0; i < MINE; i++) {
        acc[g][i] *= fade;
        acc[g][i] += __shfl_xor_sync(0xffffffff, acc[g][i], apart);
      }
      top[g] = above;
    }
    if (in_warp < 8) {
#pragma unroll
      for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int i = 0; i < PACK; i++)
          shared_acc[warp][g][(p * 8 + lane) * PACK + i] = acc[g][p * PACK + i];
      if (lane == 0) { shared_max[warp][g] = top[g]; shared_sum[warp][g] = sum[g]; }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < QUERIES * DIM; at += WARPS * 32) {
    const int g = at / DIM, d = at % DIM;
    float above = LOWEST, total = 0.0f, all = 0.0f;
    for (int w = 0; w < WARPS; w++) above = fmaxf(above, shared_max[w][g]);
    for (int w = 0; w < WARPS; w++) {
      const float fade = exp2f(shared_max[w][g] - above);
      all += shared_sum[w][g] * fade;
      total += shared_acc[w][g][d] * fade;
    }
    FINISH
  }
"""
_CUDA_WHOLE = "out[(size_t(row) * heads + first + g) * DIM + d] = T(total / all);"
_PARTS = """
    const size_t to = (size_t(row) * heads + first + g) * splits + split;
    parts[to * DIM + d] = total;
    if (d == 0) { sums[to * 2] = above; sums[to * 2 + 1] = all; }
"""
_CUDA_MERGE = """
  const size_t head = blockIdx.y;
  const int d = threadIdx.x, splits = sums_shape[2];
  float above = LOWEST, total = 0.0f, all = 0.0f;
  for (int s = 0; s < splits; s++) above = fmaxf(above, sums[(head * splits + s) * 2]);
  for (int s = 0; s < splits; s++) {
    const size_t from = head * splits + s;
    const float fade = exp2f(sums[from * 2] - above);
    all += sums[from * 2 + 1] * fade;
    total += parts[from * DIM + d] * fade;
  }
  out[head * DIM + d] = T(total / all);
"""
# Copies 16 bytes a thread; `new_keys` may have room for more tokens than are copied.
_CUDA_FILL = """
  const int at = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
  const int token = at / PER_TOKEN, pack = at % PER_TOKEN;
  if (at == 0 && head == 0) done[0] = 0;
  if (token >= num_tokens[0]) return;
  const size_t from = (size_t(head) * new_keys_shape[2] + token) * PER_TOKEN + pack;
  const size_t page = pages[token / PAGE];
  const size_t to = ((page * HEADS + head) * PAGE + token % PAGE) * PER_TOKEN + pack;
  const uint4* from_keys = reinterpret_cast<const uint4*>(new_keys);
  const uint4* from_values = reinterpret_cast<const uint4*>(new_values);
  const_cast<uint4*>(reinterpret_cast<const uint4*>(keys))[to] = from_keys[from];
  const_cast<uint4*>(reinterpret_cast<const uint4*>(values))[to] = from_values[from];
"""

CUDA = Source(
    "cuda",
    _CUDA_HEADER,
    {
        "attend": _CUDA_ATTEND.replace("FINISH", _CUDA_WHOLE),
        "attend_parts": _CUDA_ATTEND.replace("FINISH", _PARTS),
        "merge": _CUDA_MERGE,
        "fill": _CUDA_FILL,
    },
)


def _in_metal(body: str) -> str:
    """Return a CUDA body in Metal's words: the two languages differ in little else."""
    words = {
        "__shared__": "threadgroup",
        "__syncthreads();": "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "__shfl_xor_sync(0xffffffff, ": "simd_shuffle_xor(",
        "threadIdx.x": "thread_position_in_threadgroup.x",
        "blockIdx.": "threadgroup_position_in_grid.",
        "blockDim.x": "threads_per_threadgroup.x",
        "gridDim.": "threadgroups_per_grid.",
        "fmaxf(": "metal::max(",
        "exp2f(": "metal::exp2(",
        "const_cast<P*>(reinterpret_cast<const P*>(keys + place))": "(device P*)(keys + place)",
        "const_cast<P*>(reinterpret_cast<const P*>(values + place))": "(device P*)(values + place)",
        "const_cast<uint4*>(reinterpret_cast<const uint4*>(keys))": "((device uint4*)keys)",
        "const_cast<uint4*>(reinterpret_cast<const uint4*>(values))": "((device uint4*)values)",
        "reinterpret_cast<const P*>(": "(const device P*)(",
        "reinterpret_cast<const uint4*>(": "(const device uint4*)(",
        "const P* ": "const device P* ",
        "const uint4* ": "const device uint4* ",
        "P* to_": "device P* to_",
        "#pragma unroll": '_Pragma("clang loop unroll(full)")',
    }
    for word, instead in words.items():
        body = body.replace(word, instead)
    return body


_METAL_HEADER = """
#define SCALE SCALE_VALUE
#define LOWEST -1e30f

template <typename T, int N>
struct alignas(16) Pack { T at[N]; };
"""

METAL = Source("metal", _METAL_HEADER, {name: _in_metal(b) for name, b in CUDA.bodies.items()})
