"""Which wheels a bare CUDA machine needs to run the bench, and fetching them with pip."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Collection, Sequence
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench.carried_wheels import normalised

PYTHON = "3.12"
CUDA = "mlx-cuda-13"
# MLX's CUDA build brings its own BLAS; nothing asks for pip but a build.
NOT_NEEDED = {"mlx-cpu", "mlx-metal", "cmeel", "cmeel-openblas", "pip", "setuptools"}
# pip matches a platform exactly, so every glibc that a wheel may name is listed.
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(35, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)
_TARGET = {
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
    "extra": "",
}


def wanted(pyproject: Path, there: Collection[str] = ()) -> list[str]:
    """Return `name==version` for all that the project needs there, as installed here.

    `there` names what that machine has already; what only that needs is left out with it.
    Raises PackageNotFoundError for something that is not installed here.
    """
    skipped = NOT_NEEDED | {normalised(name) for name in there}
    project = tomllib.loads(pyproject.read_text())["project"]
    todo = _applying(project["dependencies"])
    found: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in found or name in skipped:
            continue
        found[name] = version(name)
        todo += _applying(requires(name) or ())
    found[CUDA] = found["mlx"]  # CUDA's own libraries are that machine's
    return [f"{name}=={found[name]}" for name in sorted(found)]


def fetch(pins: Sequence[str], folder: Path, find_links: Sequence[str] = ()) -> list[Path]:
    """Download the wheels of `pins` into `folder` and return them.

    Raises CalledProcessError when pip finds none for that machine; pip says why.
    """
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    links = [word for link in find_links for word in ("--find-links", link)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--only-binary=:all:", "--python-version", PYTHON,
         "--implementation", "cp", *platforms, *links, "--dest", str(folder), *pins],
        check=True,
    )  # fmt: skip
    return sorted(folder.glob("*.whl"))


def _applying(requirements: Sequence[str]) -> list[str]:
    """Return the names in `requirements` that hold for the target."""
    parsing: Any = importlib.import_module("packaging.requirements")  # a dependency of ours
    found = [parsing.Requirement(text) for text in requirements]
    return [
        normalised(one.name) for one in found if one.marker is None or one.marker.evaluate(_TARGET)
    ]
