"""Masked rows: those of a batch that keep to a grammar, moved past what they draw.

The host fills their masks while the device computes logits.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import RowFailure


def any_masked(slots: Sequence[SamplingRow | None], request_ids: Container[RequestId]) -> bool:
    """Return whether one of these requests has a mask."""
    return any(
        row is not None and row.mask is not None and row.request_id in request_ids for row in slots
    )


def advance(
    slots: Sequence[SamplingRow | None],
    tokens: Sequence[TokenId],
    closed: Container[RequestId],
) -> tuple[tuple[RequestId, ...], tuple[RowFailure, ...]]:
    """Move matchers past what their rows drew; return who is complete, and who cannot go on."""
    complete: list[RequestId] = []
    failures: list[RowFailure] = []
    for row, token_id in zip(slots, tokens, strict=True):
        if row is None or row.mask is None or row.mask.over or row.request_id in closed:
            continue
        is_complete, cause = row.mask.advance(token_id)
        if is_complete:
            complete.append(row.request_id)
        if cause is not None:
            failures.append(RowFailure(row.request_id, cause))
    return tuple(complete), tuple(failures)
