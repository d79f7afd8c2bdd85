"""Attention of one token a row over slots.

MLX's own, except on a CPU with more than a few scores: there its softmax takes most of the time,
since it calls exp one number at a time, and grouped query heads are repeated.  Here scores are
made for all queries of a key head at once, and masked, shifted and raised in one compiled loop.
"""

from __future__ import annotations

import mlx.core as mx

from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.quick_exp import bounded_exp

_FEW = 4096  # scores: fewer are quicker MLX's way
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
    few = slots * heads * columns < _FEW
    if few or sinks is not None or not on_cpu() or queries.dtype != mx.float32:
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )
    grouped = queries.reshape(slots, key_heads, heads // key_heads, dim)
    scores = (grouped @ keys.swapaxes(-1, -2)) * scale + mx.where(mask, 0.0, _NEVER)
    weights = bounded_exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (weights @ values) / weights.sum(axis=-1, keepdims=True)
    return attended.reshape(slots, heads, 1, values.shape[-1])
