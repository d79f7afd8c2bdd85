"""Snapshots: where one request's state is copied whole, for layouts that cannot be cut.

A copy is of the state after exactly the tokens that a row has read, so it is made when the row is
there: at stops within its prompt, where a chunk ends, at the prompt's end, and when the answer
ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey, Namespace, boundaries
from mlxbun.domain.boundaries import APART, stops
from mlxbun.domain.sampling import TokenId


class Snapshots:
    """Where the state of one request is to be copied, and how far its prompt was read.

    `wanted` are boundaries within the prompt, ascending.
    """

    def __init__(
        self, namespace: Namespace, prompt_ids: tuple[TokenId, ...], wanted: Sequence[int] = ()
    ) -> None:
        self._namespace = namespace
        self._prompt_ids = prompt_ids
        self._wanted = wanted
        self._stops: tuple[int, ...] = ()
        self._keys: dict[int, BlockKey] = {}
        self._position = 0  # tokens that the row's state is of
        self._kept = 0  # those of the last copy, or of what it began with
        self._num_read = 0
        self._seconds = 0.0

    @property
    def stops(self) -> tuple[int, ...]:
        """After how many tokens of the prompt the state is copied, the end included."""
        return self._stops

    @property
    def keys(self) -> tuple[BlockKey, ...]:
        """The keys that the copies will have, the shortest first."""
        return tuple(self._keys[stop] for stop in self._stops)

    def known(self, lengths: Iterable[int]) -> tuple[tuple[int, BlockKey], ...]:
        """Return the keys that copies of `lengths` tokens would have, the longest first."""
        usable = (length for length in lengths if length < len(self._prompt_ids))
        found = boundaries(self._namespace, self._prompt_ids, usable)
        return tuple(reversed(found.items()))

    def aim(self, begun: int) -> None:
        """Choose the stops of a prompt whose first `begun` tokens are there already."""
        self._position = self._kept = begun
        self._stops = stops(self._wanted, begun, len(self._prompt_ids) - 1)
        self._keys = boundaries(self._namespace, self._prompt_ids, self._stops)

    def begin(self, num_tokens: int) -> None:
        """Note that the row began with the state of `num_tokens` tokens."""
        self._position = self._kept = num_tokens

    def read(self, num_tokens: int, seconds: float) -> None:
        """Note that the row read more of its prompt, in `seconds`."""
        self._position += num_tokens
        self._num_read += num_tokens
        self._seconds += seconds

    def due(self) -> BlockInfo | None:
        """Return what is to be copied now that the row stands where it does."""
        key = self._keys.get(self._position)
        return self._info(key, self._position) if key is not None else None

    def left(self) -> BlockInfo | None:
        """Return what is worth a copy of a prompt that will be read no further."""
        if self._position < self._kept + APART:
            return None
        return self._info(self._key(self._prompt_ids, self._position), self._position)

    def answered(self, drawn: Sequence[TokenId]) -> list[BlockInfo]:
        """Return what may be copied of a row that drew all of `drawn`; one of them at most is.

        The last token drawn was fed back where the next step was dispatched before it was read.
        """
        ids = (*self._prompt_ids, *drawn)
        lengths = [n for n in (len(ids), len(ids) - 1) if n >= self._kept + APART]
        return [self._info(self._key(ids, length), length) for length in lengths]

    def kept(self, block: BlockInfo) -> None:
        """Note that a copy is there."""
        self._kept = block.num_tokens

    def seconds(self, block: BlockInfo, tokens_per_second: float) -> float:
        """Return what computing all that `block` is of takes, by the row's own speed if known."""
        if self._num_read and self._seconds:
            return block.num_tokens * self._seconds / self._num_read
        return block.num_tokens / tokens_per_second if tokens_per_second else 0.0

    def _key(self, ids: Sequence[TokenId], length: int) -> BlockKey:
        return boundaries(self._namespace, ids, (length,))[length]

    @staticmethod
    def _info(key: BlockKey, num_tokens: int) -> BlockInfo:
        return BlockInfo(key, None, "boundary", 0, num_tokens, 0)
