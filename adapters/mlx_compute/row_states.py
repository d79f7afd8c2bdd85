"""Row states: how rows hold their KV, behind one small interface.

The executor knows only `RowStates`, so a faster layout (static slots, pages) replaces a
slower one without touching the scheduler, the sampler or the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache
from mlxbun.domain.sampling import RequestId


class Capabilities(Struct, frozen=True):
    """What a model's state allows.  Every layout declares it; nothing is guessed.

    `batchable`: rows may share a forward.  `trimmable`: tokens can be taken back at the end.
    `kinds`: the cache class of each layer, for people.
    """

    batchable: bool
    trimmable: bool
    kinds: tuple[str, ...]


class RowStates(Protocol):
    """The KV state of all rows.  Rows being prefilled are apart; the batch is ordered."""

    capabilities: Capabilities

    @property
    def batch(self) -> Sequence[RequestId]:
        """The rows that decode together, in the order of their logits."""
        ...

    def open(self, row: RequestId) -> None:
        """Give a row an empty state, apart from the batch."""
        ...

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        """Append prompt tokens [1, n] to an open row; return the lazy state to evaluate."""
        ...

    def decode(self, token_ids: mx.array) -> mx.array:
        """Append one token [rows] to every row of the batch; return logits [rows, vocab]."""
        ...

    def start(self, rows: Sequence[RequestId], token_ids: mx.array) -> mx.array:
        """Append one token [k] to k open rows and join them to the batch's end.

        Returns their logits [k, vocab].
        """
        ...

    def keep(self, indices: Sequence[int]) -> None:
        """Keep only these rows of the batch, in this order, and release the others."""
        ...

    def drop(self, row: RequestId) -> None:
        """Release a row that is open and not in the batch."""
        ...

    def clear(self) -> None:
        """Release everything."""
        ...

    def num_bytes(self) -> int:
        """Return the bytes that all states hold, capacity included."""
        ...


class MlxLmRows:
    """The layout of mlx-lm's own cache classes: exact for every architecture it has.

    A row alone keeps its single-row caches, so its graph has no mask; the second row merges
    both into batch caches.  New rows run their first forward apart, as in mlx-lm, and join
    after it.  A join or a leave copies the batch's state.
    """

    def __init__(self, model: Any, *, batch_caches_always: bool) -> None:
        self._model = model
        self._always = batch_caches_always
        self._cache = mlx_lm_cache()
        self._apart: dict[RequestId, list[Any]] = {}
        self._rows: list[RequestId] = []
        self._caches: list[Any] = []
        self._alone = False  # the batch is one row on its single-row caches
        self.capabilities = self._probe()

    @property
    def batch(self) -> Sequence[RequestId]:
        return self._rows

    def open(self, row: RequestId) -> None:
        self._apart[row] = self._fresh()

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        caches = self._apart[row]
        self._model(token_ids, cache=caches)
        return [a for c in caches for a in _arrays(c.state)]

    def decode(self, token_ids: mx.array) -> mx.array:
        logits: mx.array = self._model(token_ids[:, None], cache=self._caches)[:, -1, :]
        return logits

    def start(self, rows: Sequence[RequestId], token_ids: mx.array) -> mx.array:
        singles = [self._apart.pop(row) for row in rows]
        if len(rows) == 1 and not self._rows and not self._always:
            self._rows, self._caches, self._alone = list(rows), singles[0], True
            return self.decode(token_ids)
        joining = _merge(singles)
        logits: mx.array = self._model(token_ids[:, None], cache=joining)[:, -1, :]
        if not self._rows:
            self._caches = joining
        else:
            if self._alone:
                self._caches = _merge([self._caches])
            for running, new in zip(self._caches, joining, strict=True):
                running.extend(new)
        self._rows, self._alone = [*self._rows, *rows], False
        return logits

    def keep(self, indices: Sequence[int]) -> None:
        self._rows = [self._rows[i] for i in indices]
        if not indices:
            self._caches, self._alone = [], False
        elif self._alone:
            return  # the one row stays
        for cache in self._caches:
            cache.filter(mx.array(list(indices)))

    def drop(self, row: RequestId) -> None:
        self._apart.pop(row, None)

    def clear(self) -> None:
        self._apart.clear()
        self._rows, self._caches, self._alone = [], [], False

    def num_bytes(self) -> int:
        groups = [*self._apart.values(), self._caches]
        return sum(cache.nbytes for caches in groups for cache in caches)

    def _fresh(self) -> list[Any]:
        caches: list[Any] = self._cache.make_prompt_cache(self._model)
        return caches

    def _probe(self) -> Capabilities:
        caches = self._fresh()
        return Capabilities(
            batchable=all(hasattr(cache, "merge") for cache in caches),
            trimmable=bool(self._cache.can_trim_prompt_cache(caches)),
            kinds=tuple(type(cache).__name__ for cache in caches),
        )


def _merge(singles: Sequence[list[Any]]) -> list[Any]:
    return [caches[0].merge(list(caches)) for caches in zip(*singles, strict=True)]


def _arrays(state: Any) -> list[mx.array]:
    if isinstance(state, mx.array):
        return [state]
    if isinstance(state, list | tuple):
        return [a for part in state for a in _arrays(part)]
    return []
