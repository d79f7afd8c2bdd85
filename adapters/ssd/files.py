"""The disk as the store sees it: one method for each thing that is done to it.

Tests put another `Files` in its place, to count, to fail, or to stop the process at any of them.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path


class Files:
    """The real disk.  Everything here may raise OSError.

    What is kept reveals prompts, so files and folders are the owner's alone.
    """

    def make_folder(self, path: Path) -> None:
        """Make a folder whose parent is there, unless it is there itself."""
        path.mkdir(mode=0o700, exist_ok=True)

    def create(self, path: Path) -> int:
        """Open an empty file for writing; return its descriptor."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`; return how many bytes, which may be fewer than there are."""
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Return when what was written to a file is on the medium itself."""
        if sys.platform == "darwin":
            # There, fsync leaves data in the drive's cache.  SQLite asks in the same way, and
            # like it we take what a file system gives that does not know the question.
            try:
                fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
                return
            except OSError:
                pass
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name at once, in place of what had that name."""
        old.replace(new)

    def fsync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the medium itself."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def read(self, path: Path) -> bytes:
        """Return all of a file: one open, one buffer of the file's size."""
        with path.open("rb", buffering=0) as file:
            return file.readall()

    def read_part(self, path: Path, at: int, num_bytes: int) -> bytes:
        """Return what a file has of `num_bytes` from `at` on."""
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            found = bytearray()
            while piece := file.read(num_bytes - len(found)):
                found += piece
            return bytes(found)

    def num_bytes(self, path: Path) -> int | None:
        """Return a file's size, None if there is no such file."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    def scan(self, folder: Path) -> list[tuple[Path, int]]:
        """Return the files in a folder and in its folders, with their sizes."""
        found: list[tuple[Path, int]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found += self.scan(Path(entry.path))
                else:
                    found.append((Path(entry.path), entry.stat(follow_symlinks=False).st_size))
        return found

    def committing(self) -> None:
        """Do nothing: the database is about to commit a transaction."""

    def committed(self) -> None:
        """Do nothing: the database has committed a transaction."""
