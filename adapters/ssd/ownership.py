"""One process owns a directory: an flock, which the kernel gives back however a process ends."""

from __future__ import annotations

import fcntl
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from mlxbun.domain.blocks import StoreFailed


class StoreBusy(StoreFailed):
    """Another process owns the directory.  `holder` says which."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(f"{folder} is in use by {holder}")
        self.holder = holder


class Ownership:
    """The lock of a directory, held from the call of the constructor to that of `release`."""

    def __init__(self, folder: Path, now: float) -> None:
        """Take the lock.  Raises StoreBusy, or OSError where there can be none."""
        self._descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            since = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
            words = f"process {os.getpid()} ({Path(sys.argv[0]).name or 'python'}) since {since}"
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, words.encode(), 0)
        except BlockingIOError:
            words = os.pread(self._descriptor, 1000, 0).decode(errors="replace")
            os.close(self._descriptor)
            raise StoreBusy(folder, words or "another process") from None
        except OSError:
            os.close(self._descriptor)
            raise

    @property
    def held(self) -> bool:
        return self._descriptor >= 0

    def release(self) -> None:
        """Give the lock back.  The file stays: removing it would let two own its name."""
        if self._descriptor >= 0:
            # Said aloud, since closing alone would leave it with a process forked meanwhile.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = -1
