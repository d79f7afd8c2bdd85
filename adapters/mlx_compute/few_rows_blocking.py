"""How a product of few rows is divided among the threads of a GPU.

Found by trying some thirty ways for each shape of Qwen3 0.6B and 8B on an H200, with 1 to 64 rows
(docs/benchmarks.md).  The best of all and the one chosen here differ by a tenth at most.
"""

from __future__ import annotations

from msgspec import Struct

ROWS_A_GROUP = 8
MAX_ROWS = 64
_STEP = 32  # elements of the inner dimension that a warp takes at a time
_SMALL, _HEAD = 4096, 32768  # outer dimensions


class Blocking(Struct, frozen=True):
    """One way: all counts.

    `groups` of eight rows; `tiles` of 16 rows of the weight a warp; `wide` warps side by side,
    `deep` warps that divide the inner dimension; `ahead` steps of weights and `inputs_ahead` of
    the input are under way.
    """

    groups: int
    tiles: int
    wide: int
    deep: int
    ahead: int
    inputs_ahead: int

    @property
    def height(self) -> int:
        """Rows of the weight that a block of threads takes."""
        return 16 * self.tiles * self.wide

    @property
    def threads(self) -> int:
        return 32 * self.wide * self.deep


def blocking(
    num_rows: int, num_outer: int, num_inner: int, *, gated: bool = False, adds: bool = False
) -> Blocking | None:
    """Return how [rows, inner] x [outer, inner] is divided, None for what the kernel cannot.

    `gated` products take as many columns of a gate as of what it gates; blocks that finish by
    adding (`adds`) write at most 32 columns.
    """
    groups = -(-num_rows // ROWS_A_GROUP)
    steps = num_inner // _STEP
    if num_rows > MAX_ROWS or num_inner % _STEP or num_outer % (32 if gated else 16):
        return None
    if gated:
        ways = _gated(groups)
    elif adds:
        ways = _adding(groups, num_outer)
    else:
        ways = _plain(groups, num_outer)
    for tiles, wide, deep, ahead, inputs_ahead in ways:
        if num_outer % (16 * tiles * wide) == 0:
            deepest = next(n for n in range(deep, 0, -1) if steps % n == 0)
            return Blocking(groups, tiles, wide, deepest, ahead, inputs_ahead)
    raise AssertionError("the last way divides every outer dimension that was let in")


def columns_a_sum(num_rows: int, width: int) -> int:
    """Return of how many columns an adding product that is `width` wide sums the squares."""
    way = blocking(num_rows, width, _STEP, adds=True)
    assert way is not None, f"an adding product cannot be {width} wide"
    return way.height


_Ways = tuple[tuple[int, int, int, int, int], ...]


def _gated(groups: int) -> _Ways:
    last = (2, 1, 8, 2, 1)
    if groups == 1:
        return (2, 2, 8, 4, 1), (2, 1, 8, 4, 1)
    if groups == 2:
        return ((2, 1, 8, 4, 1),)
    return (last,) if groups <= 4 else ((2, 2, 4, 2, 1), last)


def _adding(groups: int, num_outer: int) -> _Ways:
    if groups == 1:
        return ((1, 1, 16, 4, 1),)
    if groups == 2:
        return ((1, 1, 16, 4, 2),)
    if num_outer < _SMALL:
        return ((1, 1, 16 if groups <= 4 else 8, 4, 2),)
    last = (1, 1, 8, 4, 2)
    return (last,) if groups <= 4 else ((2, 1, 8, 2, 2), last)


def _plain(groups: int, num_outer: int) -> _Ways:
    last = (1, 1, 8, 4, 1)
    if num_outer > _HEAD:
        if groups == 1:
            return (1, 4, 4, 4, 1), last
        if groups == 2:
            return (2, 2, 4, 2, 1), last
        return ((2, 4, 4, 2, 1), last) if groups <= 4 else ((2, 4, 2, 4, 1), last)
    small = num_outer <= _SMALL
    if groups == 1:
        return ((1, 1, 16 if small else 8, 4, 1),)
    if groups == 2:
        return ((1, 1, 16, 2, 1),) if small else ((2, 1, 8, 4, 1), last)
    if groups <= 4:
        return ((1, 2, 8, 4, 2) if small else (2, 1, 8, 2, 2), last)
    return ((2, 1, 8, 2, 1) if small else (2, 2, 4, 4, 1), last)
