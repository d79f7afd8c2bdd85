"""The kernels of a fused decode step in MLX's own operations: what they compute."""

from __future__ import annotations

import mlx.core as mx

from doubles import paged_attention
from mlxbun.adapters.mlx_compute.fused_decode.decoder import Decoder
from mlxbun.adapters.mlx_compute.fused_decode.step import Flow

MOST = 4  # rows for which the double "pays"


def unsupported(decoder: Decoder) -> str | None:
    return None


def pays(num_rows: int, weight: mx.array) -> bool:
    return num_rows <= MOST


def begin(tokens: mx.array, embedding: mx.array, gain: mx.array) -> Flow:
    return _flow(embedding[tokens], gain)


def normed(flow: Flow, weight: mx.array, bias: mx.array | None, eps: float) -> mx.array:
    assert flow.packed is not None
    _, scaled, squares = flow.packed
    mean = squares[:, :2].sum(axis=1, keepdims=True) / scaled.shape[1]
    out = (scaled @ weight.T) * mx.rsqrt(mean + eps)
    return out if bias is None else out + bias


def gated(flow: Flow, weight: mx.array, eps: float) -> mx.array:
    gate, up = mx.split(normed(flow, weight, None, eps), 2, axis=-1)
    return gate * mx.sigmoid(gate) * up


def added(x: mx.array, weight: mx.array, flow: Flow, gain: mx.array) -> Flow:
    assert flow.packed is not None
    return _flow(flow.packed[0] + x @ weight.T, gain)


def attend_joint(
    joint: mx.array,
    turns: mx.array,
    gains: mx.array | None,
    keys: mx.array,
    values: mx.array,
    places: mx.array,
    scale: float,
    eps: float,
) -> mx.array:
    num_key_heads, dim = keys.shape[1], keys.shape[3]
    heads = joint.reshape(len(joint), -1, 1, dim)
    num_heads = heads.shape[1] - 2 * num_key_heads
    queries, new_keys, new_values = mx.split(heads, [num_heads, num_heads + num_key_heads], axis=1)
    if gains is not None:
        queries = mx.fast.rms_norm(queries, gains[0], eps)
        new_keys = mx.fast.rms_norm(new_keys, gains[1], eps)
    out = paged_attention.attend(
        _rotated(queries, turns),
        _rotated(new_keys, turns),
        new_values,
        keys,
        values,
        places[:, 1:],
        places[:, 0],
        scale,
    )
    return out.reshape(len(joint), num_heads * dim)


def _flow(state: mx.array, gain: mx.array) -> Flow:
    half = state.shape[1] // 2  # sums of two parts, as of blocks
    squares = mx.stack([(part**2).sum(axis=1) for part in mx.split(state, [half], axis=1)], axis=1)
    rest = mx.full((len(state), state.shape[1] - 2), mx.nan)
    return Flow(gain, mx.stack([state, state * gain, mx.concatenate([squares, rest], axis=1)]))


def _rotated(x: mx.array, turns: mx.array) -> mx.array:
    cosines, sines = mx.split(turns[:, None, None, :], 2, axis=-1)
    left, right = mx.split(x, 2, axis=-1)
    return mx.concatenate([left * cosines - right * sines, left * sines + right * cosines], axis=-1)
