"""CUDA kernels, compiled once on a machine or once in every process.

MLX compiles a custom kernel each time that a process first runs it, with headers of its own that
take two seconds; a model's opening took forty of them.  Without those headers a kernel takes a
third of a second, and what came out can be kept in a folder: the next opening takes three.

But MLX hashes what an operation brings, text or machine code, each time that it runs, 0.2
microseconds a kilobyte, and machine code is longer: 60 KB more a layer, a third of a millisecond
more a step.  A large model's step is longer on the device than on the host, so it costs nothing
there; a small model's is not, and for those MLX compiles.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute import nvrtc

log = logging.getLogger("mlxbun.compute")

MOST_KEPT = 1024  # kernels: some 30 MB
STALE = 3600.0  # seconds after which a file that is half written is a dead process's
_TYPES = {
    mx.float32: "float",
    mx.bfloat16: "__nv_bfloat16",
    mx.float16: "__half",
    mx.int32: "int",
    mx.uint32: "unsigned",
}
# types and axes of the inputs, types of the outputs, template, threads of a block
_Form = tuple[
    tuple[mx.Dtype, ...],
    tuple[int, ...],
    tuple[mx.Dtype, ...],
    tuple[tuple[str, int | mx.Dtype], ...],
    int,
]
_PREAMBLE = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"


class CudaKernel:
    """Called as what `mx.fast.cuda_kernel` returns is called.

    A body finds its inputs and outputs by their names, the shape of an input `x` in `x_shape`,
    and the template's constants and types.
    """

    def __init__(
        self,
        *,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
    ) -> None:
        self._name = name
        self.input_names = tuple(input_names)
        self.output_names = tuple(output_names)
        self._source = source
        self._header = header
        self._shaped = tuple(f"{name}_shape" in source for name in input_names)
        self._ready = dict[_Form, tuple[str, bytes]]()
        self._by_mlx: Any = None

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
        template: Sequence[tuple[str, int | mx.Dtype]] = (),
    ) -> list[mx.array]:
        """Return the outputs.  `grid` counts threads.

        Raises NoCompiler and CompileFailed when it is first called.
        """
        if _folder is None:
            self._by_mlx = self._by_mlx or self._given_to_mlx(threadgroup[0], bool(template))
            found: list[mx.array] = self._by_mlx(
                inputs=inputs,
                template=list(template),
                grid=grid,
                threadgroup=threadgroup,
                output_shapes=output_shapes,
                output_dtypes=output_dtypes,
            )
            return found
        form = (
            tuple(array.dtype for array in inputs),
            tuple(array.ndim for array in inputs),
            tuple(output_dtypes),
            tuple(template),
            threadgroup[0] * threadgroup[1] * threadgroup[2],
        )
        if form not in self._ready:
            self._ready[form] = _compiled(self._name, self.text(*form), _folder)
        unique, code = self._ready[form]
        sizes = [
            size
            for array, shaped in zip(inputs, self._shaped, strict=True)
            if shaped
            for size in array.shape
        ]
        return mx.fast.precompiled_cuda_kernel(
            name=unique,
            compiled_source=code,
            inputs=list(inputs),
            output_shapes=list(output_shapes),
            output_dtypes=list(output_dtypes),
            scalars=sizes,
            grid=grid,
            threadgroup=threadgroup,
            ensure_row_contiguous=True,
        )

    def _given_to_mlx(self, num_threads: int, has_template: bool) -> Any:
        name, header, source = self._name, self._header, self._source
        if not has_template:
            # MLX writes the line where bounds are said: so the name says them, until the body
            # begins.  A template becomes part of the name, and is not known here.
            whole = f"custom_kernel_{name}"
            header += f"#define {whole} __launch_bounds__({num_threads}) {whole}\n"
            source = f"#undef {whole}\n{source}"
        return mx.fast.cuda_kernel(
            name=name,
            input_names=list(self.input_names),
            output_names=list(self.output_names),
            source=source,
            header=header,
        )

    def text(
        self,
        input_dtypes: tuple[mx.Dtype, ...],
        num_axes: tuple[int, ...],
        output_dtypes: tuple[mx.Dtype, ...],
        template: tuple[tuple[str, int | mx.Dtype], ...],
        num_threads: int,
    ) -> str:
        """Return the translation unit; its kernel is called KERNEL."""
        parameters = [
            *(
                f"const {_TYPES[dtype]}* {name}"
                for name, dtype in zip(self.input_names, input_dtypes, strict=True)
            ),
            *(
                f"{_TYPES[dtype]}* {name}"
                for name, dtype in zip(self.output_names, output_dtypes, strict=True)
            ),
        ]
        lines = list[str]()
        for name, shaped, count in zip(self.input_names, self._shaped, num_axes, strict=True):
            if shaped:
                sizes = [f"{name}_size_{axis}" for axis in range(count)]
                parameters += [f"int {size}" for size in sizes]
                lines.append(f"const int {name}_shape[] = {{{', '.join(sizes)}}};")
        for word, value in template:
            if isinstance(value, int):
                lines.append(f"constexpr int {word} = {value};")
            else:
                lines.append(f"using {word} = {_TYPES[value]};")
        # The registers that a thread may have depend on how many there are.
        return (
            f"{_PREAMBLE}{self._header}\n"
            f'extern "C" __global__ void __launch_bounds__({num_threads})\n'
            f"KERNEL({', '.join(parameters)}) {{\n"
            + "".join(f"  {line}\n" for line in lines)
            + f"{self._source}\n}}\n"
        )


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
        path = self._folder / f"{key}.cubin"
        try:
            whole = path.read_bytes()
        except OSError:
            whole = b""
        digest, code = whole[:32], whole[32:]
        if code and hashlib.sha256(code).digest() == digest:
            return code
        code = make()
        try:
            self._write(path, hashlib.sha256(code).digest() + code)
        except OSError as error:
            log.warning("compiled kernels cannot be kept, so each start compiles them: %s", error)
        return code

    def _write(self, path: Path, whole: bytes) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        number, aside = tempfile.mkstemp(dir=self._folder, suffix=".part")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(whole)
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        files = sorted(self._folder.glob("*.cubin"), key=_changed)
        left = [
            part for part in self._folder.glob("*.part") if _changed(part) < time.time() - STALE
        ]
        for old in (*left, *files[: max(0, len(files) - self._most)]):
            old.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


_folder: Path | None = None


def keep_in(folder: Path | None) -> None:
    """Keep what is compiled from now on in `folder`, which processes may share.

    None: MLX compiles, and keeps nothing; so it does, with a warning, where we cannot.
    """
    global _folder
    try:
        _folder = folder if folder and nvrtc.options() else None
    except nvrtc.NoCompiler as error:
        log.warning("kernels are compiled by MLX, at each start: %s", error)
        _folder = None


def _compiled(name: str, text: str, folder: Path) -> tuple[str, bytes]:
    """Return a kernel's name, which no other has, and its code."""
    options = nvrtc.options()
    made_from = "\n".join((nvrtc.version(), *options, text))
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    unique = f"{name}_{digest[:16]}"
    whole = f"#define KERNEL {unique}\n{text}"
    code = KeptCode(folder).get(f"{name}_{digest}", lambda: nvrtc.compiled(whole, options))
    return unique, code
