"""Opening a directory: whose it is, which form it has, and what a crash left in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from mlxbun.adapters.ssd.connections import Connections, ManifestDamaged
from mlxbun.adapters.ssd.failures import told
from mlxbun.adapters.ssd.files import Files
from mlxbun.adapters.ssd.manifest import Manifest
from mlxbun.adapters.ssd.objects import Objects, Verify, set_aside
from mlxbun.adapters.ssd.ownership import Ownership
from mlxbun.adapters.ssd.store import Layout, SsdBlockStore
from mlxbun.domain.blocks import StoreFailed

FORMAT = "mlxbun-ssd"
VERSION = 1

log = logging.getLogger("mlxbun.ssd")


def open_block_store(
    folder: Path,
    *,
    now: Callable[[], float] = time.time,
    verify: Verify = "sample",
    daily_budget_bytes: int | None = None,
    files: Files | None = None,
    layout: Layout = "blocks",
) -> SsdBlockStore:
    """Open the store in `folder`, or make one there, and take what a crash left out of it.

    `now` is wall-clock seconds.  `verify` says which reads are held against their hash: each,
    the first of each file and one in 16 later, or none; length and header always are.
    `daily_budget_bytes` bounds what may be written between two midnights UTC.  `layout` is that
    of what is written from now on; both are read.

    Raises StoreBusy when another process has the folder, and StoreFailed for a folder that cannot
    be used: nothing in it is changed then.  What was lost or is damaged is forgotten and reported.
    """
    files = files or Files()
    folder = folder.expanduser().absolute()
    with told(f"{folder} cannot be used"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(folder)
        ownership = Ownership(folder, now())
        try:
            if not (folder / "format").exists():
                _write_format(folder, files)
            objects = Objects(folder, files, verify)
            objects.make_folders()
            manifest = _open_manifest(folder, files, now())
            try:
                files.fsync_folder(folder)
                _sweep(manifest, objects, files, now())
            except BaseException:
                manifest.connections.close()
                raise
        except BaseException:
            ownership.release()
            raise
    return SsdBlockStore(manifest, objects, ownership, now, daily_budget_bytes, layout)


def _refuse_others(folder: Path) -> None:
    """Raise StoreFailed for a folder of a newer form, and for one that holds something else."""
    try:
        words = (folder / "format").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        others = sorted({path.name for path in folder.iterdir()} - {"lock", "format.new"})
        if others:
            raise StoreFailed(f"{folder} holds {others[0]} and is no block store") from None
        return
    name, _, version = words.strip().rpartition(" ")
    if name != FORMAT or not version.isdecimal():
        raise StoreFailed(f"{folder}/format is not a block store's: {words[:40]!r}")
    if int(version) != VERSION:
        raise StoreFailed(f"{folder} has format {version}, and this mlxbun reads {VERSION}")


def _write_format(folder: Path, files: Files) -> None:
    descriptor = files.create(folder / "format.new")
    try:
        files.write(descriptor, memoryview(f"{FORMAT} {VERSION}\n".encode()))
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(folder / "format.new", folder / "format")
    files.fsync_folder(folder)


def _open_manifest(folder: Path, files: Files, now: float) -> Manifest:
    path = folder / "manifest.sqlite"
    path.touch(mode=0o600)  # before SQLite makes it with the modes of the process
    try:
        return Manifest(Connections(path, files))
    except ManifestDamaged as damage:
        log.warning("%s is damaged (%s): moved to quarantine, all blocks forgotten", path, damage)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            if (folder / name).exists():
                set_aside(files, folder / name, folder / "quarantine", now)
        return Manifest(Connections(path, files))


def _sweep(manifest: Manifest, objects: Objects, files: Files, now: float) -> None:
    """Make rows and files agree: a row needs its file, and a file a row."""
    objects.sweep_staging()
    named = manifest.objects()
    found: dict[str, int] = {}
    for path, content, num_bytes in objects.stored():
        if content in named and path == objects.path(content):
            found[content] = num_bytes
        else:
            files.unlink(path)
    lost = [content for content, num_bytes in named.items() if found.get(content) != num_bytes]
    if not lost:
        return
    gone = manifest.forget(lost)
    for content in gone.contents:
        if content in lost:
            objects.quarantine(content, now)
        else:
            objects.remove(content)
    log.warning(
        "files that are gone or have another length: %d, blocks forgotten: %d",
        len(lost),
        len(gone.blocks),
    )
