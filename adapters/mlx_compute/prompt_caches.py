"""The caches of rows that prefill: mlx-lm's single-row classes, apart from the batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute import prompt_attention
from mlxbun.adapters.mlx_compute.cut_layers import is_plain, parts
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache, route_attention
from mlxbun.domain.sampling import RequestId

log = logging.getLogger("mlxbun.compute")


class PromptCaches:
    """One list of caches, a cache a layer, for every row that has not started."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._classes = mlx_lm_cache()
        self._rows: dict[RequestId, list[Any]] = {}
        self._attends_quickly = False

    def quicken(self) -> None:
        """Let plain caches attend by `prompt_attention` from now on."""
        route_attention(self._model)
        self._attends_quickly = True

    def fresh(self) -> list[Any]:
        """Return empty caches for one row."""
        caches: list[Any] = self._classes.make_prompt_cache(self._model)
        if self._attends_quickly:
            for cache in filter(is_plain, parts(caches)):
                cache.attend = prompt_attention.attend
        return caches

    def open(self, row: RequestId, caches: list[Any] | None = None) -> None:
        self._rows[row] = caches if caches is not None else self.fresh()

    def of(self, row: RequestId) -> list[Any] | None:
        """Return a row's caches, None if it is not here."""
        return self._rows.get(row)

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        """Append prompt tokens [1, n]; return the lazy state to evaluate.

        Nobody reads the logits, so their product with the vocabulary is never computed.
        """
        caches = self._rows[row]
        self._model(token_ids, cache=caches)
        return [array for cache in caches for array in _arrays(cache.state)]

    def extend_together(
        self, rows: Sequence[RequestId], token_ids: mx.array, lengths: Sequence[int]
    ) -> list[mx.array]:
        """Fill several empty rows in one forward; return the lazy state to evaluate.

        `token_ids` [k, n] are padded at the end, which no token before it sees.  Every row gets
        a copy of its own keys and values, so that it does not keep the others' in memory.
        """
        # Keeps what the forward computes as it is, without room for more.
        shared = [self._classes.ConcatenateKVCache() for _ in self.fresh()]
        self._model(token_ids, cache=shared)
        state: list[mx.array] = []
        for line, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            for cache, batch in zip(self._rows[row], shared, strict=True):
                own = [
                    mx.contiguous(array[line : line + 1, :, :length])
                    for array in (batch.keys, batch.values)
                ]
                cache.state = (*own, length)
                state += own
        return state

    def shares_prompts(self) -> bool:
        """Return whether `extend_together` gives what `extend` gives: tried, never guessed."""
        if not self.only_plain():
            return False
        try:
            return self._agree()
        except Exception as error:  # the model's code wants what a shared forward does not have
            log.info("a forward shared by two prompts was tried and broke", exc_info=error)
            return False

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

    def partly_plain(self) -> bool:
        """Return whether some layer keeps a plain KVCache, and another something else or more."""
        return not self.only_plain() and any(map(is_plain, parts(self.fresh())))

    def kinds(self) -> str:
        """Return the names of the classes that layers keep."""
        return "+".join(dict.fromkeys(type(cache).__name__ for cache in self.fresh()))

    def trimmable(self) -> bool:
        return bool(self._classes.can_trim_prompt_cache(self.fresh()))

    def _agree(self) -> bool:
        """Read two unequal prompts together and alone; compare what every layer keeps."""
        tried = PromptCaches(self._model)
        rows, prompts = [RequestId("trial-1"), RequestId("trial-2")], [[5, 6, 7], [3, 9, 4, 8, 5]]
        apart: list[mx.array] = []
        for row, prompt in zip(rows, prompts, strict=True):
            tried.open(row)
            tried.extend(row, mx.array([prompt]))
            apart += [
                array[:, :, : len(prompt)]
                for cache in tried.take(row)
                for array in (cache.keys, cache.values)
            ]
            tried.open(row)
        padded = mx.array([[*prompt, 0, 0][:5] for prompt in prompts])
        together = tried.extend_together(rows, padded, [len(prompt) for prompt in prompts])
        # Rounding: half precision keeps 8 to 11 bits, and sums run in another order.
        allowed = 1e-3 if apart[0].dtype == mx.float32 else 0.1
        close = [
            mx.abs(one - other).max() <= allowed * mx.abs(one).max()
            for one, other in zip(apart, together, strict=True)
        ]
        return bool(mx.all(mx.stack(close)).item())


class RowsApart:
    """What every layout does alike with rows that have not started; see `RowStates`."""

    def __init__(self, model: Any) -> None:
        self._apart = PromptCaches(model)

    def kinds(self) -> str:
        """Return the names of the cache classes that the model's layers have."""
        return self._apart.kinds()

    def quicken(self) -> None:
        """Let prompts be read the quick way of CPUs, which rounds otherwise than mlx-lm's."""
        self._apart.quicken()

    def open(self, row: RequestId, caches: list[Any] | None = None) -> None:
        self._apart.open(row, caches)

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        return self._apart.extend(row, token_ids)

    def shares_prompts(self) -> bool:
        return self._apart.shares_prompts()

    def extend_together(
        self, rows: Sequence[RequestId], token_ids: mx.array, lengths: Sequence[int]
    ) -> list[mx.array]:
        return self._apart.extend_together(rows, token_ids, lengths)

    def drop(self, row: RequestId) -> None:
        self._apart.drop(row)


def _arrays(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, list | tuple):
        return [a for part in state for a in _arrays(part)]
    return []
