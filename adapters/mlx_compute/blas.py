"""Puts OpenBLAS under MLX's CPU build on Linux, whose wheel brings the slow reference BLAS.

MLX calls `cblas_sgemm` and LAPACK through the dynamic linker, which asks libraries loaded with
global symbols first.  So OpenBLAS, loaded globally before MLX, takes the calls.  Only float32
and float64 profit: MLX multiplies half precision and quantised matrices with code of its own.

PyPI's OpenBLAS (cmeel-openblas) wants `libgfortran.so.5`, which a bare machine lacks.  The
mlx-cpu wheel carries one under another name.  The linker compares what a library needs with the
names of those already loaded, so a copy in memory that calls itself `libgfortran.so.5` will do.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from msgspec import Struct

FORTRAN = b"libgfortran.so.5"
BLAS = "libopenblas"
MAX_DEFAULT_THREADS = 8


class BlasUnusable(RuntimeError):
    """The library that MLX_BUN_BLAS names cannot be loaded."""


class BlasReport(Struct, frozen=True):
    """Which BLAS multiplies float32 matrices.  `threads` is 0 where it is not known.

    "not needed": MLX brings its own (macOS, CUDA).  "reference": the slow one; `note` says why.
    "other": a library with BLAS's names that is not OpenBLAS, as somebody wished.
    """

    kind: Literal["openblas", "other", "reference", "not needed"]
    path: str = ""
    threads: int = 0
    note: str = ""

    @property
    def is_fast(self) -> bool:
        return self.kind != "reference"


def load_fast_blas(named: str | None = None) -> BlasReport:
    """Load OpenBLAS where MLX's CPU build will find it.  Call before MLX is first imported.

    Tries `named` (default: $MLX_BUN_BLAS) alone if there is one, and raises BlasUnusable if it
    fails; else the system's libopenblas.so.0, else PyPI's cmeel-openblas.  Sets
    OPENBLAS_NUM_THREADS to half the cores unless it is set: with all of them a busy neighbour
    makes OpenBLAS spin.  A second call only reports.
    """
    if sys.platform != "linux":
        return BlasReport("not needed", note="MLX uses the system's BLAS here")
    if any(_installed(f"mlx-cuda-{version}") for version in (12, 13)):
        return BlasReport("not needed", note="MLX's CUDA build is installed")
    loaded = ctypes.CDLL(None)
    if hasattr(loaded, "cblas_sgemm"):  # by LD_PRELOAD, or by an earlier call
        return _report(loaded, _mapped_blas())
    if "mlx.core" in sys.modules:
        return BlasReport("reference", note="MLX was imported before OpenBLAS could be loaded")
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, min(MAX_DEFAULT_THREADS, cores // 2))))
    if named := named or os.environ.get("MLX_BUN_BLAS"):
        try:
            return _load(named)
        except OSError as error:
            raise BlasUnusable(f"MLX_BUN_BLAS={named}: {error}") from error
    try:
        return _load("libopenblas.so.0")
    except OSError as error:
        reasons = [str(error)]
    try:
        return _load_cmeel()
    except OSError as error:
        reasons.append(str(error))
    return BlasReport("reference", note="; ".join(reasons))


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _load(path: str) -> BlasReport:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    if not hasattr(library, "cblas_sgemm"):
        raise OSError(f"{path} has no cblas_sgemm")
    return _report(library, _mapped_blas() or path)


def _load_cmeel() -> BlasReport:
    wheel = _installed("cmeel-openblas")
    if wheel is None:
        raise OSError("cmeel-openblas is not installed")
    _provide_fortran()
    return _load(str(wheel.locate_file("cmeel.prefix/lib/libopenblas.so.0")))


def _report(library: ctypes.CDLL, path: str) -> BlasReport:
    if not hasattr(library, "openblas_get_num_threads"):
        return BlasReport("other", path)
    library.openblas_get_corename.restype = ctypes.c_char_p
    core = library.openblas_get_corename().decode()
    return BlasReport(
        "openblas", path, int(library.openblas_get_num_threads()), f"kernels for {core}"
    )


def _mapped_blas() -> str:
    """Return the file of the OpenBLAS that this process has loaded, "" if there is none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and Path(fields[5]).name.startswith(BLAS):
            return fields[5]
    return ""


def _provide_fortran() -> None:
    """Load libgfortran.so.5 globally: the system's, or mlx-cpu's under that name.

    Raises OSError when there is neither.
    """
    try:
        ctypes.CDLL(FORTRAN.decode(), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        wheel = _installed("mlx-cpu")
        if wheel is None:
            raise
    else:
        return
    folder = Path(str(wheel.locate_file("mlx_cpu.libs")))
    fortran = next(folder.glob("libgfortran-*.so.5*"), None)
    if fortran is None:
        raise OSError(f"{folder} has no libgfortran")
    for quadmath in folder.glob("libquadmath-*.so.*"):  # libgfortran needs it, by this name
        ctypes.CDLL(str(quadmath), mode=ctypes.RTLD_GLOBAL)
    # In memory rather than in a cache folder: nothing to write, to race for or to go stale.
    copy = os.memfd_create(FORTRAN.decode())
    try:
        with os.fdopen(copy, "wb", closefd=False) as file:
            file.write(renamed(fortran.read_bytes(), fortran.name.encode(), FORTRAN))
        ctypes.CDLL(f"/proc/self/fd/{copy}", mode=ctypes.RTLD_GLOBAL)
    finally:
        os.close(copy)


def renamed(library: bytes, old: bytes, new: bytes) -> bytes:
    """Return `library` with the name `old` in its string table replaced by a shorter `new`.

    Raises OSError unless `old` is there and `new` fits in its place.
    """
    if len(new) > len(old) or b"\0" + old + b"\0" not in library:
        raise OSError(f"cannot rename {old.decode()} to {new.decode()}")
    return library.replace(b"\0" + old + b"\0", b"\0" + new.ljust(len(old), b"\0") + b"\0")
