"""What is in tests/golden/ssd-1.  Never changed: it says what old directories hold."""

from __future__ import annotations

from doubles.blocks import ONE, OTHER, Block, key
from mlxbun.domain.blocks import BlockInfo, Namespace, Tensor

DESCRIPTION = '{"model":"golden"}'


def _block(number: int, after: int | None) -> Block:
    keys = b"".join((0x3F80 + number * 7 + i).to_bytes(2, "little") for i in range(16))
    tensors = [
        Tensor("layers.0.keys", "BF16", (1, 2, 4, 2), keys),
        Tensor("layers.0.scales", "F32", (1,), b"\0\0\x80\x3f"),
        Tensor("layers.1.ids", "I32", (3,), bytes(range(number, number + 12))),
        Tensor("layers.1.empty", "F16", (0, 4), b""),
    ]
    parent = None if after is None else key(after)
    return BlockInfo(key(number), parent, "block", 256 * (number - 1), 256, 48), tensors


_BOUNDARY: Block = (
    BlockInfo(key(7), None, "boundary", 0, 300, 5),
    [Tensor("layers.0.state", "U8", (5,), b"state")],
)

COMMITS: list[tuple[Namespace, list[Block]]] = [
    (ONE, [_block(1, None), _block(2, 1), _block(3, 2)]),
    (OTHER, [_block(1, None), _BOUNDARY]),
]
