"""Snapshots: where one request's state is copied whole, for layouts that cannot be cut.

A copy is of the state after exactly the tokens that a row has read, so it is made when the row is
there: at stops within its prompt, where a chunk ends, at the prompt's end, and when the answer
ends.  Where layers that can be cut are beside others, it is a chain of blocks and a boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    Namespace,
    boundaries,
    chain,
    linked,
)
from mlxbun.domain.boundaries import APART, stops
from mlxbun.domain.sampling import TokenId

Copy = tuple[BlockInfo, ...]  # a boundary, after the blocks that it needs


class Snapshots:
    """Where the state of one request is to be copied, and how far its prompt was read.

    `wanted` are boundaries within the prompt, ascending.  `blocks` is the chain of the prompt
    where some layers can be cut, None where none can.
    """

    def __init__(
        self,
        namespace: Namespace,
        prompt_ids: tuple[TokenId, ...],
        wanted: Sequence[int] = (),
        blocks: Sequence[BlockKey] | None = None,
    ) -> None:
        self._namespace = namespace
        self._prompt_ids = prompt_ids
        self._wanted = wanted
        self._blocks = blocks
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
        return tuple(reversed(self._keys_of(self._prompt_ids, usable).items()))

    def aim(self, begun: int) -> None:
        """Choose the stops of a prompt whose first `begun` tokens are there already."""
        self._position = self._kept = begun
        self._stops = stops(self._wanted, begun, len(self._prompt_ids) - 1)
        self._keys = self._keys_of(self._prompt_ids, self._stops)

    def begin(self, num_tokens: int) -> None:
        """Note that the row began with the state of `num_tokens` tokens."""
        self._position = self._kept = num_tokens

    def read(self, num_tokens: int, seconds: float) -> None:
        """Note that the row read more of its prompt, in `seconds`."""
        self._position += num_tokens
        self._num_read += num_tokens
        self._seconds += seconds

    def due(self) -> Copy | None:
        """Return what is to be copied now that the row stands where it does."""
        return (
            self._copy(self._prompt_ids, self._position) if self._position in self._keys else None
        )

    def left(self) -> Copy | None:
        """Return what is worth a copy of a prompt that will be read no further."""
        if self._position < self._kept + APART:
            return None
        return self._copy(self._prompt_ids, self._position)

    def answered(self, drawn: Sequence[TokenId]) -> list[Copy]:
        """Return what may be copied of a row that drew all of `drawn`; one of them at most is.

        The last token drawn was fed back where the next step was dispatched before it was read.
        """
        ids = (*self._prompt_ids, *drawn)
        lengths = [n for n in (len(ids), len(ids) - 1) if n >= self._kept + APART]
        return [self._copy(ids, length) for length in lengths]

    def kept(self, copy: Copy) -> None:
        """Note that a copy is there."""
        self._kept = copy[-1].end

    def seconds(self, num_tokens: int, tokens_per_second: float) -> float:
        """Return what computing as many tokens takes, by the row's own speed if known."""
        if self._num_read and self._seconds:
            return num_tokens * self._seconds / self._num_read
        return num_tokens / tokens_per_second if tokens_per_second else 0.0

    def _keys_of(self, ids: Sequence[TokenId], lengths: Iterable[int]) -> dict[int, BlockKey]:
        after_blocks = self._blocks is not None
        return boundaries(self._namespace, ids, lengths, after_blocks=after_blocks)

    def _copy(self, ids: Sequence[TokenId], length: int) -> Copy:
        key = self._keys.get(length) if ids is self._prompt_ids else None
        key = key or self._keys_of(ids, (length,))[length]
        if self._blocks is None:
            return (BlockInfo(key, None, "boundary", 0, length, 0),)
        chained = self._blocks if ids is self._prompt_ids else chain(self._namespace, ids)
        blocks = linked(chained[: length // BLOCK])
        parent = blocks[-1].key if blocks else None
        start = len(blocks) * BLOCK
        return (*blocks, BlockInfo(key, parent, "boundary", start, length - start, 0))
