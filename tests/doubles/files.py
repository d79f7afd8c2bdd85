"""A disk that can be watched, that fails where it is told to, and that can lose power."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from mlxbun.adapters.ssd.files import Files

STEPS = (
    "make_folder", "create", "write", "fsync", "close", "rename", "fsync_folder", "unlink", "read",
    "num_bytes", "scan", "committing", "committed",
)  # fmt: skip


class SteppedFiles(Files):
    """The real disk, which calls `step` before each thing that is done to it."""

    def __init__(self) -> None:
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()  # files whose bytes a power cut would take
        self._unsynced_names: dict[Path, set[Path]] = {}  # by folder

    def step(self, name: str) -> None:
        """Do nothing; others count, raise, or end the process."""

    def lose_power(self) -> None:
        """Take from the disk all that was not fsynced: names, and the second half of files."""
        for names in self._unsynced_names.values():
            for path in names:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        for path in self._unsynced:
            if path.exists():
                with path.open("r+b") as file:
                    file.truncate(path.stat().st_size // 2)

    def make_folder(self, path: Path) -> None:
        self.step("make_folder")
        if not path.exists():
            self._unsynced_names.setdefault(path.parent, set()).add(path)
        super().make_folder(path)

    def create(self, path: Path) -> int:
        self.step("create")
        descriptor = super().create(path)
        self._paths[descriptor] = path
        self._unsynced.add(path)
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        self.step("write")
        return super().write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        # Of folders too, which have no name here.
        self.step("fsync")
        super().fsync(descriptor)
        if descriptor in self._paths:
            self._unsynced.discard(self._paths[descriptor])

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        self._paths.pop(descriptor, None)
        self.step("close")

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename")
        super().rename(old, new)
        if old in self._unsynced:
            self._unsynced.discard(old)
            self._unsynced.add(new)
        self._unsynced_names.setdefault(new.parent, set()).add(new)

    def fsync_folder(self, path: Path) -> None:
        self.step("fsync_folder")
        super().fsync_folder(path)
        self._unsynced_names.pop(path, None)

    def unlink(self, path: Path) -> None:
        self.step("unlink")
        super().unlink(path)

    def read(self, path: Path) -> bytes:
        self.step("read")
        return super().read(path)

    def read_part(self, path: Path, at: int, num_bytes: int) -> bytes:
        self.step("read")
        return super().read_part(path, at, num_bytes)

    def num_bytes(self, path: Path) -> int | None:
        self.step("num_bytes")
        return super().num_bytes(path)

    def scan(self, folder: Path) -> list[tuple[Path, int]]:
        self.step("scan")
        return super().scan(folder)

    def committing(self) -> None:
        self.step("committing")

    def committed(self) -> None:
        self.step("committed")


class FaultyFiles(SteppedFiles):
    """A disk that counts, and fails `name` for the next `times` times after `after` more."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()
        self.largest_write: int | None = None  # bytes; the disk takes no more at once
        self._faults: dict[str, tuple[int, int, OSError]] = {}

    def fail(self, name: str, error: OSError, *, after: int = 0, times: int = 1) -> None:
        assert name in STEPS
        self._faults[name] = (after, times, error)

    def heal(self) -> None:
        self._faults.clear()
        self.largest_write = None

    def step(self, name: str) -> None:
        self.counts[name] += 1
        if name not in self._faults:
            return
        after, times, error = self._faults[name]
        if after:
            self._faults[name] = (after - 1, times, error)
        elif times:
            self._faults[name] = (0, times - 1, error)
            raise error

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[: self.largest_write])
