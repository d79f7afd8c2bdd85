"""Attention of one token a row over slots.

MLX's own, except on a CPU, where that is a dozen operations, of which grouped query heads are
repeated.  Here scores are made for all queries of a key head at once.  Where they are many, a
softmax takes most of the time, since MLX calls exp one number at a time: those are masked, shifted
and raised in one compiled loop.
"""

from __future__ import annotations

import mlx.core as mx

from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.quick_exp import bounded_exp

_FEW = 4096  # scores: fewer are quicker by MLX's softmax
_NEVER = -1e5  # beside scores; what `bounded_exp` takes


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    mask: mx.array,
    scale: float,
    sinks: mx.array | None,
) -> mx.array:
    """Return attention [slots, heads, 1, dim].

    `queries` [slots, heads, 1, dim]; `keys`, `values` [slots, key heads, columns, dim]; `mask`
    [slots, 1, 1, columns] is true where a column is the slot's own, which at least one is.
    """
    slots, heads, _, dim = queries.shape
    _, key_heads, columns, _ = keys.shape
    if sinks is not None or not on_cpu() or queries.dtype != mx.float32:
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )
    grouped = queries.reshape(slots, key_heads, heads // key_heads, dim)
    attended = attend_grouped(grouped, keys, values, mask, scale)
    return attended.reshape(slots, heads, 1, values.shape[-1])


def attend_grouped(
    queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array, scale: float
) -> mx.array:
    """Return attention [slots, key heads, each, dim] of float32 on a CPU.

    `queries` [slots, key heads, each, dim], each being the queries of one key head; the rest as in
    `attend`.
    """
    slots, key_heads, each, _ = queries.shape
    scores = queries @ keys.swapaxes(-1, -2)
    if slots * key_heads * each * keys.shape[2] < _FEW:
        scores = mx.where(mask, scores * scale, -mx.inf)
        return mx.softmax(scores, axis=-1, precise=True) @ values
    scores = scores * scale + mx.where(mask, 0.0, _NEVER)
    weights = bounded_exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights @ values) / weights.sum(axis=-1, keepdims=True)
