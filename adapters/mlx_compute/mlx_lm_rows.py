"""Row states on mlx-lm's own cache classes: exact for every architecture that it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.prompt_caches import RowsApart
from mlxbun.adapters.mlx_compute.row_states import Batched, Capabilities
from mlxbun.domain.sampling import RequestId


class MlxLmRows(RowsApart):
    """Grows with every token, left-padded.  A join or a leave copies the batch's state.

    A row alone keeps its single-row caches, so its graph has no mask; the second row merges
    both into batch caches.  New rows run their first forward apart, as in mlx-lm, and join
    after it, so that the same batch composition gives the same tokens.
    """

    def __init__(self, model: Any, *, batch_caches_always: bool) -> None:
        self._model = model
        self._always = batch_caches_always
        super().__init__(model)
        self._rows: list[RequestId] = []
        self._caches: list[Any] = []
        self._alone = False  # the batch is one row on its single-row caches
        self.capabilities = Capabilities(
            name=f"mlx-lm: {self._apart.kinds()}",
            batchable=all(hasattr(cache, "merge") for cache in self._apart.fresh()),
            trimmable=self._apart.trimmable(),
            compiled=False,
            cuts="block" if self._apart.only_plain() else "boundary",
            mixed=self._apart.partly_plain(),
        )

    @property
    def batch(self) -> Sequence[RequestId | None]:
        return self._rows

    def caches(self, row: RequestId) -> list[Any]:
        apart = self._apart.of(row)
        if apart is not None:
            return apart
        place = self._rows.index(row)
        return self._caches if self._alone else [cache.extract(place) for cache in self._caches]

    def shares_prompts(self) -> bool:
        return not self._always and super().shares_prompts()

    def forward(
        self,
        stay: Sequence[RequestId],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> Batched:
        moved = None
        logits: list[mx.array] = []
        if len(stay) != len(self._rows):
            moved = self._keep(stay)
            tokens = tokens[mx.array(moved)] if tokens is not None and moved else None
        if self._rows:
            assert tokens is not None
            logits.append(self._decode(tokens))
        if join:
            assert join_tokens is not None
            moved = [*(moved if moved is not None else range(len(self._rows)))]
            moved += [-1] * len(join)
            logits.append(self._start(join, join_tokens))
        return Batched(logits[0] if len(logits) == 1 else mx.concatenate(logits), moved)

    def keep_none(self) -> None:
        self._rows, self._caches, self._alone = [], [], False

    def clear(self) -> None:
        self._apart.clear()
        self.keep_none()

    def num_bytes(self) -> int:
        return self._apart.num_bytes() + sum(int(cache.nbytes) for cache in self._caches)

    def _decode(self, tokens: mx.array) -> mx.array:
        logits: mx.array = self._model(tokens[:, None], cache=self._caches)[:, -1, :]
        return logits

    def _start(self, rows: Sequence[RequestId], tokens: mx.array) -> mx.array:
        singles = [self._apart.take(row) for row in rows]
        if len(rows) == 1 and not self._rows and not self._always:
            self._rows, self._caches, self._alone = list(rows), singles[0], True
            return self._decode(tokens)
        joining = _merge(singles)
        logits: mx.array = self._model(tokens[:, None], cache=joining)[:, -1, :]
        if not self._rows:
            self._caches = joining
        else:
            if self._alone:
                self._caches = _merge([self._caches])
            for running, new in zip(self._caches, joining, strict=True):
                running.extend(new)
        self._rows, self._alone = [*self._rows, *rows], False
        return logits

    def _keep(self, stay: Sequence[RequestId]) -> list[int]:
        """Let go of the rows that do not stay; return the places of those that do."""
        wanted = set(stay)
        kept = [i for i, row in enumerate(self._rows) if row in wanted]
        if not kept:
            self.keep_none()
        else:
            self._rows = [self._rows[i] for i in kept]
            for cache in self._caches:
                cache.filter(mx.array(kept))
        return kept


def _merge(singles: Sequence[list[Any]]) -> list[Any]:
    return [caches[0].merge(list(caches)) for caches in zip(*singles, strict=True)]
