"""An embedding model without tensors: a text's vector is made of sums over its tokens."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence

from mlxbun.domain.embedding import EmbeddingCard
from mlxbun.domain.sampling import TokenId

DIMENSIONS = 6
SIZES = EmbeddingCard(DIMENSIONS, max_tokens=100, instructed=True)
BROKEN = (250, 7, 251, 7)  # the text of these tokens breaks its run


def vector_of(text: Sequence[TokenId]) -> array[float]:
    """Return what every text of these tokens becomes, of length 1."""
    places = list(enumerate(text))
    sums = [sum(math.sin((d + 1) * (t + 1) + p) for p, t in places) for d in range(DIMENSIONS)]
    length = math.sqrt(sum(x * x for x in sums))
    return array("f", (x / length for x in sums))


class ScriptedEmbedder:
    """Port Embedder, reading texts bit by bit, or `whole`.

    `pieces` has the number of tokens of each piece so far; `hold`, while it is cleared, keeps
    pieces from being read.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self.pieces: list[int] = []
        self.hold = threading.Event()
        self.hold.set()
        self._whole = whole

    def begin(self, texts: Sequence[Sequence[TokenId]]) -> ScriptedRun:
        assert texts and all(texts), "each text has a token"
        return ScriptedRun(self, texts, whole=self._whole)


class ScriptedRun:
    def __init__(
        self, embedder: ScriptedEmbedder, texts: Sequence[Sequence[TokenId]], *, whole: bool
    ) -> None:
        self._embedder = embedder
        self._texts = texts
        self._whole = whole
        self._place = 0
        self._position = 0

    @property
    def holds(self) -> bool:
        return bool(self._position)

    def advance(self, num_tokens: float) -> tuple[float, Sequence[tuple[int, array[float]]]]:
        assert self._embedder.hold.wait(20), "a test forgot to let go"
        assert self._place < len(self._texts), "a run that is over is not asked again"
        assert num_tokens > 0
        complete: list[tuple[int, array[float]]] = []
        read = 0
        wanted = max(1, int(num_tokens))
        while read < wanted and self._place < len(self._texts):
            text = self._texts[self._place]
            if tuple(text) == BROKEN:
                raise RuntimeError("a text broke, as it was told to")
            left = len(text) - self._position
            step = left if self._whole else min(left, wanted - read)
            self._position += step
            read += step
            if self._position == len(text):
                complete.append((self._place, vector_of(text)))
                self._place, self._position = self._place + 1, 0
        self._embedder.pieces.append(read)
        return read, complete
