"""Embedding: texts to vectors.  The words, the port of a model that makes them, and its pace.

A model reads many texts in pieces that take a bounded time, so that whoever else needs the device
waits for one piece.
"""

from __future__ import annotations

import math
from array import array  # of typecode "f" here: float32
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.domain.sampling import TokenId

MAX_PIECE_TOKENS = 16_384.0
FIRST_PIECE_TOKENS = 1.0  # before anything was measured
SECONDS_BESIDE_ROWS = 0.02  # a step of the rows waits so long for a piece
SECONDS_ALONE = 0.1  # and whoever comes newly, where there are no rows


class EmbeddingCard(Struct, frozen=True):
    """An embedding model, in numbers: the size of its vectors, and tokens of its longest text.

    `instructed` models were trained with an instruction before queries.
    """

    dimensions: int
    max_tokens: int
    instructed: bool = False


class TextsEmbedded(Struct, frozen=True, gc=False, tag="texts_embedded"):
    """Event: a piece was read, which completed the vectors of `num_texts` texts."""

    num_texts: int
    num_tokens: int
    seconds: float


Event = TextsEmbedded


class EmbeddingRun(Protocol):
    """Some texts on their way to vectors.  One thread calls it.

    `holds` says whether a text is half read, whose state takes memory of the device.  Work is
    counted in tokens: a part of the layers counts as that part of what goes through them.
    """

    @property
    def holds(self) -> bool: ...

    def advance(self, num_tokens: float) -> tuple[float, Sequence[tuple[int, array[float]]]]:
        """Read about `num_tokens` more tokens; return how many, and what is complete by then.

        That is vectors by their texts' places; none while a text is not read to its end.  A
        part of one layer is done at least.  Over when each place was returned; then it is not
        called again.  What it holds is released with it.
        """
        ...


class Embedder(Protocol):
    """Port: a model that turns texts into vectors.  One thread calls it.

    A text's vector depends on its tokens alone (but for rounding): not on its neighbours, nor on
    how many tokens were read at once.
    """

    def begin(self, texts: Sequence[Sequence[TokenId]]) -> EmbeddingRun:
        """Return a run over `texts`, each of one token at least.  Computes nothing yet."""
        ...


def shortened(vector: array[float], dimensions: int) -> array[float]:
    """Return the first `dimensions` of `vector`, scaled to length 1.

    Source: Kusupati et al., Matryoshka Representation Learning, 2022: the first dimensions of a
    model that was trained so are a vector of their own.
    """
    if dimensions == len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.sqrt(math.fsum(x * x for x in kept))
    return array("f", (x / length for x in kept)) if length else kept


def piece_tokens(tokens_per_second: float, *, alone: bool) -> float:
    """Return how many tokens the next piece should read; 0 a second is "not measured"."""
    if not tokens_per_second:
        return FIRST_PIECE_TOKENS
    seconds = SECONDS_ALONE if alone else SECONDS_BESIDE_ROWS
    return min(MAX_PIECE_TOKENS, tokens_per_second * seconds)


def measured(tokens_per_second: float, num_tokens: float, seconds: float) -> float:
    """Return the rate, a moving average over about four pieces, after one more."""
    rate = num_tokens / max(seconds, 1e-6)
    return rate if not tokens_per_second else tokens_per_second + (rate - tokens_per_second) / 4
