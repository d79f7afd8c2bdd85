"""Which layers of a row can be cut by tokens, and what a copy takes of those that cannot.

A plain KVCache holds every token of the row and can be cut anywhere; a window that has wrapped
and a recurrent state are of the row's last token and no other.  Layers may have both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def parts(caches: Sequence[Any]) -> Iterator[Any]:
    """Yield the caches of all layers, those within a CacheList one by one."""
    for cache in caches:
        if type(cache).__name__ == "CacheList":
            yield from parts(cache.caches)
        else:
            yield cache


def is_plain(cache: Any) -> bool:
    return type(cache).__name__ == "KVCache"


def cut_layers(caches: Sequence[Any], num_tokens: int) -> list[Any]:
    """Return the caches that hold `num_tokens` tokens, all of a row, and can be cut."""
    return [cache for cache in parts(caches) if _is_cut(cache, num_tokens)]


def state_from(cache: Any, start: int, num_tokens: int) -> Any:
    """Return a cache's state, without what it has of the first `start` tokens if it can be cut.

    `num_tokens` are the row's.  Room for more tokens is left out, and what a window has beyond
    its size, which its next write would drop: a chunk of a prompt leaves as much behind.
    """
    match type(cache).__name__:
        case "CacheList":
            return [(state_from(c, start, num_tokens), type(c).__name__) for c in cache.caches]
        case "KVCache" if cache.keys is not None:
            keys, values, offset = cache.state
            first = start if _is_cut(cache, num_tokens) else 0
            return (keys[:, :, first:offset], values[:, :, first:offset], offset)
        case "RotatingKVCache" if cache.keys is not None:
            return _window(cache)
        case _:
            return cache.state


def _is_cut(cache: Any, num_tokens: int) -> bool:
    return is_plain(cache) and cache.keys is not None and cache.offset == num_tokens


def _window(cache: Any) -> Any:
    keys, values, offset, keep, size, at = cache.state
    extra = keys.shape[2] - size
    if extra > 0:  # a chunk was appended, in order; `_trim` is what the next write does
        return (cache._trim(extra, keys), cache._trim(extra, values), offset, keep, size, size)
    if offset < keys.shape[2]:  # it has not wrapped
        return (keys[:, :, :offset], values[:, :, :offset], offset, keep, size, at)
    return cache.state
