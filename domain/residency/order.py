"""The order in which blocks leave RAM: heaps that can be read without being changed.

A heap's entry holds for a block as long as its rank is the block's own; older entries stay where
they are and are passed over.  `tidied` keeps them few, so that each change and each block that
leaves costs O(log n).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from mlxbun.domain.blocks import BlockKey

Rank = tuple[float, int, BlockKey]  # least leaves first

SLACK = 64  # stale entries that are no reason to make a heap anew


def least_first(heap: list[Rank]) -> Iterator[Rank]:
    """Yield a heap's entries, least first, and leave it as it is; k of them cost O(k log k)."""
    frontier = [(heap[0], 0)] if heap else []
    while frontier:
        entry, place = heappop(frontier)
        yield entry
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heappush(frontier, (heap[child], child))


def tidied(heap: list[Rank], holds: Callable[[Rank], bool], num_blocks: int) -> None:
    """Drop stale entries from the top, and all of them where they outnumber the blocks."""
    if len(heap) > 2 * num_blocks + SLACK:
        heap[:] = dict.fromkeys(entry for entry in heap if holds(entry))
        heapify(heap)
    while heap and not holds(heap[0]):
        heappop(heap)
