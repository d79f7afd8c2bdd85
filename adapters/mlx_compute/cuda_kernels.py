"""CUDA kernels, compiled once on a machine or once in every process.

MLX compiles a custom kernel each time that a process first runs it, with headers of its own that
take two seconds; a model's opening took forty of them.  Without those headers a kernel takes a
third of a second, and what came out can be kept in a folder: the next opening takes three.

But MLX hashes what an operation brings, text or machine code, each time that it runs, 0.2
microseconds a kilobyte, and machine code is 100 KB a layer or more.  A large model's step is longer
on the device than on the host, so it costs nothing there.  A small model's is not: for those MLX
compiles, and gets a text that only names the files which have the rest.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute import nvrtc
from mlxbun.adapters.mlx_compute.kept_code import KeptCode, text_file

log = logging.getLogger("mlxbun.compute")

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
        if _code is None:
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
            self._ready[form] = _compiled(self._name, self.text(*form), _code)
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
        if _texts is not None:
            # MLX gives a kernel the shapes whose names it sees in the text.
            shaped = [
                f"{n}_shape" for n, s in zip(self.input_names, self._shaped, strict=True) if s
            ]
            header = _by_name(header, _texts)
            source = f"// {' '.join(shaped)}\n{_by_name(source, _texts)}"
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


_code: Path | None = None
_texts: Path | None = None


def keep_in(folder: Path, *, as_code: bool) -> None:
    """Keep what kernels come from in `folder`, which processes may share, from now on.

    As machine code, or as texts that MLX compiles; as texts, with a warning, where we cannot
    compile.
    """
    global _code, _texts
    _code, _texts = None, folder / "text"
    try:
        _code = folder if as_code and nvrtc.options() else None
    except nvrtc.NoCompiler as error:
        log.warning("kernels are compiled by MLX, at each start: %s", error)


def _by_name(text: str, folder: Path) -> str:
    """Return a text that the compiler takes for `text`, and that is short where it can be."""
    if not text:
        return text
    try:
        path = str(text_file(folder.absolute(), text))
    except OSError as error:
        log.warning("texts of kernels cannot be kept, so steps are slower: %s", error)
        return text
    return text if set(path) & set('"\\\n') else f'#include "{path}"\n'


def _compiled(name: str, text: str, folder: Path) -> tuple[str, bytes]:
    """Return a kernel's name, which no other has, and its code."""
    options = nvrtc.options()
    made_from = "\n".join((nvrtc.version(), *options, text))
    digest = hashlib.sha256(made_from.encode()).hexdigest()
    unique = f"{name}_{digest[:16]}"
    whole = f"#define KERNEL {unique}\n{text}"
    code = KeptCode(folder).get(f"{name}_{digest}", lambda: nvrtc.compiled(whole, options))
    return unique, code
