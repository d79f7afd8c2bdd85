"""Where a block's bytes are: a file of its own, or a part of a file that has a whole chain."""

from __future__ import annotations

from msgspec import Struct


class Place(Struct, frozen=True):
    """`num_bytes` from `at` on in the file of `content`, which has `file_bytes`.

    `digest` is their SHA-256.
    """

    content: str
    file_bytes: int
    at: int
    num_bytes: int
    digest: str

    @property
    def is_alone(self) -> bool:
        """Whether the file is the block's alone; its content is the block's digest then."""
        return self.content == self.digest


def alone(content: str, num_bytes: int) -> Place:
    """Return the place of a block in a file of its own."""
    return Place(content, num_bytes, 0, num_bytes, content)
