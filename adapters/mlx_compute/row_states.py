"""Row states: how rows hold their KV, behind one small interface.

The executor knows only `RowStates`, so a faster layout replaces a slower one without touching
the scheduler, the sampler or the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from msgspec import Struct

from mlxbun.domain.blocks import Cuts
from mlxbun.domain.sampling import RequestId

SLOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


class UnsuitableModel(ValueError):
    """The model's code asks more of a cache than a layout gives; the message says what."""


class Capabilities(Struct, frozen=True):
    """What a layout allows with this model.  Every layout declares it; nothing is guessed.

    `name`: the layout, for people.  `batchable`: rows may share a forward.  `trimmable`: tokens
    can be taken back at the end.  `compiled`: a decode step is one compiled function.  `cuts`:
    "block" where every layer's state can be divided by tokens, "boundary" where it is whole.
    `mixed`: some of the latter's layers can be divided, and others cannot.
    """

    name: str
    batchable: bool
    trimmable: bool
    compiled: bool
    cuts: Cuts
    mixed: bool = False


class Batched(Struct, frozen=True):
    """One forward over the batch.

    `logits` is [slots, vocab], lazy.  `moved` is None when every row kept its slot and none
    came; else it says for each slot which slot its row had before, -1 for a new or empty one.
    """

    logits: mx.array
    moved: list[int] | None


class RowStates(Protocol):
    """The KV state of all rows.  Rows that prefill are apart; the batch is a list of slots."""

    capabilities: Capabilities

    @property
    def batch(self) -> Sequence[RequestId | None]:
        """The rows that decode together, by slot; None is an empty slot."""
        ...

    def open(self, row: RequestId, caches: list[Any] | None = None) -> None:
        """Give a row an empty state apart from the batch, or `caches` with the prompt's start.

        It replaces any state that the row has there.
        """
        ...

    def caches(self, row: RequestId) -> list[Any]:
        """Return mlx-lm's single-row caches with what the row has processed.

        Those of a row apart are its own; of a row in the batch they are a copy, or may only be
        read before the next forward.
        """
        ...

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        """Append prompt tokens [1, n] to a row apart; return the lazy state to evaluate."""
        ...

    def shares_prompts(self) -> bool:
        """Return whether `extend_together` may be called.  Runs the model to find out."""
        ...

    def extend_together(
        self, rows: Sequence[RequestId], token_ids: mx.array, lengths: Sequence[int]
    ) -> list[mx.array]:
        """Give several empty rows apart their first tokens, in one forward.

        Row i's are the first `lengths[i]` of line i of `token_ids` [k, n]; what follows is
        padding.  Returns the lazy state to evaluate.  When that fails, `open` empties the rows.
        """
        ...

    def forward(
        self,
        stay: Sequence[RequestId],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> Batched:
        """Append one token to every row of the batch, having let rows go and come.

        Rows of the batch that are not in `stay` are released.  `tokens` [slots] is by the
        batch's slots so far; `join` rows come from apart with `join_tokens` [k].  The logits
        must be submitted before the next forward: a layout may write as it computes them.
        """
        ...

    def keep_none(self) -> None:
        """Release every row of the batch."""
        ...

    def drop(self, row: RequestId) -> None:
        """Release a row that is apart.  Unknown rows are ignored."""
        ...

    def clear(self) -> None:
        """Release everything."""
        ...

    def num_bytes(self) -> int:
        """Return the bytes that all states hold, capacity included."""
        ...


def check_mask(num_tokens: int, asked: int | None, window: int | None = None) -> None:
    """Raise UnsuitableModel unless model code asks for the mask of a decode step.

    `asked` is the window that it asks for, `window` the one that its layer has, in tokens.
    """
    if num_tokens != 1 or asked not in (None, window):
        raise UnsuitableModel(f"it asks for a mask of {num_tokens} tokens and window {asked}")


def bucket(num_rows: int) -> int:
    """Return how many slots to have for `num_rows`, so that shapes stay few."""
    return next((slots for slots in SLOTS if slots >= num_rows), num_rows)
