"""What waits for the next transaction: who was used, and how many bytes were written."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import Lock

from mlxbun.adapters.ssd.manifest import Manifest
from mlxbun.domain.blocks import BlockKey, Namespace


class Pending:
    """Uses of blocks and bytes written, noted at no cost and recorded together.

    Any thread may call.  A crash loses what is pending: an order of eviction, and some bytes of
    an account.
    """

    def __init__(self, manifest: Manifest, now: Callable[[], float]) -> None:
        self._manifest, self._now = manifest, now
        self._lock = Lock()
        self._uses: dict[tuple[Namespace, BlockKey], float] = {}
        self._num_bytes = 0

    def used(self, namespace: Namespace, keys: Iterable[BlockKey]) -> int:
        """Note that blocks are used now; return how many uses are pending."""
        at = self._now()
        with self._lock:
            self._uses.update({(namespace, key): at for key in keys})
            return len(self._uses)

    def wrote(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes

    def written_today(self) -> int:
        """Return the bytes written since midnight UTC.  Raises sqlite3.Error."""
        return self._manifest.written(self._today()) + self._num_bytes

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Open a transaction of the manifests that also records what is pending."""
        with self._lock:
            uses, self._uses = self._uses, {}
            num_bytes, self._num_bytes = self._num_bytes, 0
        try:
            with self._manifest.connections.transaction():
                if uses:
                    self._manifest.use(uses)
                if num_bytes:
                    self._manifest.add_written(self._today(), num_bytes)
                yield
        except BaseException:
            with self._lock:
                self._uses = uses | self._uses
                self._num_bytes += num_bytes
            raise

    def record(self) -> None:
        """Record what is pending, if anything is."""
        if self._uses or self._num_bytes:
            with self.transaction():
                pass

    def _today(self) -> str:
        return datetime.fromtimestamp(self._now(), UTC).date().isoformat()
