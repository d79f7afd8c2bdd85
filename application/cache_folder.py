"""The port to a folder of the SSD cache that no server has open, for whoever looks after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mlxbun.domain.blocks import Committed, Namespace


class Kept(Protocol):
    """A namespace and what is kept of it.

    `description` is an identity's JSON (see `domain/checkpoint.py`), None where nobody gave one;
    `last_used` is in seconds since 1970.
    """

    @property
    def namespace(self) -> Namespace: ...
    @property
    def description(self) -> str | None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def last_used(self) -> float | None: ...


class Verified(Protocol):
    """What reading everything found: files that are well, and damaged ones with why.

    `num_forgotten` blocks went with the damaged files.
    """

    @property
    def num_good(self) -> int: ...
    @property
    def damaged(self) -> Mapping[str, str]: ...
    @property
    def num_forgotten(self) -> int: ...


class CacheFolder(Protocol):
    """Port: a folder, owned from opening to `close`.

    Opening raises StoreFailed where it cannot be used or another process owns it; so does any
    call when the disk fails, with nothing changed.
    """

    def identities(self) -> Sequence[Kept]:
        """Return every namespace that is kept or described."""
        ...

    def num_bytes(self) -> int:
        """Return the bytes of all files, a shared one counted once."""
        ...

    @property
    def bytes_written_today(self) -> int:
        """Bytes that were written since midnight UTC."""
        ...

    def verify_all(self, progress: Callable[[int, int], None]) -> Verified:
        """Read every file; forget what is damaged.  `progress` hears bytes done and in all."""
        ...

    def export(self, namespace: Namespace, path: Path) -> int:
        """Write a namespace to one file; return its bytes.  Raises BlockLost for a bad block."""
        ...

    def import_(self, path: Path) -> Committed:
        """Take in all that `export` wrote, or nothing."""
        ...

    def purge(self, namespace: Namespace | None) -> int:
        """Forget a namespace, None for all; return how many blocks."""
        ...

    def close(self) -> None:
        """Give the folder back."""
        ...
