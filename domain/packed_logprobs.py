"""Log-probabilities of an answer's tokens, packed: five bytes a token, eight an alternative.

They are kept as the float32 that they were computed as, so what comes out is what went in.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from mlxbun.domain.sampling import TokenId
from mlxbun.domain.steps import TokenLogprobs

_WORD = 4  # bytes of a value or an id


class PackedLogprobs(Struct, frozen=True):
    """What a row was told of its tokens, in order.

    `counts` has a byte a token, how many alternatives it has; `values` the token's own and then
    those of its alternatives (float32); `ids` the alternatives (uint32).
    """

    counts: bytes = b""
    values: bytes = b""
    ids: bytes = b""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_bytes(self) -> int:
        return len(self.counts) + len(self.values) + len(self.ids)

    def since(self, num_tokens: int) -> PackedLogprobs:
        """Return what there is of the tokens after the first `num_tokens`."""
        others = sum(self.counts[:num_tokens])
        return PackedLogprobs(
            self.counts[num_tokens:],
            self.values[_WORD * (num_tokens + others) :],
            self.ids[_WORD * others :],
        )

    def unpacked(self) -> tuple[TokenLogprobs, ...]:
        values = iter(array("f", self.values))
        ids = iter(array("I", self.ids))
        found: list[TokenLogprobs] = []
        for count in self.counts:
            own = next(values)
            others = zip(map(TokenId, islice(ids, count)), islice(values, count), strict=True)
            found.append(TokenLogprobs(own, tuple(others)))
        return tuple(found)


def joined(parts: Sequence[PackedLogprobs]) -> PackedLogprobs:
    """Return what there is of the tokens of all `parts`, in order."""
    return PackedLogprobs(
        b"".join(part.counts for part in parts),
        b"".join(part.values for part in parts),
        b"".join(part.ids for part in parts),
    )


class LogprobLog:
    """Packs log-probabilities as they come."""

    def __init__(self, packed: PackedLogprobs | None = None) -> None:
        packed = packed or PackedLogprobs()
        self._counts = bytearray(packed.counts)
        self._values = array("f", packed.values)
        self._ids = array("I", packed.ids)

    def append(self, told: TokenLogprobs) -> None:
        self._counts.append(len(told.top))
        self._values.append(told.logprob)
        self._values.extend(value for _, value in told.top)
        self._ids.extend(token_id for token_id, _ in told.top)

    def packed(self) -> PackedLogprobs:
        return PackedLogprobs(bytes(self._counts), self._values.tobytes(), self._ids.tobytes())
