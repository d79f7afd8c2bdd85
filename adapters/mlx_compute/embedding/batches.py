"""Texts in batches: which are read together, pooling, and vectors out of MLX.

Texts of like length share a forward, the shorter ones padded on the right, which neither
attention nor pooling sees.  A text that is longer than a forward may be is read bit by bit where
the model is causal.  A forward that takes longer than a piece may is computed step by step.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from msgspec import Struct

from mlxbun.adapters.mlx_compute.embedding.bert import Bert
from mlxbun.adapters.mlx_compute.embedding.decoder import Decoder
from mlxbun.adapters.mlx_compute.embedding.recipe import Pooling
from mlxbun.domain.sampling import TokenId

Complete = Sequence[tuple[int, "array[float]"]]

MAX_CACHED_BYTES = 1 << 29
MAX_ROWS = 128  # in one forward
PASS_TOKENS = 64  # that a forward reads where there are as many: fewer cost hardly less
WASTE = 1.25  # what is computed, padding included, to what is read


class MlxEmbedder:
    """See `domain.embedding.Embedder`.  Everything runs on the engine's thread."""

    def __init__(self, reader: Bert | Decoder, pooling: Pooling, *, normalise: bool) -> None:
        self._reader = reader
        self._pooling: Pooling = pooling
        self._normalise = normalise

    def begin(self, texts: Sequence[Sequence[TokenId]]) -> MlxRun:
        return MlxRun(self._reader, texts, Pool(self._pooling, self._normalise))


class Pool:
    """Makes a vector of a text's states, which may come bit by bit."""

    def __init__(self, pooling: Pooling, normalise: bool) -> None:
        self._pooling: Pooling = pooling
        self._normalise = normalise

    def add(self, pooled: mx.array | None, states: mx.array, lengths: mx.array) -> mx.array:
        """Return what was pooled so far [rows, hidden], in float32.

        `states` [rows, columns, hidden] follow it; of each row the first `lengths` count.
        """
        if self._pooling == "cls":
            return states[:, 0].astype(mx.float32) if pooled is None else pooled
        if self._pooling == "last":
            at = (lengths - 1)[:, None, None]
            return mx.take_along_axis(states, at, axis=1)[:, 0].astype(mx.float32)
        counts = mx.arange(states.shape[1]) < lengths[:, None]
        total = mx.where(counts[..., None], states.astype(mx.float32), 0.0).sum(axis=1)
        return total if pooled is None else pooled + total

    def vectors(self, pooled: mx.array, num_tokens: mx.array) -> mx.array:
        """Return the vectors [rows, hidden] of texts of `num_tokens`."""
        if self._pooling == "mean":
            pooled = pooled / num_tokens[:, None]
        if self._normalise:
            length = mx.linalg.norm(pooled, axis=-1, keepdims=True)
            pooled = pooled / mx.maximum(length, 1e-12)
        return pooled


class _Long(Struct):
    """A text that is read bit by bit: what its layers keep, and how far it was read."""

    place: int
    cache: Any
    position: int = 0
    pooled: mx.array | None = None


class _Pass(Struct):
    """A forward under way: what is still to be evaluated, step by step.

    `made` is what comes out: the vectors of the texts at `places`, in float32, or of a long
    text that is not read to its end what was pooled so far.
    """

    num_tokens: int
    steps: list[Any]
    made: mx.array
    places: Sequence[int] = ()
    num_done: int = 0


