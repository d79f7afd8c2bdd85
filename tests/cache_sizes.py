"""How many bytes of state a model's tokens have, by mlx-lm's own caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from mlxbun.adapters.mlx_compute import loading


def sizes(folder: Path) -> tuple[int, int]:
    """Return the bytes of a token in layers that can be cut, and of all else, as mlx-lm has it."""
    model = loading.load(folder, "native").model
    caches = make_prompt_cache(model)
    model(mx.arange(5, 45)[None], cache=caches)
    flat = [part for cache in caches for part in getattr(cache, "caches", [cache])]
    token = rest = 0
    for cache in flat:
        if isinstance(cache, KVCache):
            token += _of_token(cache)
        elif isinstance(cache, RotatingKVCache):
            rest += _of_token(cache) * cache.max_size
        else:
            rest += cache.nbytes
    return token, rest


def _of_token(cache: Any) -> int:
    return int((cache.keys.nbytes + cache.values.nbytes) // cache.keys.shape[2])
