"""Files of kernels that processes share: machine code, and texts that the compiler includes."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("mlxbun.compute")

MOST_KEPT = 1024  # files of a kind: some 30 MB of code, some 5 of text
STALE = 3600.0  # seconds after which a file that is half written is a dead process's
CODE, TEXT = ".cubin", ".cuh"


class KeptCode:
    """Machine code by a digest of what it was made from, in a folder that processes share."""

    def __init__(self, folder: Path, most: int = MOST_KEPT) -> None:
        """At most `most` files stay; the oldest go first."""
        self._folder = folder
        self._most = most

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return the code for `key`, made now if it was not kept or its file is damaged.

        A folder that cannot be written only costs time, and a warning.
        """
        path = self._folder / f"{key}{CODE}"
        try:
            whole = path.read_bytes()
        except OSError:
            whole = b""
        digest, code = whole[:32], whole[32:]
        if code and hashlib.sha256(code).digest() == digest:
            return code
        code = make()
        try:
            _write(path, hashlib.sha256(code).digest() + code, self._most)
        except OSError as error:
            log.warning("compiled kernels cannot be kept, so each start compiles them: %s", error)
        return code


def text_file(folder: Path, text: str) -> Path:
    """Return the file in `folder` that has `text`, written now if none has.  Raises OSError."""
    whole = text.encode()
    path = folder / f"{hashlib.sha256(whole).hexdigest()}{TEXT}"
    try:
        there = path.read_bytes()
    except FileNotFoundError:
        there = b""
    if there != whole:
        _write(path, whole, MOST_KEPT)
    return path


def _write(path: Path, whole: bytes, most: int) -> None:
    """Write a file at once; let go of the oldest of its kind beyond `most`, and of half ones."""
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    number, aside = tempfile.mkstemp(dir=folder, suffix=".part")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(whole)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    files = sorted(folder.glob(f"*{path.suffix}"), key=_changed)
    left = [part for part in folder.glob("*.part") if _changed(part) < time.time() - STALE]
    for old in (*left, *files[: max(0, len(files) - most)]):
        old.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0
