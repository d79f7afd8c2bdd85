"""Files of blocks, named by what is in them: written aside, made durable, then given their name."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Literal

from mlxbun.adapters.ssd import whole
from mlxbun.adapters.ssd.container import Encoded, NotABlock, decode
from mlxbun.adapters.ssd.files import Files
from mlxbun.adapters.ssd.place import Place, alone
from mlxbun.domain.blocks import Tensor

Verify = Literal["always", "sample", "never"]

SAMPLED = 16  # of so many later reads of a file, one is verified again
QUARANTINED = 16  # so many damaged files are kept to be looked at

log = logging.getLogger("mlxbun.ssd")


class Damaged(Exception):
    """A file is not what was written, or is not there, or cannot be read."""


class Objects:
    """The folders `objects`, `staging` and `quarantine`.  Whether anybody needs a file is not known
    here.

    One thread at a time writes; any may read.
    """

    def __init__(self, root: Path, files: Files, verify: Verify) -> None:
        self._files = files
        self._root, self._staging, self._quarantine = (
            root / name for name in ("objects", "staging", "quarantine")
        )
        self._verify: Verify = verify
        self._verified: set[tuple[str, int]] = set()  # contents, and where in their files
        self._num_reads = 0
        self._damaged: set[str] = set()  # and could not be moved away
        self._durable: set[Path] = set()  # folders whose own names are on the medium
        self._lock = Lock()

    def make_folders(self) -> None:
        for folder in (self._root, self._staging, self._quarantine):
            self._files.make_folder(folder)

    def path(self, content: str) -> Path:
        if content.startswith(whole.PREFIX):
            digest = content.removeprefix(whole.PREFIX)
            return self._root / digest[:2] / f"{content}.blocks"
        return self._root / content[:2] / f"{content}.safetensors"

    def is_there(self, content: str, num_bytes: int) -> bool:
        """Return whether a file of that content and size is there."""
        if content in self._damaged:
            return False
        return self._files.num_bytes(self.path(content)) == num_bytes

    def write(self, objects: Sequence[Encoded]) -> None:
        """Make files durable under their names.  Raises OSError, with nothing left aside."""
        try:
            for encoded in objects:
                self._stage(encoded)
            folders = {self.path(encoded.content).parent for encoded in objects}
            for folder in sorted(folders - self._durable):
                self._files.make_folder(folder)
            for encoded in objects:
                self._files.rename(self._staged(encoded.content), self.path(encoded.content))
                self._damaged.discard(encoded.content)
                self._distrust(encoded.content)
            for folder in sorted(folders):
                self._files.fsync_folder(folder)
            if not folders <= self._durable:
                self._files.fsync_folder(self._root)
                self._durable |= folders
        except BaseException:
            for encoded in objects:
                with suppress(OSError):  # the disk may be beyond that: the next start sweeps
                    self._files.unlink(self._staged(encoded.content))
            raise

    def read(self, place: Place) -> list[Tensor]:
        """Return a block's tensors as views of one buffer.  Raises Damaged."""
        try:
            data = self._bytes(place)
            if self._is_due(place):
                _verify(data, place.digest)
                with self._lock:
                    self._verified.add((place.content, place.at))
            return _decoded(data)
        except Damaged:
            self._distrust(place.content)
            raise

    def verified(self, place: Place) -> bytes:
        """Return all bytes of a block, which are what was written.  Raises Damaged."""
        data = self._bytes(place)
        _verify(data, place.digest)
        _decoded(data)
        return data

    def check(self, content: str, num_bytes: int) -> None:
        """Read all of a file.  Raises Damaged where it is not what was written."""
        if not content.startswith(whole.PREFIX):
            self.verified(alone(content, num_bytes))
            return
        data = self._bytes(Place(content, num_bytes, 0, num_bytes, content))
        try:
            places = whole.decode(data, content)
        except NotABlock as error:
            raise Damaged(str(error)) from error
        for place in places:
            part = data[place.at : place.at + place.num_bytes]
            _verify(part, place.digest)
            _decoded(part)

    def remove(self, content: str) -> None:
        """Remove a file that nobody needs.  One that will not go is reported and swept later."""
        try:
            self._files.unlink(self.path(content))
        except OSError as error:
            log.warning("%s stays until the next start: %s", self.path(content), error)

    def quarantine(self, content: str, now: float) -> None:
        """Move a damaged file away, so that the same content can be written anew."""
        path = self.path(content)
        try:
            if self._files.num_bytes(path) is None:
                return
            set_aside(self._files, path, self._quarantine, now)
        except OSError as error:
            self._damaged.add(content)
            log.warning("%s cannot be moved into quarantine: %s", path, error)

    def sweep_staging(self) -> None:
        """Remove what a process that ended had not finished.  Raises OSError."""
        for path, _ in self._files.scan(self._staging):
            self._files.unlink(path)

    def stored(self) -> list[tuple[Path, str, int]]:
        """Return each file with the content that its name says, and its size.  Raises OSError."""
        return [(path, path.stem, size) for path, size in self._files.scan(self._root)]

    def _staged(self, content: str) -> Path:
        return self._staging / content

    def _stage(self, encoded: Encoded) -> None:
        descriptor = self._files.create(self._staged(encoded.content))
        try:
            for part in encoded.parts:
                while part:
                    written = self._files.write(descriptor, part)
                    if written == 0:
                        raise OSError("the disk takes no more bytes")
                    part = part[written:]
            self._files.fsync(descriptor)
        finally:
            self._files.close(descriptor)
        found = self._files.num_bytes(self._staged(encoded.content))
        if found != encoded.num_bytes:
            raise OSError(f"wrote {encoded.num_bytes} bytes, and the file has {found}")

    def _bytes(self, place: Place) -> bytes:
        path = self.path(place.content)
        try:
            if place.num_bytes == place.file_bytes:
                data = self._files.read(path)
            else:
                data = self._files.read_part(path, place.at, place.num_bytes)
        except OSError as error:
            raise Damaged(f"it cannot be read: {error.strerror or error}") from error
        if len(data) != place.num_bytes:
            raise Damaged(f"it has {len(data)} bytes, and had {place.num_bytes}")
        return data

    def _distrust(self, content: str) -> None:
        with self._lock:
            self._verified = {one for one in self._verified if one[0] != content}

    def _is_due(self, place: Place) -> bool:
        if self._verify != "sample":
            return self._verify == "always"
        with self._lock:
            if (place.content, place.at) not in self._verified:
                return True
            self._num_reads += 1
            return self._num_reads % SAMPLED == 0


def set_aside(files: Files, path: Path, quarantine: Path, now: float) -> None:
    """Move a file into quarantine, and let the oldest ones there go.  Raises OSError."""
    files.rename(path, quarantine / f"{int(now):012d}-{path.name}")
    for old, _ in sorted(files.scan(quarantine))[:-QUARANTINED]:
        files.unlink(old)


def _verify(data: bytes, digest: str) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise Damaged("its bytes are not those that were written")


def _decoded(data: bytes) -> list[Tensor]:
    try:
        return decode(data)
    except NotABlock as error:
        raise Damaged(str(error)) from error
