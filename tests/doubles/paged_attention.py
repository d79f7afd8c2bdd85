"""The kernels of paged_attention in numpy: what they compute, and that they write in place."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

PAGE = 64


def unsupported(dim: int, dtype: mx.Dtype) -> str | None:
    return None if dtype == mx.float32 else f"numpy's double of the kernels has no {dtype}"


def attend(
    queries: mx.array,
    new_keys: mx.array,
    new_values: mx.array,
    keys: mx.array,
    values: mx.array,
    table: mx.array,
    lengths: mx.array,
    scale: float,
) -> mx.array:
    mx.eval(queries, new_keys, new_values, keys, values, table, lengths)
    pool_keys, pool_values = _view(keys), _view(values)
    q, pages, tokens = np.array(queries), np.array(table), np.array(lengths)
    out = np.zeros_like(q)
    repeat = q.shape[1] // pool_keys.shape[1]
    for row, length in enumerate(tokens):
        page, place = pages[row, length // PAGE], length % PAGE
        pool_keys[page, :, place] = np.array(new_keys)[row, :, 0]
        pool_values[page, :, place] = np.array(new_values)[row, :, 0]
        where = pages[row, np.arange(length + 1) // PAGE], np.arange(length + 1) % PAGE
        for head in range(q.shape[1]):
            k = pool_keys[where[0], head // repeat, where[1]]
            v = pool_values[where[0], head // repeat, where[1]]
            scores = k @ q[row, head, 0] * scale
            weights = np.exp(scores - scores.max())
            out[row, head, 0] = weights @ v / weights.sum()
    return mx.array(out)


def fill(
    new_keys: mx.array,
    new_values: mx.array,
    keys: mx.array,
    values: mx.array,
    pages: mx.array,
    length: int,
) -> mx.array:
    mx.eval(new_keys, new_values, keys, values, pages)
    for pool, new in ((_view(keys), np.array(new_keys)), (_view(values), np.array(new_values))):
        for token in range(length):
            pool[int(np.array(pages)[token // PAGE]), :, token % PAGE] = new[0, :, token]
    return mx.zeros((1,), mx.int32)


def _view(array: mx.array) -> Any:
    """Return numpy's window on an evaluated array: writing into it writes into the array."""
    return np.array(array, copy=False)
