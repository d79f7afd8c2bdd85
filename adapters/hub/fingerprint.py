"""Content digests of a model folder's files, remembered by inode, size and time of change.

Hashing weights takes a second a gigabyte or two, so what was hashed once is not hashed again
while the file stays as it is.  A file of the Hugging Face cache is named by its SHA-256 already.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

log = logging.getLogger("mlxbun.hub")

_PIECE = 1 << 22
_COUNTS = re.compile(
    r".*\.safetensors|config\.json|generation_config\.json|tokenizer.*|special_tokens_map\.json"
    r"|chat_template.*|.*\.model|vocab\.json|merges\.txt"
)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGE = 1 << 28


def file_digests(
    folder: Path, memory: Path, tell: Callable[[str], None] = log.info
) -> dict[str, str]:
    """Return the SHA-256 of every file of `folder` that the model's state depends on, by name.

    `memory` is a file of ours that remembers digests; a damaged one is made anew.  `tell` hears
    of long work.
    """
    known = _remembered(memory)
    found: dict[str, str] = {}
    changed = False
    for path in sorted(folder.iterdir()):
        if not path.is_file() or not _COUNTS.fullmatch(path.name):
            continue
        target = path.resolve()
        if _DIGEST.fullmatch(target.name) and target.parent.name == "blobs":
            found[path.name] = target.name
            continue
        stat = target.stat()
        mark = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        if mark not in known:
            if stat.st_size > _LARGE:
                tell(f"hashing {path.name} ({stat.st_size / 2**30:.1f} GiB), once")
            known[mark] = _digest(target)
            changed = True
        found[path.name] = known[mark]
    if changed:
        _remember(memory, known)
    return found


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def _remembered(memory: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read, so files are hashed again: %s", memory, error)
        return {}


def _remember(memory: Path, known: dict[str, str]) -> None:
    aside = memory.with_name(f"{memory.name}.{os.getpid()}")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(msgspec.json.encode(known))
        aside.replace(memory)
    except OSError as error:
        log.warning("digests are not remembered in %s: %s", memory, error)