class MlxRun:
    """See `domain.embedding.EmbeddingRun`.  Shorter texts come first.

    A piece is one forward, or steps of one that takes longer.
    """

    def __init__(
        self, reader: Bert | Decoder, texts: Sequence[Sequence[TokenId]], pool: Pool
    ) -> None:
        self._reader = reader
        self._texts = texts
        self._pool = pool
        self._left = sorted(range(len(texts)), key=lambda i: len(texts[i]), reverse=True)
        self._long: _Long | None = None
        self._pass: _Pass | None = None

    @property
    def holds(self) -> bool:
        return self._long is not None or self._pass is not None

    def advance(self, num_tokens: float) -> tuple[float, Complete]:
        if self._pass is None:
            self._pass = self._begin(max(PASS_TOKENS, int(num_tokens)))
        under_way = self._pass
        a_step = under_way.num_tokens / len(under_way.steps)
        begin = under_way.num_done
        end = min(len(under_way.steps), begin + max(1, int(num_tokens / a_step + 1e-6)))
        if end < len(under_way.steps):
            mx.eval(under_way.steps[begin:end])
            under_way.steps[begin:end] = [None] * (end - begin)
            under_way.num_done = end
            return (end - begin) * a_step, ()
        last = under_way.steps[-1]
        under_way.steps = []  # or each would be kept while the next ones are made of it
        mx.eval(last)
        self._pass = None
        vectors = _read(under_way.made) if under_way.places else []
        if not self._left and self._long is None and mx.get_cache_memory() > MAX_CACHED_BYTES:
            mx.clear_cache()  # buffers of these shapes are of little use to anybody else
        return (end - begin) * a_step, list(zip(under_way.places, vectors, strict=True))

    def _begin(self, num_tokens: int) -> _Pass:
        if self._long is None:
            shortest = len(self._texts[self._left[-1]])
            if not isinstance(self._reader, Decoder) or shortest <= num_tokens:
                return self._whole(num_tokens)
            self._long = _Long(self._left.pop(), self._reader.fresh_cache())
        assert isinstance(self._reader, Decoder), "an encoder reads texts whole"
        return self._further(self._reader, self._long, num_tokens)

    def _whole(self, num_tokens: int) -> _Pass:
        places = [self._left.pop()]
        num_read = len(self._texts[places[0]])
        while self._left and len(places) < MAX_ROWS:
            longest = len(self._texts[self._left[-1]])
            computed = longest * (len(places) + 1)
            if computed > num_tokens or computed > WASTE * (num_read + longest):
                break
            places.append(self._left.pop())
            num_read += longest
        texts = [self._texts[place] for place in places]
        columns = len(texts[-1])
        ids = np.zeros((len(texts), columns), dtype=np.int32)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = text
        lengths = mx.array([len(text) for text in texts])
        padded = len(texts[0]) < columns
        states, noted = self._written(mx.array(ids), lengths if padded else None)
        vectors = self._pool.vectors(self._pool.add(None, states, lengths), lengths)
        return _Pass(num_read, [*noted[:-1], vectors], vectors, places)

    def _written(self, ids: mx.array, lengths: mx.array | None) -> tuple[mx.array, list[mx.array]]:
        reader = self._reader
        if isinstance(reader, Decoder):
            return reader.forwards.written(lambda: reader(ids))
        return reader.forwards.written(lambda: reader(ids, lengths))

    def _further(self, reader: Decoder, long: _Long, num_tokens: int) -> _Pass:
        text = self._texts[long.place]
        chunk = text[long.position : long.position + num_tokens]
        ids = mx.array(np.array(chunk, dtype=np.int32)[None])
        states, noted = reader.forwards.written(lambda: reader(ids, long.cache))
        long.pooled = self._pool.add(long.pooled, states, mx.array([len(chunk)]))
        long.position += len(chunk)
        kept = [layer.state for layer in long.cache]
        if long.position < len(text):
            return _Pass(len(chunk), [*noted[:-1], (long.pooled, kept)], long.pooled)
        self._long = None
        vectors = self._pool.vectors(long.pooled, mx.array([len(text)]))
        return _Pass(len(chunk), [*noted[:-1], vectors], vectors, [long.place])


def _read(vectors: mx.array) -> list[array[float]]:
    """Wait for the device; return a row each."""
    return [array("f", row.tobytes()) for row in np.array(vectors, dtype=np.float32)]
