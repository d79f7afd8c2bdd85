"""Boundaries: after which tokens of a prompt its state is worth a copy.

Layers whose state cannot be cut are kept whole, at single token counts, so these are chosen: where
other prompts will part from this one.  A copy costs as much memory as the row, hence few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlxbun.domain.blocks import BLOCK

MAX_BOUNDARIES = 4  # of one prompt
APART = BLOCK  # tokens between two copies: fewer are computed again sooner than kept


def chosen(candidates: Iterable[int]) -> tuple[int, ...]:
    """Return which of `candidates`, token counts, to keep; the most useful come first.

    The result is ascending.  Candidates are drawn one by one and no further than needed.
    """
    taken: list[int] = []
    for count in candidates:
        if count >= APART and all(abs(count - other) >= APART for other in taken):
            taken.append(count)
            if len(taken) == MAX_BOUNDARIES:
                break
    return tuple(sorted(taken))


def stops(boundaries: Sequence[int], begun: int, end: int) -> tuple[int, ...]:
    """Return where the state of a prompt is copied that is read from `begun` to `end`.

    `boundaries` are ascending.  What is near to what is kept already is not copied again.
    """
    found: list[int] = []
    for count in (*(count for count in boundaries if count < end), end):
        if count >= (found[-1] if found else begun) + APART:
            found.append(count)
    return tuple(found)
