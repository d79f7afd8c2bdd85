"""Commits: files become durable, then rows name them, then files go that nobody needs.

In this order, so that a crash leaves at worst files that no row names.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from mlxbun.adapters.ssd.chains import Plan
from mlxbun.adapters.ssd.container import Encoded, encode
from mlxbun.adapters.ssd.failures import told
from mlxbun.adapters.ssd.losses import Losses
from mlxbun.adapters.ssd.manifest import Manifest
from mlxbun.adapters.ssd.objects import Objects
from mlxbun.adapters.ssd.order import parents_first
from mlxbun.adapters.ssd.pending import Pending
from mlxbun.domain.blocks import BlockInfo, Committed, Namespace, StoreFailed, Tensor

TRIES = 3  # of a commit whose files are quarantined by a reader while it writes them

Planned = Callable[[Namespace, Sequence[tuple[BlockInfo, Encoded]]], Plan]


class Commits:
    """Makes blocks visible.  `writers` is held by whoever writes; `plan` says which file has what.

    `daily_budget_bytes` may be written a day, None for any number.
    """

    def __init__(
        self,
        manifest: Manifest,
        objects: Objects,
        pending: Pending,
        losses: Losses,
        writers: Lock,
        plan: Planned,
        now: Callable[[], float],
        daily_budget_bytes: int | None,
    ) -> None:
        self._manifest, self._objects, self._pending = manifest, objects, pending
        self._losses, self._writers, self._plan = losses, writers, plan
        self._now, self._daily_budget_bytes = now, daily_budget_bytes

    def commit(
        self,
        namespace: Namespace,
        blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]],
        also: Callable[[], None] | None = None,
    ) -> Committed:
        """Commit; `also` changes the manifests in the transaction that makes blocks visible."""
        with self._writers, told("blocks cannot be kept"):
            new = [
                (info, encode(tensors))
                for info, tensors in parents_first(blocks)
                if self._manifest.find(namespace, info.key) is None
            ]
            if not new and also is None:
                return Committed(0, 0)
            plan = self._plan(namespace, new)
            with self.recorded() as written:
                for _ in range(TRIES):
                    self.write_missing(plan.files, written)
                    gone = self.make_visible(namespace, plan, also)
                    if gone is not None:
                        self._losses.drop(gone)
                        return Committed(len(new), sum(written.values()))
                raise StoreFailed("files vanish as soon as they are written")

    def write_missing(self, files: Mapping[str, Encoded], written: dict[str, int]) -> None:
        """Make files durable that are not there, and name them in `written`, of `recorded`."""
        missing = [e for c, e in files.items() if not self._objects.is_there(c, e.num_bytes)]
        num_bytes = sum(encoded.num_bytes for encoded in missing)
        if missing:
            self.afford(num_bytes)
        # Named before they are written: some may have their name when a later one fails.
        written.update({encoded.content: encoded.num_bytes for encoded in missing})
        self._objects.write(missing)
        self._pending.wrote(num_bytes)

    def afford(self, num_bytes: int) -> None:
        """Raise StoreFailed where `num_bytes` more are too many for today."""
        if self._daily_budget_bytes is None:
            return
        today = self._pending.written_today()
        if today + num_bytes > self._daily_budget_bytes:
            raise StoreFailed(
                f"daily write budget of {self._daily_budget_bytes} bytes: {today} are written, "
                f"{num_bytes} more are too many"
            )

    def make_visible(
        self, namespace: Namespace, plan: Plan, also: Callable[[], None] | None = None
    ) -> Sequence[str] | None:
        """Insert and move rows; return the contents that nobody needs any more.

        None, with nothing changed, where a file is not there.
        """
        sizes = {place.content: place.file_bytes for _, place in plan.rows}
        with self._pending.transaction():
            if not all(self._objects.is_there(*of) for of in sizes.items()):
                return None
            self._manifest.insert(namespace, plan.rows, self._now())
            gone = self._manifest.move(namespace, plan.moves)
            if also is not None:
                also()
            return gone

    @contextmanager
    def recorded(self) -> Generator[dict[str, int]]:
        """Yield a record of files and their sizes; what it names goes if the work fails."""
        written: dict[str, int] = {}
        try:
            yield written
        except BaseException:
            self._losses.drop(written)
            raise
