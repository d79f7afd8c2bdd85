"""One namespace in one tar file, to be carried to another directory.

First `blocks.json`: what is known of each block, parents before children, and ids of texts.  Then
the files of the blocks, as they are in a directory, each once.  Nothing is ever unpacked by name.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from mlxbun.adapters.ssd.container import Encoded, NotABlock, decode
from mlxbun.adapters.ssd.kept_ids import Row, kept_of
from mlxbun.domain.blocks import BlockInfo, Namespace, StoreFailed

FORM = "mlxbun-blocks-1"
_CONTENTS = "blocks.json"


class Listed(Struct, frozen=True):
    """A block in an archive: what is known of it, and the SHA-256 of its file."""

    info: BlockInfo
    content: str


class Archive(Struct, frozen=True):
    """What an archive says that it holds."""

    form: str
    namespace: Namespace
    description: str | None
    blocks: Sequence[Listed]
    kept_ids: Sequence[Row] = ()  # absent in older ones, and passed over by older readers


def write(path: Path, archive: Archive, read: Callable[[str], bytes]) -> int:
    """Write an archive, whose files `read` returns; return its size in bytes.

    It gets its name when it is complete.  Raises OSError.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with tarfile.open(partial, "w") as tar:
            _add(tar, _CONTENTS, msgspec.json.encode(archive))
            for content in dict.fromkeys(block.content for block in archive.blocks):
                _add(tar, f"{content}.safetensors", read(content))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path.stat().st_size


@contextmanager
def opened(path: Path) -> Generator[tuple[Archive, Iterator[Encoded]]]:
    """Yield what an archive says that it holds, and its files as they are to be written.

    Raises StoreFailed where it is no archive of ours, or not all of one, also while files are
    taken from it.
    """
    try:
        with tarfile.open(path, "r:") as tar:
            archive = _listed(tar, path)
            yield archive, _files(tar, path, {block.content for block in archive.blocks})
    except tarfile.TarError as error:
        raise StoreFailed(f"{path} is not a whole tar file: {error}") from error


def _listed(tar: tarfile.TarFile, path: Path) -> Archive:
    first = tar.next()
    file = tar.extractfile(first) if first is not None and first.name == _CONTENTS else None
    if file is None:
        raise StoreFailed(f"{path} holds no blocks of mlxbun")
    try:
        archive = msgspec.json.decode(file.read(), type=Archive)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreFailed(f"{path}: {_CONTENTS} cannot be read: {error}") from error
    if archive.form != FORM:
        raise StoreFailed(f"{path} is {archive.form}, and this mlxbun reads {FORM}")
    if any(kept_of(row) is None for row in archive.kept_ids):
        raise StoreFailed(f"{path} is damaged: it keeps other ids than it says")
    return archive


def _files(tar: tarfile.TarFile, path: Path, wanted: set[str]) -> Iterator[Encoded]:
    while (member := tar.next()) is not None:
        content = member.name.removesuffix(".safetensors")
        file = tar.extractfile(member)
        if file is None or content not in wanted:
            raise StoreFailed(f"{path} holds {member.name}, which no block needs")
        wanted.remove(content)
        data = file.read()
        if hashlib.sha256(data).hexdigest() != content:
            raise StoreFailed(f"{path} is damaged: {content} has other bytes")
        try:
            decode(data)
        except NotABlock as error:
            raise StoreFailed(f"{path} holds {content}, which is no block: {error}") from error
        yield Encoded(content, len(data), (memoryview(data),))
    if wanted:
        raise StoreFailed(f"{path} lacks {len(wanted)} of its files")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))
