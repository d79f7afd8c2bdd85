"""The CUDA kernels as far as they can be checked without a GPU: nvcc compiles them.

Whether they compute the right thing, test_gpu_kernels.py checks where there is a GPU, and
layouts.choose at every load.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxbun.adapters.mlx_compute import few_rows_source
from mlxbun.adapters.mlx_compute.attention_sources import CUDA
from mlxbun.adapters.mlx_compute.cuda_kernels import CudaKernel
from mlxbun.adapters.mlx_compute.few_rows_blocking import blocking
from mlxbun.adapters.mlx_compute.few_rows_source import Form
from mlxbun.adapters.mlx_compute.fused_decode import kernels

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
INTEGERS = {"table", "lengths", "places", "pages", "num_tokens", "ends", "tokens", "done"}
FLOATS = {"turns", "squares", "sums", "parts"}
CONSTANTS = {"DIM": 128, "KEY_HEADS": 8, "QUERIES": 2, "PAGE": 64, "WARPS": 4, "UNROLL": 4}
CONSTANTS |= {"HEADS": 8, "PER_TOKEN": 16}


Compile = Callable[..., subprocess.CompletedProcess[str]]


def unit(kernel: CudaKernel, constants: dict[str, int], dtype: mx.Dtype | None) -> str:
    def types(names: Sequence[str]) -> tuple[mx.Dtype, ...]:
        kinds = {**dict.fromkeys(INTEGERS, mx.int32), **dict.fromkeys(FLOATS, mx.float32)}
        return tuple(kinds.get(name, mx.bfloat16) for name in names)

    template = tuple(constants.items()) + ((("T", dtype),) if dtype else ())
    axes = (4,) * len(kernel.input_names)
    return kernel.text(types(kernel.input_names), axes, types(kernel.output_names), template, 128)


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    def run(kernel: CudaKernel, constants: dict[str, int], dtype: mx.Dtype | None) -> Any:
        source = tmp_path / "kernel.cu"
        source.write_text(unit(kernel, constants, dtype))
        options = ["-std=c++17", "-arch=sm_90", "-DKERNEL=kernel", "-ptx", "-o", "/dev/null"]
        return subprocess.run(["nvcc", *options, str(source)], capture_output=True, text=True)

    return run


@pytest.mark.parametrize("name", CUDA.bodies)
def test_an_attention_kernel_compiles(name: str, compiled: Compile) -> None:
    kernel = CUDA.kernel(name, "mlxbun_attention", 0.1, 1e-6)
    done = compiled(kernel, CONSTANTS, mx.bfloat16)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("num_rows", [1, 32])
@pytest.mark.parametrize("form", ["plain", "parts", "normed", "gated", "adding"])
def test_a_product_of_few_rows_compiles(form: str, num_rows: int, compiled: Compile) -> None:
    way = blocking(num_rows, 4096, 1024, gated=form == "gated", adds=form == "adding")
    assert way is not None
    made = {
        "plain": Form("bfloat16", way, biased=True),
        "parts": Form("bfloat16", way, num_axes=3, parts=3),
        "normed": Form("bfloat16", way, normed=True, eps=1e-6, columns_a_sum=16),
        "gated": Form("bfloat16", way, normed=True, gated=True, eps=1e-6, columns_a_sum=16),
        "adding": Form("bfloat16", way, adds=True),
    }[form]
    done = compiled(few_rows_source.kernel(made), {}, None)
    assert done.returncode == 0, done.stderr


def test_the_embedding_compiles(compiled: Compile) -> None:
    done = compiled(kernels._embed(16), {}, None)
    assert done.returncode == 0, done.stderr
