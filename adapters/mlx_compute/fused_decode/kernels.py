"""The kernels of a fused decode step, on CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import mlx.core as mx

from mlxbun.adapters.mlx_compute import few_rows_source, paged_attention
from mlxbun.adapters.mlx_compute.cuda_kernels import CudaKernel
from mlxbun.adapters.mlx_compute.few_rows_blocking import (
    MAX_ROWS,
    Blocking,
    blocking,
    columns_a_sum,
)
from mlxbun.adapters.mlx_compute.few_rows_source import Form
from mlxbun.adapters.mlx_compute.fused_decode.decoder import Decoder
from mlxbun.adapters.mlx_compute.fused_decode.step import Flow
from mlxbun.adapters.mlx_compute.loading import on_cuda

attend_joint = paged_attention.attend_joint

_FEW = 16  # rows for which our product is the faster one whatever the weight
_LARGE = 24 << 20  # bytes of a weight, for more rows
_MULTIPLE = 32  # dimensions that every form of a product divides
_THREADS = 256  # of a block that embeds a token
_PAIRS = (64, 128, 256)  # elements of a head whose halves the attention kernel finds


def unsupported(decoder: Decoder) -> str | None:
    if not on_cuda():
        return "its kernels are for CUDA"
    if others := {array.dtype for array in decoder.arrays()} - {mx.bfloat16}:
        return f"it has weights of {', '.join(map(str, others))}, and kernels are for bfloat16"
    if decoder.dim not in _PAIRS:
        return f"heads of {decoder.dim} elements"
    width = decoder.embedding.shape[1]
    return None if width % _MULTIPLE == 0 else f"hidden states of {width} elements do not divide"


def pays(num_rows: int, weight: mx.array) -> bool:
    divides = all(size % _MULTIPLE == 0 for size in weight.shape)
    few = num_rows <= _FEW or (num_rows <= MAX_ROWS and weight.nbytes <= _LARGE)
    return divides and few


def begin(tokens: mx.array, embedding: mx.array, gain: mx.array) -> Flow:
    num_rows, width = len(tokens), len(gain)
    [packed] = _embed(columns_a_sum(num_rows, width))(
        inputs=[tokens, embedding, gain],
        grid=(_THREADS * num_rows, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(3, num_rows, width)],
        output_dtypes=[gain.dtype],
    )
    return Flow(gain, packed)


def normed(flow: Flow, weight: mx.array, bias: mx.array | None, eps: float) -> mx.array:
    return _from_flow(flow, weight, bias, eps, gated=False)


def gated(flow: Flow, weight: mx.array, eps: float) -> mx.array:
    return _from_flow(flow, weight, None, eps, gated=True)


def added(x: mx.array, weight: mx.array, flow: Flow, gain: mx.array) -> Flow:
    way = _way(len(x), weight, adds=True)
    form = Form("bfloat16", way, adds=True)
    assert flow.packed is not None
    return Flow(gain, _run(form, [x, weight, flow.packed, gain], (3, len(x), len(weight))))


def _from_flow(
    flow: Flow, weight: mx.array, bias: mx.array | None, eps: float, *, gated: bool
) -> mx.array:
    assert flow.packed is not None
    num_rows, num_outer = flow.packed.shape[1], len(weight)
    form = Form(
        "bfloat16",
        _way(num_rows, weight, gated=gated),
        normed=True,
        gated=gated,
        biased=bias is not None,
        eps=eps,
        columns_a_sum=columns_a_sum(num_rows, len(flow.gain)),
    )
    inputs = [flow.packed, weight, *([bias] if bias is not None else [])]
    return _run(form, inputs, (num_rows, num_outer // 2 if gated else num_outer))


def _run(form: Form, inputs: Sequence[mx.array], shape: tuple[int, ...]) -> mx.array:
    way, weight = form.blocking, inputs[1]
    found = few_rows_source.kernel(form)(
        inputs=inputs,
        grid=(way.threads * (len(weight) // way.height), 1, 1),
        threadgroup=(way.threads, 1, 1),
        output_shapes=[shape],
        output_dtypes=[mx.bfloat16],
    )
    return found[0]


def _way(num_rows: int, weight: mx.array, *, gated: bool = False, adds: bool = False) -> Blocking:
    way = blocking(num_rows, *weight.shape, gated=gated, adds=adds)
    assert way is not None, "pays() was not asked"
    return way


@cache
def _embed(columns_a_sum: int) -> CudaKernel:
    return CudaKernel(
        name=f"mlxbun_embed_{columns_a_sum}",
        input_names=["tokens", "embedding", "gain"],
        output_names=["flow"],
        source=_EMBED.replace("COLUMNS_A_SUM", str(columns_a_sum)),
    )


# A block takes a row: its token's embedding, that times the gain, and its sum of squares.
_EMBED = """
  using T = __nv_bfloat16;
  const int row = blockIdx.x, rows = gridDim.x, width = embedding_shape[1];
  const int num_sums = width / COLUMNS_A_SUM;
  const T* from = embedding + size_t(tokens[row]) * width;
  T* state = flow + size_t(row) * width;
  T* scaled = state + size_t(rows) * width;
  float* sums = reinterpret_cast<float*>(flow + size_t(2) * rows * width) + size_t(row) * num_sums;
  __shared__ float shared[8];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const T value = from[i];
    state[i] = value;
    scaled[i] = T(float(value) * float(gain[i]));
    sum += float(value) * float(value);
  }
#pragma unroll
  for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(0xffffffff, sum, k);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  for (int i = threadIdx.x; i < num_sums; i += blockDim.x) {
    float total = 0.0f;
    for (int w = 0; w < 8; w++) total += shared[w];
    sums[i] = i ? 0.0f : total;
  }
"""
