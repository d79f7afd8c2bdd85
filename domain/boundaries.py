"""Boundaries: after which tokens of a prompt its state is worth a copy.

Layers whose state cannot be cut are kept whole, at single token counts, so these are chosen: where
other prompts will part from this one.  A copy costs the memory of these layers, and a chunk that
ends early, hence few of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.blocks import BLOCK

MAX_BOUNDARIES = 4  # of one prompt
APART = BLOCK  # tokens between two copies: fewer are computed again sooner than kept


def chosen(candidates: Sequence[int]) -> tuple[int, ...]:
    """Return which of `candidates`, token counts, to keep, ascending; the most useful come first.

    Of some that are near to each other the first in the prompt is kept: who shares a later one
    computes a few tokens again, where who shares the first alone would compute all.
    """
    rank: dict[int, int] = {}
    for place, count in enumerate(candidates):
        rank.setdefault(count, place)
    kept: dict[int, int] = {}  # with the rank of the best that it stands for
    for count in sorted(rank):
        near = next(reversed(kept), 0)
        if count < near + APART:
            kept |= {near: min(kept[near], rank[count])} if near else {}
        else:
            kept[count] = rank[count]
    return tuple(sorted(sorted(kept, key=lambda count: kept[count])[:MAX_BOUNDARIES]))


def stops(boundaries: Sequence[int], begun: int, end: int) -> tuple[int, ...]:
    """Return where the state of a prompt is copied that is read from `begun` to `end`.

    `boundaries` are ascending.  What is near to what is kept already is not copied again.
    """
    found: list[int] = []
    for count in (*(count for count in boundaries if count < end), end):
        if count >= (found[-1] if found else begun) + APART:
            found.append(count)
    return tuple(found)
