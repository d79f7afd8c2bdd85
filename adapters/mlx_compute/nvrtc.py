"""NVIDIA's run-time compiler, as far as our kernels need it.

MLX's CUDA build loads the library, so it is in the process wherever there is a device for a kernel.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import mlx.core as mx

_LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12")
_HEADER = "cuda_bf16.h"


class NoCompiler(Exception):
    """There is no compiler here, or it lacks CUDA's headers; says which."""


class CompileFailed(Exception):
    """A kernel is not one; has what the compiler says."""


def options() -> tuple[str, ...]:
    """Return how kernels for this process's device are compiled.  Raises NoCompiler."""
    return (f"--gpu-architecture={_architecture()}", "--std=c++17", f"--include-path={_headers()}")


def version() -> str:
    """Return the compiler's version, "13.0".  Raises NoCompiler."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compiled(text: str, options: tuple[str, ...]) -> bytes:
    """Return the machine code of a translation unit.  Raises NoCompiler and CompileFailed."""
    library, program = _library(), ctypes.c_void_p()
    given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernel.cu", 0, None, None)
    try:
        if library.nvrtcCompileProgram(program, len(options), given):
            raise CompileFailed(_bytes(program, "ProgramLog").rstrip(b"\0").decode())
        return _bytes(program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(_library(), f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(_library(), f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


@cache
def _library() -> ctypes.CDLL:
    failures = list[str]()
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)  # found by its name, because MLX has loaded it
        except OSError as error:
            failures.append(str(error))
    raise NoCompiler("; ".join(failures))


@cache
def _architecture() -> str:
    found = str(mx.device_info().get("architecture", ""))
    if not re.fullmatch(r"sm_\d+a?", found):
        raise NoCompiler(f"the device calls its architecture {found!r}")
    return found


@cache
def _headers() -> Path:
    tried = list(_include_folders())
    for folder in tried:
        if (folder / _HEADER).is_file():
            return folder
    raise NoCompiler(f"{_HEADER} is in none of {', '.join(map(str, tried))}; set CUDA_HOME")


def _include_folders() -> Iterator[Path]:
    """Name where CUDA's headers may be, in the order in which MLX looks, then in its wheels."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "include"
    yield Path("/usr/local/cuda/include")
    packages = Path(str(mx.__file__)).parents[1]
    yield packages / "nvidia/cu13/include"
    yield packages / "nvidia/cuda_runtime/include"
