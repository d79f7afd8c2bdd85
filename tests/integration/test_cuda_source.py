"""The CUDA kernels as far as they can be checked without a GPU: nvcc compiles them.

Whether they compute the right thing, test_gpu_kernels.py checks where there is a GPU, and
layouts.choose at every load.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxbun.adapters.mlx_compute import few_rows_source
from mlxbun.adapters.mlx_compute.attention_sources import CUDA
from mlxbun.adapters.mlx_compute.few_rows_blocking import blocking
from mlxbun.adapters.mlx_compute.few_rows_source import Form
from mlxbun.adapters.mlx_compute.fused_decode import kernels

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
# What MLX puts before a kernel, as far as ours need it.
PREAMBLE = """
#include <cuda_bf16.h>
#include <cuda_fp16.h>
struct Shape { int at[10]; __device__ int operator[](int i) const { return at[i]; } };
"""
INTEGERS = {"table", "lengths", "places", "pages", "num_tokens", "ends", "tokens", "done"}
FLOATS = {"turns", "squares", "sums", "parts"}
CONSTANTS = {"DIM": 128, "KEY_HEADS": 8, "QUERIES": 2, "PAGE": 64, "WARPS": 4, "UNROLL": 4}
CONSTANTS |= {"HEADS": 8, "PER_TOKEN": 16}


class Captured:
    """A kernel as it is given to MLX, and a translation unit as MLX makes one of it."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def unit(self, constants: dict[str, int], dtype: str | None) -> str:
        names = [*self.given["input_names"], *self.given["output_names"]]
        source, parameters = self.given["source"], []
        for name in names:
            kind = "int" if name in INTEGERS else "float" if name in FLOATS else "__nv_bfloat16"
            const = "const " if name in self.given["input_names"] else ""
            parameters.append(f"{const}{kind}* {name}")
            if f"{name}_shape" in source:
                parameters.append(f"const __grid_constant__ Shape {name}_shape")
        lines = [f"constexpr int {name} = {value};" for name, value in constants.items()]
        lines += [f"using T = {dtype};"] if dtype else []
        return (
            f"{PREAMBLE}{self.given.get('header', '')}\n"
            f"__global__ void custom_kernel_{self.given['name']}({', '.join(parameters)}) {{\n"
            f"{' '.join(lines)}\n{source}\n}}\n"
        )


@pytest.fixture
def compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    monkeypatch.setattr(mx.fast, "cuda_kernel", Captured)

    def run(kernel: Any, constants: dict[str, int], dtype: str | None) -> Any:
        source = tmp_path / "kernel.cu"
        source.write_text(kernel.unit(constants, dtype))
        return subprocess.run(
            ["nvcc", "-std=c++17", "-arch=sm_90", "-ptx", "-o", "/dev/null", str(source)],
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize("name", CUDA.bodies)
def test_an_attention_kernel_compiles(name: str, compiled: Callable[..., Any]) -> None:
    kernel = CUDA.kernel(name, "mlxbun_attention", 0.1, 1e-6)
    done = compiled(kernel, CONSTANTS, "__nv_bfloat16")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("num_rows", [1, 32])
@pytest.mark.parametrize("form", ["plain", "parts", "normed", "gated", "adding"])
def test_a_product_of_few_rows_compiles(
    form: str, num_rows: int, compiled: Callable[..., Any]
) -> None:
    way = blocking(num_rows, 4096, 1024, gated=form == "gated", adds=form == "adding")
    assert way is not None
    made = {
        "plain": Form("bfloat16", way, biased=True),
        "parts": Form("bfloat16", way, num_axes=3, parts=3),
        "normed": Form("bfloat16", way, normed=True, eps=1e-6, columns_a_sum=16),
        "gated": Form("bfloat16", way, normed=True, gated=True, eps=1e-6, columns_a_sum=16),
        "adding": Form("bfloat16", way, adds=True),
    }[form]
    done = compiled(few_rows_source.kernel.__wrapped__(made), {}, None)
    assert done.returncode == 0, done.stderr


def test_the_embedding_compiles(compiled: Callable[..., Any]) -> None:
    done = compiled(kernels._embed.__wrapped__(16), {}, None)
    assert done.returncode == 0, done.stderr
