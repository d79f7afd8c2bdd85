"""The kernels of a fused decode step, on CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute import few_rows_source, paged_attention
from mlxbun.adapters.mlx_compute.few_rows_blocking import MAX_ROWS, Blocking, blocking
from mlxbun.adapters.mlx_compute.few_rows_source import Form
from mlxbun.adapters.mlx_compute.fused_decode.decoder import Decoder, Projection
from mlxbun.adapters.mlx_compute.fused_decode.step import Flow
from mlxbun.adapters.mlx_compute.loading import on_cuda

attend_joint = paged_attention.attend_joint

_FEW = 32  # rows for which our product is the faster one whatever the weight
_LARGE = 24 << 20  # bytes of a weight, for more rows
_THREADS = 256  # of a block that embeds a token
_PAIRS = (64, 128, 256)  # elements of a head whose halves the attention kernel finds


def unsupported(decoder: Decoder) -> str | None:
    if not on_cuda():
        return "its kernels are for CUDA"
    if decoder.embedding.dtype != mx.bfloat16:
        return f"its weights are {decoder.embedding.dtype}, kernels for bfloat16"
    if decoder.dim not in _PAIRS:
        return f"heads of {decoder.dim} elements"
    first = decoder.layers[0]
    for by, gated, adds in (
        (first.joint, False, False),
        (first.out, False, True),
        (first.gated, True, False),
        (first.down, False, True),
        (decoder.head, False, False),
    ):
        if not _fits(by, gated, adds):
            return f"a product of {by.weight.shape} weights does not divide"
    return None


def pays(num_rows: int, weight: mx.array) -> bool:
    return num_rows <= _FEW or (num_rows <= MAX_ROWS and weight.nbytes <= _LARGE)


def begin(tokens: mx.array, embedding: mx.array, gain: mx.array) -> Flow:
    num_rows, width = len(tokens), len(gain)
    state, scaled, squares = _embed()(
        inputs=[tokens, embedding, gain],
        grid=(_THREADS * num_rows, 1, 1),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(num_rows, width), (num_rows, width), (num_rows, 1)],
        output_dtypes=[gain.dtype, gain.dtype, mx.float32],
    )
    return Flow(state, gain, scaled, squares)


def normed(flow: Flow, weight: mx.array, bias: mx.array | None, eps: float) -> mx.array:
    way = _way(len(flow.state), weight)
    form = Form("bfloat16", way, normed=True, biased=bias is not None, eps=eps)
    inputs = [flow.scaled, weight, flow.squares, *([bias] if bias is not None else [])]
    return _run(form, inputs, [(len(flow.state), len(weight))])[0]


def gated(flow: Flow, weight: mx.array, eps: float) -> mx.array:
    way = _way(len(flow.state), weight, gated=True)
    form = Form("bfloat16", way, normed=True, gated=True, eps=eps)
    inputs = [flow.scaled, weight, flow.squares]
    return _run(form, inputs, [(len(flow.state), len(weight) // 2)])[0]


def added(x: mx.array, weight: mx.array, state: mx.array, gain: mx.array) -> Flow:
    way = _way(len(x), weight, adds=True)
    sums = (len(x), len(weight) // way.height)
    form = Form("bfloat16", way, adds=True)
    out = _run(form, [x, weight, state, gain], [state.shape, state.shape, sums])
    return Flow(out[0], gain, out[1], out[2])


def _run(form: Form, inputs: list[Any], shapes: list[tuple[int, ...]]) -> list[mx.array]:
    way, num_outer = form.blocking, len(inputs[1])
    dtype = inputs[1].dtype
    found: list[mx.array] = few_rows_source.kernel(form)(
        inputs=inputs,
        grid=(way.threads * (num_outer // way.height), 1, 1),
        threadgroup=(way.threads, 1, 1),
        output_shapes=shapes,
        output_dtypes=[dtype, dtype, mx.float32][: len(shapes)],
    )
    return found


def _way(num_rows: int, weight: mx.array, *, gated: bool = False, adds: bool = False) -> Blocking:
    way = blocking(num_rows, *weight.shape, gated=gated, adds=adds)
    assert way is not None, "unsupported() was not asked"
    return way


def _fits(by: Projection, gated: bool, adds: bool) -> bool:
    return blocking(1, *by.weight.shape, gated=gated, adds=adds) is not None


@cache
def _embed() -> Any:
    return mx.fast.cuda_kernel(
        name="mlxbun_embed",
        input_names=["tokens", "embedding", "gain"],
        output_names=["state", "scaled", "squares"],
        source=_EMBED,
    )


# A block takes a row: its token's embedding, that times the gain, and its sum of squares.
_EMBED = """
  using T = __nv_bfloat16;
  const int row = blockIdx.x, width = embedding_shape[1];
  const T* from = embedding + size_t(tokens[row]) * width;
  __shared__ float shared[8];
  float sum = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    const T value = from[i];
    state[size_t(row) * width + i] = value;
    scaled[size_t(row) * width + i] = T(float(value) * float(gain[i]));
    sum += float(value) * float(value);
  }
#pragma unroll
  for (int k = 16; k; k /= 2) sum += __shfl_xor_sync(0xffffffff, sum, k);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; w++) sum += shared[w];
    squares[row] = sum;
  }
"""
