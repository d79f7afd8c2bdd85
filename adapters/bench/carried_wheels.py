"""Wheels on their way to a machine that reaches no registry: shared out, split, joined, unzipped.

Standard library only: the machine that unpacks has nothing else yet.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import MetadataPathFinder
from io import BytesIO
from pathlib import Path

ALWAYS_ANEW = "mlx"  # unless this very version is there
_PIECE = re.compile(r"(?P<wheel>.+\.whl)\.(?P<number>\d+)of(?P<count>\d+)")
_LIBRARIES = ("purelib", "platlib")  # of NAME.data; scripts and headers are not needed


class PiecesMissing(RuntimeError):
    """Of some wheel not all pieces are there; what was complete is unpacked."""


@dataclass(frozen=True)
class Wheel:
    """A wheel's file name, and the files that joined in this order are its content."""

    file_name: str
    pieces: tuple[Path, ...]

    @property
    def name(self) -> str:
        return normalised(self.file_name.split("-")[0])

    @property
    def version(self) -> str:
        return self.file_name.split("-")[1]


def normalised(name: str) -> str:
    """Return a distribution's name as PyPI compares it.  Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def piece_sizes(num_bytes: int, most: int) -> list[int]:
    """Return the sizes of the fewest pieces of at most `most` bytes."""
    return [min(most, num_bytes - start) for start in range(0, num_bytes, most)]


def shared_out(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Return the names in as few groups as first-fit-decreasing finds, each within `most` bytes.

    One that is larger than that has a group of its own.
    """
    groups: list[list[str]] = []
    room: list[int] = []
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        for i, left in enumerate(room):
            if size <= left:
                groups[i].append(name)
                room[i] -= size
                break
        else:
            groups.append([name])
            room.append(most - size)
    return groups


def lay_out(
    wheels: Sequence[Path], out: Path, *, piece_bytes: int, folder_bytes: int
) -> list[Path]:
    """Write `wheels` into folders out/1, out/2, ... and return those.

    A wheel of more than `piece_bytes` is written in pieces, no two of them into one folder as
    long as `piece_bytes` is more than half of `folder_bytes`.
    """
    parts: dict[str, bytes] = {}
    for wheel in wheels:
        content, start = wheel.read_bytes(), 0
        sizes = piece_sizes(len(content), piece_bytes)
        for i, size in enumerate(sizes):
            name = wheel.name if len(sizes) == 1 else f"{wheel.name}.{i + 1}of{len(sizes)}"
            parts[name] = content[start : start + size]
            start += size
    folders: list[Path] = []
    groups = shared_out({name: len(part) for name, part in parts.items()}, folder_bytes)
    for number, group in enumerate(groups, start=1):
        folders.append(out / str(number))
        folders[-1].mkdir(parents=True)
        for name in group:
            (folders[-1] / name).write_bytes(parts[name])
    return folders


def found_in(folders: Iterable[Path]) -> tuple[list[Wheel], list[str]]:
    """Return the whole wheels in `folders`, and a line for each that lacks pieces."""
    whole: list[Wheel] = []
    split: dict[tuple[str, int], dict[int, Path]] = {}
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if match := _PIECE.fullmatch(path.name):
            pieces = split.setdefault((match["wheel"], int(match["count"])), {})
            pieces[int(match["number"])] = path
        elif path.suffix == ".whl":
            whole.append(Wheel(path.name, (path,)))
    missing: list[str] = []
    for (file_name, count), pieces in split.items():
        lacking = [number for number in range(1, count + 1) if number not in pieces]
        if lacking:
            missing.append(f"{file_name}: no piece {', '.join(map(str, lacking))} of {count}")
        else:
            whole.append(Wheel(file_name, tuple(pieces[i + 1] for i in range(count))))
    return sorted(whole, key=lambda wheel: wheel.file_name), missing


def is_there(wheel: Wheel, path: Sequence[str]) -> bool:
    """Say whether `path` has its distribution: in any version, or of MLX's in this one."""
    importlib.invalidate_caches()
    context = MetadataPathFinder.Context(name=wheel.name, path=list(path))
    versions = [found.version for found in MetadataPathFinder.find_distributions(context)]
    if wheel.name.startswith(ALWAYS_ANEW):
        return wheel.version in versions
    return bool(versions)


def unzip(wheel: Wheel, site: Path) -> None:
    """Write what is importable in `wheel` into `site`, its metadata last.

    So what has metadata is complete.  Raises zipfile.BadZipFile for broken content.
    """
    content = b"".join(piece.read_bytes() for piece in wheel.pieces)
    with zipfile.ZipFile(BytesIO(content)) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        for name in sorted(names, key=lambda name: ".dist-info/" in name):
            if (target := _target(name)) is None:
                continue
            path = site / target
            if not path.resolve().is_relative_to(site.resolve()):
                raise zipfile.BadZipFile(f"{wheel.file_name} holds {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))


def _target(name: str) -> str | None:
    """Return where a wheel's file belongs under site-packages, None for what we leave out."""
    first, _, rest = name.partition("/")
    if not first.endswith(".data"):
        return name
    kind, _, inner = rest.partition("/")
    return inner if kind in _LIBRARIES else None


def unpack(folders: Sequence[Path], site: Path, path: Sequence[str]) -> list[str]:
    """Unpack what is not there yet into `site`; return a line for each wheel.

    `path` is where Python looks for packages.  Raises PiecesMissing.
    """
    lines: list[str] = []
    wheels, missing = found_in(folders)
    for wheel in wheels:
        if is_there(wheel, [str(site), *path]):
            lines.append(f"{wheel.name}: is there already")
        else:
            unzip(wheel, site)
            lines.append(f"{wheel.name} {wheel.version}: unpacked")
    if missing:
        raise PiecesMissing("; ".join(missing))
    return lines
