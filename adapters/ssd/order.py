"""The order in which blocks become visible: parents before children."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxbun.domain.blocks import BlockInfo, BlockKey, Tensor


def parents_first(
    blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]],
) -> Iterator[tuple[BlockInfo, Sequence[Tensor]]]:
    """Yield each key once, after its parent if that is among them."""
    waiting = {info.key: (info, tensors) for info, tensors in reversed(blocks)}
    for info, _ in blocks:
        path: list[tuple[BlockInfo, Sequence[Tensor]]] = []
        key: BlockKey | None = info.key
        while key is not None and key in waiting:
            path.append(waiting.pop(key))
            key = path[-1][0].parent
        yield from reversed(path)
