"""The kernels of paged_attention, in the two languages that MLX compiles at run time.

Both say the same.  A body's constants come from its template; `SCALE` is in its header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.attention_body import (
    APART,
    APART_PLACES,
    ATTEND,
    JOINT,
    JOINT_PLACES,
    PARTS,
    WHOLE,
)
from mlxbun.adapters.mlx_compute.cuda_kernels import CudaKernel

_APART = ("queries", "new_keys", "new_values", "keys", "values", "table", "lengths")
_JOINT = ("joint", "turns", "keys", "values", "places")
_NORMED = ("joint", "turns", "gains", "keys", "values", "places")
_INPUTS = {
    "attend": _APART,
    "attend_parts": _APART,
    "attend_joint": _JOINT,
    "attend_joint_parts": _JOINT,
    "attend_joint_normed": _NORMED,
    "attend_joint_normed_parts": _NORMED,
    "merge": ("parts", "sums"),
    "fill": ("new_keys", "new_values", "keys", "values", "pages", "num_tokens"),
}
_OUTPUTS = {"merge": ("out",), "fill": ("done",)}


class Source(Struct, frozen=True):
    """The kernels in one language: a header for all, a body for each."""

    language: str
    header: str
    bodies: dict[str, str]

    def kernel(
        self, name: str, unique: str, scale: float, eps: float
    ) -> Callable[..., list[mx.array]]:
        make: Any = CudaKernel if self.language == "cuda" else mx.fast.metal_kernel
        # Scores are kept in base 2, whose exponential is an instruction.
        base_two = scale * 1.4426950408889634
        made: Callable[..., list[mx.array]] = make(
            name=unique,
            input_names=list(_INPUTS[name]),
            output_names=list(_OUTPUTS.get(name) or _attention_outputs(name)),
            source=self.bodies[name],
            header=self.header.replace("SCALE_VALUE", f"{base_two:.9e}f").replace(
                "EPS_VALUE", f"{eps:.9e}f"
            ),
        )
        return made


def _attention_outputs(name: str) -> tuple[str, ...]:
    return ("parts", "sums") if name.endswith("_parts") else ("out",)


_CUDA_HEADER = """
#define SCALE SCALE_VALUE
#define EPS EPS_VALUE
#define LOWEST -1e30f

template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T at[N]; };
"""

_NO_GAINS = """
  constexpr bool NORMED = false;
  const T* gains = nullptr;
"""
_GAINS = """
  constexpr bool NORMED = true;
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


def _attend(places: str, fresh: str, finish: str) -> str:
    return places + ATTEND.replace("FRESH", fresh).replace("FINISH", finish)


CUDA = Source(
    "cuda",
    _CUDA_HEADER,
    {
        "attend": _attend(APART_PLACES, APART, WHOLE),
        "attend_parts": _attend(APART_PLACES, APART, PARTS),
        "attend_joint": _attend(JOINT_PLACES, _NO_GAINS + JOINT, WHOLE),
        "attend_joint_parts": _attend(JOINT_PLACES, _NO_GAINS + JOINT, PARTS),
        "attend_joint_normed": _attend(JOINT_PLACES, _GAINS + JOINT, WHOLE),
        "attend_joint_normed_parts": _attend(JOINT_PLACES, _GAINS + JOINT, PARTS),
        "merge": _CUDA_MERGE,
        "fill": _CUDA_FILL,
    },
)
_ON_METAL = ("attend", "attend_parts", "merge", "fill")


_METAL_UNROLL = '_Pragma("clang loop unroll(full)")'


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
        "#pragma unroll": _METAL_UNROLL,
        '_Pragma("unroll")': _METAL_UNROLL,
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

METAL = Source("metal", _METAL_HEADER, {name: _in_metal(CUDA.bodies[name]) for name in _ON_METAL})
