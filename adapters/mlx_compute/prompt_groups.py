"""Which prompts of a plan are read in one forward: fresh ones, short ones, of like length.

A forward costs something whatever it reads (the host builds it, the device reads every weight),
so short prompts are read together.  Long ones gain nothing, and padding is wasted.

Pure: no tensors.  Everything is counted in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_TOKENS = 2048  # in a shared forward, padding included: what one chunk may have


def group_prompts(chunks: Sequence[tuple[int, int]], longest_shared: int) -> list[list[int]]:
    """Return the places in `chunks` that each forward reads, in the order of arrival.

    A chunk is (position in its prompt, number of tokens).  Only chunks at position 0 with at
    most `longest_shared` tokens share; the shorter ones of a forward are padded to its longest,
    by a quarter of what is read at most.
    """
    groups = [
        [place]
        for place, (position, num_tokens) in enumerate(chunks)
        if position or num_tokens > longest_shared
    ]
    alone = {place for group in groups for place in group}
    sharing = [place for place in range(len(chunks)) if place not in alone]
    sharing.sort(key=lambda place: chunks[place][1], reverse=True)
    group: list[int] = []
    num_read = 0
    for place in sharing:
        num_tokens = chunks[place][1]
        if group and not _fits(chunks[group[0]][1], len(group) + 1, num_read + num_tokens):
            groups.append(sorted(group))
            group, num_read = [], 0
        group.append(place)
        num_read += num_tokens
    if group:
        groups.append(sorted(group))
    return sorted(groups)


def _fits(longest: int, num_prompts: int, num_read: int) -> bool:
    num_computed = longest * num_prompts
    return num_computed <= MAX_TOKENS and 4 * num_computed <= 5 * num_read
