"""Which tokens a row with a matcher may draw next: on the host, as bits."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from mlxbun.domain.constraint import GrammarStuck, Matcher
from mlxbun.domain.sampling import TokenId


class RowMask:
    """A row's matcher, and the mask of its next token.

    Once the row's text is complete, or cannot go on, everything is allowed: what is drawn then is
    nobody's.
    """

    def __init__(self, matcher: Matcher, vocab_size: int) -> None:
        self.words = np.full(num_words(vocab_size), -1, dtype=np.int32)
        self.over = False
        self._matcher = matcher
        self._ended: tuple[bool, str | None] | None = None  # before anything was drawn

    def begin(self) -> None:
        """Fill the mask of the first token; what is wrong with it, `advance` says."""
        try:
            if self._matcher.fill(self.words.data):
                self._ended = True, None
        except GrammarStuck as error:
            self._ended = False, str(error)
        if self._ended is not None:
            self.words.fill(-1)

    def advance(self, token_id: TokenId) -> tuple[bool, str | None]:
        """Move past what the row drew and fill the next mask.

        Returns whether the text is complete, and why the row cannot go on, if it cannot.
        """
        if self._ended is not None:
            self.over = True
            return self._ended
        try:
            if not self._matcher.accept(token_id):
                return False, self._end(f"token {token_id} was drawn, and is not allowed")
            complete = self._matcher.fill(self.words.data)
        except GrammarStuck as error:
            return False, self._end(str(error))
        if complete:
            self._end("")
        return complete, None

    def _end(self, cause: str) -> str:
        self.over = True
        self.words.fill(-1)
        return cause


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def stacked(masks: Sequence[RowMask | None], vocab_size: int) -> mx.array:
    """Return the masks by slot, [slots, words] uint32; a slot without one may draw anything."""
    words = np.full((len(masks), num_words(vocab_size)), -1, dtype=np.int32)
    for line, mask in zip(words, masks, strict=True):
        if mask is not None:
            line[:] = mask.words
    return mx.array(words.view(np.uint32))
