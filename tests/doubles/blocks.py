"""Blocks to keep: what is in one says its number."""

from __future__ import annotations

from collections.abc import Sequence

from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey, Namespace, Tensor

ONE, OTHER = Namespace("11" * 32), Namespace("22" * 32)

Block = tuple[BlockInfo, list[Tensor]]


def key(number: int) -> BlockKey:
    return BlockKey(f"{number:064x}")


def block(number: int, after: int | None = None, data: bytes | None = None) -> Block:
    """Return a block whose data says its number, unless told otherwise."""
    data = number.to_bytes(2, "little") * 600 if data is None else data
    tensors = [
        Tensor("layers.0.values", "BF16", (1, len(data) // 2), data),
        Tensor("layers.0.keys", "I32", (2, 1), bytes(8)),
    ]
    parent = None if after is None else key(after)
    return BlockInfo(key(number), parent, "block", number * BLOCK, BLOCK, len(data) + 8), tensors


def plain(tensors: Sequence[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return tensors in a form in which equal ones are equal."""
    return [(t.name, t.dtype, t.shape, bytes(t.data)) for t in tensors]
