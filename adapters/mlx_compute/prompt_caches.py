"""The caches of rows that prefill: mlx-lm's single-row classes, apart from the batch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache
from mlxbun.domain.sampling import RequestId


class PromptCaches:
    """One list of caches, a cache a layer, for every row that has not started."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._classes = mlx_lm_cache()
        self._rows: dict[RequestId, list[Any]] = {}

    def fresh(self) -> list[Any]:
        """Return empty caches for one row."""
        caches: list[Any] = self._classes.make_prompt_cache(self._model)
        return caches

    def open(self, row: RequestId) -> None:
        self._rows[row] = self.fresh()

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        """Append prompt tokens [1, n]; return the lazy state to evaluate.

        Nobody reads the logits, so their product with the vocabulary is never computed.
        """
        caches = self._rows[row]
        self._model(token_ids, cache=caches)
        return [array for cache in caches for array in _arrays(cache.state)]

    def take(self, row: RequestId) -> list[Any]:
        """Hand over a row's caches."""
        return self._rows.pop(row)

    def drop(self, row: RequestId) -> None:
        """Release a row.  Unknown rows are ignored."""
        self._rows.pop(row, None)

    def clear(self) -> None:
        self._rows.clear()

    def num_bytes(self) -> int:
        """Return what all rows hold, capacity included."""
        return sum(int(cache.nbytes) for caches in self._rows.values() for cache in caches)

    def only_plain(self) -> bool:
        """Return whether every layer keeps a plain KVCache."""
        return all(type(cache) is self._classes.KVCache for cache in self.fresh())

    def kinds(self) -> str:
        """Return the names of the classes that layers keep."""
        return "+".join(dict.fromkeys(type(cache).__name__ for cache in self.fresh()))

    def trimmable(self) -> bool:
        return bool(self._classes.can_trim_prompt_cache(self.fresh()))


def _arrays(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, list | tuple):
        return [a for part in state for a in _arrays(part)]
    return []
