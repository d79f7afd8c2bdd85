"""Decode attention over paged keys and values, as kernels for CUDA and for Metal.

One new token a row attends to that row's tokens, which lie in pages of a pool.  The kernel
reads live tokens only, takes the new key and value as they come from the model, and writes
them into the pool *in place*.  MLX has no such operation: an array that a step in flight still
reads is copied before it is updated, so a pipelined loop would copy the whole pool each step.
Writing behind MLX's back is sound here because only columns beyond a row's length are written,
which nobody reads before the next step, and every step depends on the tokens of the last.

Algorithm: attention by parts with a running maximum (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"), tokens divided among groups of 8 threads, then among
blocks where few rows would leave the device idle (Dao et al. 2023, "Flash-Decoding").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import mlx.core as mx

from mlxbun.adapters.mlx_compute.attention_sources import CUDA, METAL, Source

PAGE = 64  # tokens
_LANES = 8  # threads that share a token
_BLOCKS = 264  # that keep a large device busy: two on each of its processors
_SPLIT = 256  # tokens at least for each part
_MAX_QUERIES = 4  # that one block holds for its key head: registers end there
_WARPS = 4
_MAX_UNROLL = 4  # tokens that a group of threads takes at a time


def unsupported(dim: int, dtype: mx.Dtype) -> str | None:
    """Return why the kernels cannot serve heads of `dim` elements here, None if they can."""
    if source() is None:
        return "there is no custom kernel for this device"
    if dtype not in (mx.float32, mx.bfloat16, mx.float16):
        return f"keys are {dtype}"
    step = _LANES * 16 // dtype.size
    if dim % step or dim > 256:
        return f"heads of {dim} elements: the kernel takes multiples of {step} up to 256"
    return None


def source() -> Source | None:
    """Return the kernels' source for the default device, None for a CPU."""
    if mx.default_device() == mx.Device(mx.cpu):
        return None
    return METAL if mx.metal.is_available() else CUDA


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
    """Return attention [rows, heads, 1, dim]; put the new token into the pool.

    `queries` [rows, heads, 1, dim]; `new_keys`, `new_values` [rows, key heads, 1, dim];
    `keys`, `values` [pages, key heads, PAGE, dim]; `table` [rows, pages a row] int32;
    `lengths` [rows] int32, tokens before the new one.
    """
    return _attended(
        "attend",
        [queries, new_keys, new_values, keys, values, table, lengths],
        keys,
        table.shape[1],
        queries.shape[1],
        queries.shape,
        scale,
    )


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
    """Return attention [rows, heads * dim] of new tokens as their projection left them.

    `joint` [rows, (heads + 2 * key heads) * dim]: queries, keys, values.  Queries and keys are
    normed by `gains` [2, dim] where there are any, and rotated: `turns` [rows, dim] float32 has
    the cosines and then the sines of a row's position.  `places` [rows, 1 + pages a row] int32 is
    how many tokens a row has before the new one, and its pages.  The rest is as in `attend`.
    """
    num_key_heads, dim = keys.shape[1], keys.shape[3]
    num_heads = joint.shape[1] // dim - 2 * num_key_heads
    return _attended(
        "attend_joint" if gains is None else "attend_joint_normed",
        [joint, turns, *([] if gains is None else [gains]), keys, values, places],
        keys,
        places.shape[1] - 1,
        num_heads,
        (len(joint), num_heads * dim),
        scale,
        eps,
    )


def _attended(
    name: str,
    inputs: list[mx.array],
    keys: mx.array,
    pages_a_row: int,
    num_heads: int,
    shape: tuple[int, ...],
    scale: float,
    eps: float = 0.0,
) -> mx.array:
    """Return attention of `shape`, which is [rows, heads, dim] in effect."""
    num_rows, dtype = shape[0], keys.dtype
    _, num_key_heads, _, dim = keys.shape
    each = _queries_a_block(num_heads // num_key_heads)
    blocks = num_heads // each
    splits = _splits(num_rows * blocks, pages_a_row * PAGE)
    # Constants are few, so that a model needs few compilations, of seconds each: what varies
    # from step to step the kernel reads from shapes.
    template = [
        ("T", dtype),
        ("DIM", dim),
        ("KEY_HEADS", num_key_heads),
        ("QUERIES", each),
        ("PAGE", PAGE),
        ("WARPS", _WARPS),
        ("UNROLL", _unroll(each, dim, dtype.size)),
    ]
    parts = (num_rows, num_heads, splits)
    shapes: Sequence[tuple[int, ...]]
    if splits == 1:
        shapes, dtypes = [shape], [dtype]
    else:
        shapes, dtypes = [(*parts, dim), (*parts, 2)], [mx.float32, mx.float32]
    found = _kernel(name if splits == 1 else f"{name}_parts", scale, eps)(
        inputs=inputs,
        template=template,
        grid=(32 * _WARPS * blocks, num_rows, splits),
        threadgroup=(32 * _WARPS, 1, 1),
        output_shapes=shapes,
        output_dtypes=dtypes,
    )
    if splits == 1:
        return found[0]
    merged = _kernel("merge", scale, eps)(
        inputs=found,
        template=[("T", dtype), ("DIM", dim)],
        grid=(dim, num_rows * num_heads, 1),
        threadgroup=(dim, 1, 1),
        output_shapes=[shape],
        output_dtypes=[dtype],
    )
    return merged[0]


def fill(
    new_keys: mx.array,
    new_values: mx.array,
    keys: mx.array,
    values: mx.array,
    pages: mx.array,
    length: int,
) -> mx.array:
    """Copy a row's first `length` tokens [1, key heads, n, dim] into `pages` of the pool.

    Returns a zero [1] that whoever reads the pool next must depend on.
    """
    _, num_heads, _, dim = new_keys.shape
    per_token = dim * new_keys.dtype.size // 16
    done = _kernel("fill", 1.0, 0.0)(
        inputs=[new_keys, new_values, keys, values, pages, mx.array([length], dtype=mx.int32)],
        template=[("HEADS", num_heads), ("PER_TOKEN", per_token), ("PAGE", PAGE)],
        grid=(256 * -(-length * per_token // 256), num_heads, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[(1,)],
        output_dtypes=[mx.int32],
    )
    return done[0]


def _queries_a_block(per_key_head: int) -> int:
    """Return how many query heads share a block, and so one reading of their key head."""
    return next(n for n in range(min(per_key_head, _MAX_QUERIES), 0, -1) if per_key_head % n == 0)


def _splits(num_blocks: int, num_tokens: int) -> int:
    """Return into how many parts a row's tokens are divided."""
    return max(1, min(_BLOCKS // num_blocks, num_tokens // _SPLIT, 32))


def _unroll(queries: int, dim: int, size: int) -> int:
    """Return how many tokens a group takes at a time: as many as registers hold."""
    registers = 64 if queries * dim <= 256 else 32
    return max(1, min(_MAX_UNROLL, registers // (dim * size // 16)))


@cache
def _kernel(name: str, scale: float, eps: float) -> Callable[..., list[mx.array]]:
    text = source()
    assert text is not None
    # A kernel is compiled once for its name and template, so what else differs is in the name.
    unique = f"mlxbun_{name}_{scale.hex()}_{eps.hex()}"
    unique = unique.replace(".", "p").replace("-", "m").replace("+", "")
    return text.kernel(name, unique, scale, eps)
