"""What a step drew: lazy arrays, and what rows are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.domain.sampling import NO_LOGPROBS, TokenId
from mlxbun.domain.steps import TokenLogprobs


class Drawn(Struct, frozen=True):
    """One step's lazy results; see `sampling_graph.draw`."""

    arrays: dict[str, mx.array]

    @property
    def tokens(self) -> mx.array:
        return self.arrays["tokens"]

    @property
    def wide(self) -> mx.array | None:
        return self.arrays.get("wide")


def read_logprobs(
    drawn: Drawn, slots: Sequence[SamplingRow | None]
) -> tuple[TokenLogprobs | None, ...]:
    """Return what the row of each slot asked to know; reads arrays that are evaluated."""
    if "logprobs" not in drawn.arrays:
        return ()
    chosen = cast(list[float], drawn.arrays["logprobs"].tolist())
    ids: list[list[TokenId]] = []
    values: list[list[float]] = []
    if "top_ids" in drawn.arrays:
        ids = cast(list[list[TokenId]], drawn.arrays["top_ids"].tolist())
        values = cast(list[list[float]], drawn.arrays["top_logprobs"].tolist())
    found: list[TokenLogprobs | None] = []
    for i, row in enumerate(slots):
        if row is None or row.params.logprobs == NO_LOGPROBS:
            found.append(None)
            continue
        top: tuple[tuple[TokenId, float], ...] = ()
        if ids:
            count = row.params.logprobs
            top = tuple(zip(ids[i][:count], values[i][:count], strict=True))
        found.append(TokenLogprobs(chosen[i], top))
    return tuple(found)
