"""The block store on a disk: the port's promises, and what the command line asks of a cache."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal

from msgspec import Struct

from mlxbun.adapters.ssd import archive
from mlxbun.adapters.ssd.archive import Archive, Listed
from mlxbun.adapters.ssd.chains import Chains, Plan, apart
from mlxbun.adapters.ssd.commits import Commits
from mlxbun.adapters.ssd.failures import told
from mlxbun.adapters.ssd.generations import SsdGenerations
from mlxbun.adapters.ssd.kept_ids import SsdKeptIds, row_of
from mlxbun.adapters.ssd.losses import Losses
from mlxbun.adapters.ssd.manifest import Identity, Manifest
from mlxbun.adapters.ssd.objects import Damaged, Objects
from mlxbun.adapters.ssd.ownership import Ownership
from mlxbun.adapters.ssd.pending import Pending
from mlxbun.adapters.ssd.place import Place, alone
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    Committed,
    Namespace,
    StoreFailed,
    Tensor,
)

Layout = Literal["blocks", "whole"]

PENDING_USES = 4096  # uses that wait for the next transaction, before they get one of their own

log = logging.getLogger("mlxbun.ssd")


class Verified(Struct, frozen=True):
    """What reading everything found: files that are well, and contents that are not, with why.

    `num_forgotten` counts the blocks that went with the damaged ones.
    """

    num_good: int
    damaged: Mapping[str, str]
    num_forgotten: int


class SsdBlockStore:
    """Port BlockStore, in a directory; `open_block_store` makes one.

    Any thread may call.  Writers (commit, shrink, purge, import_) wait for each other; reading
    waits for no write, and no write for the reading of a file.  Uses are written with the next
    transaction, so a crash may lose how recently blocks were used, and nothing else.

    `generations` keeps checkpoints of answers beside the blocks (port GenerationStore), and
    `kept_ids` the ids of texts (port KeptIdsStore).

    Beyond the ports, for the command line: `identities`, `describe`, `purge`, `verify_all`,
    `export`, `import_`, `bytes_written_today`.

    Every call but `read` raises StoreFailed when the disk or the manifests fail, with nothing
    changed.  If not even the loss of a block can be written down, it is reported, and the next
    process will find it out anew.
    """

    def __init__(
        self,
        manifest: Manifest,
        objects: Objects,
        ownership: Ownership,
        now: Callable[[], float],
        daily_budget_bytes: int | None,
        layout: Layout = "blocks",
    ) -> None:
        self._manifest, self._objects, self._ownership = manifest, objects, ownership
        self._writers = Lock()
        self._pending = Pending(manifest, now)
        self._losses = Losses(manifest, objects, now)
        chains = Chains(manifest, objects, self._losses)
        self._commits = Commits(
            manifest,
            objects,
            self._pending,
            self._losses,
            self._writers,
            chains.plan if layout == "whole" else lambda _, blocks: apart(blocks),
            now,
            daily_budget_bytes,
        )
        self.generations = SsdGenerations(
            manifest.connections,
            self._pending,
            self._losses,
            self._writers,
            self._commits.commit,
            self.read,
            now,
        )
        self.kept_ids = SsdKeptIds(
            manifest.connections, self._pending, self._writers, self._commits.afford
        )

    # The port.

    def known(self, namespace: Namespace) -> Sequence[BlockInfo]:
        with told("the manifests cannot be read"):
            self._pending.record()
            return self._manifest.known(namespace)

    def commit(
        self, namespace: Namespace, blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]]
    ) -> Committed:
        """Raises ValueError for tensors that a file cannot hold; StoreFailed also over budget."""
        return self._commits.commit(namespace, blocks)

    def read(self, namespace: Namespace, key: BlockKey) -> Sequence[Tensor]:
        suspected: Place | None = None
        while True:
            place = self._find(namespace, key)
            try:
                return self._objects.read(place)
            except Damaged as damage:
                with self._manifest.connections.alone:
                    if self._find(namespace, key) != place:
                        continue  # it went to another file meanwhile
                    if suspected == place:
                        self._losses.lose(place.content, damage)
                    elif not self._losses.lose_unless_well(place, damage):
                        suspected = place
                        continue
                raise BlockLost(f"block {key} is damaged: {damage}") from damage

    def _find(self, namespace: Namespace, key: BlockKey) -> Place:
        """Return where a block is.  Raises BlockLost."""
        try:
            found = self._manifest.find(namespace, key)
        except sqlite3.Error as error:
            raise BlockLost(f"block {key}: the manifests cannot be read: {error}") from error
        if found is None:
            raise BlockLost(f"block {key} is not kept")
        return found

    def used(self, namespace: Namespace, keys: Sequence[BlockKey]) -> None:
        if self._pending.used(namespace, keys) >= PENDING_USES:
            with told("uses cannot be noted"):
                self._pending.record()

    def shrink(self, max_bytes: int) -> Sequence[tuple[Namespace, BlockKey]]:
        with self._writers, told("blocks cannot be forgotten"):
            with self._pending.transaction():
                gone = self._manifest.shrink(max_bytes)
            self._losses.drop(gone.contents)
            return gone.blocks

    def num_bytes(self) -> int:
        with told("the manifests cannot be read"):
            return self._manifest.num_bytes()

    def prefill_rate(self, namespace: Namespace) -> float:
        with told("the manifests cannot be read"):
            return self._manifest.prefill_rate(namespace)

    def note_prefill_rate(self, namespace: Namespace, tokens_per_second: float) -> None:
        with self._writers, told("a rate cannot be noted"):
            self._manifest.note_prefill_rate(namespace, tokens_per_second)

    def close(self) -> None:
        """Release the directory, also if the last uses cannot be noted, which is reported."""
        with self._writers:
            if not self._ownership.held:
                return
            try:
                self._pending.record()
            except (OSError, sqlite3.Error) as error:
                log.warning("the last uses of blocks are not noted: %s", error)
            finally:
                self._manifest.connections.close()
                self._ownership.release()

    # Beyond the port.

    @property
    def bytes_written_today(self) -> int:
        """Bytes of files that became durable since midnight UTC, whether or not they were kept."""
        with told("the manifests cannot be read"):
            return self._pending.written_today()

    def identities(self) -> Sequence[Identity]:
        """Return the namespaces that were written to or described, and what is kept of each."""
        with told("the manifests cannot be read"):
            self._pending.record()
            return self._manifest.identities()

    def describe(self, namespace: Namespace, text: str) -> None:
        """Keep a text (JSON) that says whose state a namespace is."""
        with self._writers, told("a namespace cannot be described"):
            self._manifest.describe(namespace, text)

    def purge(self, namespace: Namespace | None) -> int:
        """Forget a namespace and its description, None for all; return how many blocks.

        Nothing of its kept ids is left in the manifests' file either; where the disk has no room
        for that, it is reported.
        """
        with self._writers, told("blocks cannot be forgotten"):
            every = [identity.namespace for identity in self._manifest.identities()]
            with self._pending.transaction():
                named = every if namespace is None else [namespace]
                gone = [self._manifest.forget_namespace(one) for one in named]
            self._losses.drop(content for some in gone for content in some.contents)
            try:
                self._manifest.connections.compact()
            except sqlite3.Error as error:
                log.warning("ids that were forgotten may still be in the file: %s", error)
            return sum(len(some.blocks) for some in gone)

    def verify_all(self, progress: Callable[[int, int], None]) -> Verified:
        """Read every file; quarantine and forget what is damaged.

        `progress` is called with the bytes that were read, and with all there are.
        """
        done, num_good, num_forgotten, damaged = 0, 0, 0, dict[str, str]()
        with told("the manifests cannot be read"):
            files = self._manifest.objects()
            for content, num_bytes in files.items():
                try:
                    self._objects.check(content, num_bytes)
                    num_good += 1
                except Damaged as damage:
                    num_lost = self._losses.lose(content, damage)
                    # Nobody needs it any more if it went with one that was found before.
                    if num_lost or self._manifest.has(content):
                        damaged[content] = str(damage)
                        num_forgotten += num_lost
                done += num_bytes
                progress(done, sum(files.values()))
        return Verified(num_good, damaged, num_forgotten)

    def export(self, namespace: Namespace, path: Path) -> int:
        """Write a namespace to a tar file, all of it verified; return the file's size in bytes.

        Raises BlockLost when a block is damaged, and leaves no file then.
        """

        def verified(digest: str) -> bytes:
            place = places[digest]
            try:
                return self._objects.verified(place)
            except Damaged as damage:
                self._losses.lose(place.content, damage)
                raise BlockLost(f"a block of {namespace} is damaged: {damage}") from damage

        with told(f"{path} cannot be written"):
            contents = self._manifest.contents(namespace)
            places = {place.digest: place for _, place in contents}
            listed = [Listed(info, place.digest) for info, place in contents]
            words = {one.namespace: one.description for one in self._manifest.identities()}
            kept = [row_of(one) for one in self.kept_ids.load(namespace)]
            whole = Archive(archive.FORM, namespace, words.get(namespace), listed, kept)
            return archive.write(path, whole, verified)

    def import_(self, path: Path) -> Committed:
        """Take in all that `export` wrote, or nothing.

        A description that is here stays, and so do the ids of a text.
        """
        with self._writers, told(f"{path} cannot be taken in"), self._commits.recorded() as written:
            sizes: dict[str, int] = {}
            with archive.opened(path) as (whole, files):
                for encoded in files:
                    self._commits.write_missing({encoded.content: encoded}, written)
                    sizes[encoded.content] = encoded.num_bytes
            rows = [
                (listed.info, alone(listed.content, sizes[listed.content]))
                for listed in whole.blocks
            ]
            with self._pending.transaction():
                before = len(self._manifest.known(whole.namespace))
                if self._commits.make_visible(whole.namespace, Plan({}, rows)) is None:
                    raise StoreFailed(f"files of {path} vanish as soon as they are written")
                self.kept_ids.insert(whole.namespace, whole.kept_ids)
                if whole.description is not None:
                    self._manifest.describe_new(whole.namespace, whole.description)
            num_new = len(self._manifest.known(whole.namespace)) - before
            self._losses.drop(written)  # a block that was here may have another content
            return Committed(num_new, sum(written.values()))
