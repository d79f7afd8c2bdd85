"""Attention of a prompt's tokens, for MLX's CPU build.

MLX's softmax calls exp one number at a time there, which is most of what a long prompt costs.
Queries go in blocks, so that what a block's scores need stays near the processor; a block sees
no further than its last token, and only its own tokens are masked.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.quick_exp import bounded_exp

BLOCK = 64  # queries
_FEW = 4096  # scores: fewer are quicker MLX's way
_NEVER = -1e5  # beside scores; what `bounded_exp` takes


def attend(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: Any,
    sinks: mx.array | None,
) -> mx.array:
    """Return causal attention [rows, heads, tokens, dim], or MLX's for any other mask.

    `queries` [rows, heads, tokens, dim]; `keys`, `values` [rows, key heads, columns, dim], the
    tokens' own at their end.
    """
    rows, heads, num_tokens, _ = queries.shape
    columns = keys.shape[2]
    few = rows * heads * num_tokens * columns < _FEW
    if few or mask != "causal" or sinks is not None or queries.dtype != mx.float32:
        return mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )
    past, scaled = columns - num_tokens, queries * scale
    blocks: list[mx.array] = []
    for start in range(0, num_tokens, BLOCK):
        end = min(start + BLOCK, num_tokens)
        seen = keys[:, :, : past + end], values[:, :, : past + end]
        blocks.append(_block(scaled[:, :, start:end], *seen))
    return mx.concatenate(blocks, axis=2) if len(blocks) > 1 else blocks[0]


def _block(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """Return the attention of queries whose own keys are the last ones."""
    rows, heads, num_tokens, dim = queries.shape
    _, key_heads, columns, _ = keys.shape
    past, group = columns - num_tokens, heads // key_heads
    # Heads that share keys are rows of one product.
    grouped = queries.reshape(rows, key_heads, group * num_tokens, dim)
    own = grouped @ keys[:, :, past:].swapaxes(-1, -2)
    own = own.reshape(rows, key_heads, group, num_tokens, num_tokens) + _later(num_tokens)
    own = own.reshape(rows, key_heads, group * num_tokens, num_tokens)
    if not past:
        weights = _raised(own, own.max(axis=-1, keepdims=True))
        attended = (weights @ values) / weights.sum(axis=-1, keepdims=True)
        return attended.reshape(rows, heads, num_tokens, values.shape[-1])
    before = grouped @ keys[:, :, :past].swapaxes(-1, -2)
    most = mx.maximum(before.max(axis=-1, keepdims=True), own.max(axis=-1, keepdims=True))
    before, own = _raised(before, most), _raised(own, most)
    total = before.sum(axis=-1, keepdims=True) + own.sum(axis=-1, keepdims=True)
    attended = (before @ values[:, :, :past] + own @ values[:, :, past:]) / total
    return attended.reshape(rows, heads, num_tokens, values.shape[-1])


def _later(num_tokens: int) -> mx.array:
    """Return what keeps a token [i] from those after it [j]."""
    at = mx.arange(num_tokens)
    return mx.where(at[:, None] >= at[None], 0.0, _NEVER)


@mx.compile
def _raised(scores: mx.array, most: mx.array) -> mx.array:
    return bounded_exp(scores - most)
