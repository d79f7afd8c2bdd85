"""What is done about damaged blocks, and about files that nobody needs any more."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable

from mlxbun.adapters.ssd.manifest import Manifest
from mlxbun.adapters.ssd.objects import Damaged, Objects
from mlxbun.adapters.ssd.place import Place

log = logging.getLogger("mlxbun.ssd")


class Losses:
    """Takes blocks out of the manifests, and then files off the disk.  Any thread may call."""

    def __init__(self, manifest: Manifest, objects: Objects, now: Callable[[], float]) -> None:
        self._manifest, self._objects, self._now = manifest, objects, now
        self._reported: set[str] = set()  # damaged contents that could not be forgotten

    def lose(self, content: str, damage: Damaged) -> int:
        """Forget all blocks of a damaged content and all after them; return how many.

        The file goes to quarantine.  Reported once, also if it cannot be written down.
        """
        with self._manifest.connections.alone:
            try:
                if not self._manifest.has(content):
                    return 0
                gone = self._manifest.forget([content])
            except (OSError, sqlite3.Error) as error:
                if content not in self._reported:
                    self._reported.add(content)
                    log.error("%s is damaged (%s), and not forgotten: %s", content, damage, error)
                return 0
            self._objects.quarantine(content, self._now())
        self.drop(gone.contents)
        log.warning("%s is damaged (%s), blocks forgotten: %d", content, damage, len(gone.blocks))
        return len(gone.blocks)

    def lose_unless_well(self, place: Place, damage: Damaged) -> bool:
        """Look at a block once more, and forget its file if it is damaged; return whether it is.

        It may have been pruned, and written anew, since it was looked up.
        """
        with self._manifest.connections.alone:
            try:
                self._objects.verified(place)
            except Damaged:
                self.lose(place.content, damage)
                return True
            return False

    def drop(self, contents: Iterable[str]) -> None:
        """Remove the files of contents that no row names."""
        for content in contents:
            with self._manifest.connections.alone:
                try:
                    if not self._manifest.has(content):
                        self._objects.remove(content)
                except sqlite3.Error as error:
                    log.warning("%s stays until the next start: %s", content, error)
