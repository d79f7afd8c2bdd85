"""What CUDA kernels were compiled to is kept; that needs no GPU."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxbun.adapters.mlx_compute import cuda_kernels, nvrtc
from mlxbun.adapters.mlx_compute.cuda_kernels import LOAD, RUN, CudaKernel, KeptCode

CODE = b"\x7fELF machine code"


class Compiler:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, options: tuple[str, ...]) -> bytes:
        self.texts.append(text)
        return CODE


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """NVRTC's double: what it is given is what MLX gets."""
    compiler = Compiler()
    monkeypatch.setattr(nvrtc, "compiled", compiler)
    monkeypatch.setattr(nvrtc, "options", lambda: ("--gpu-architecture=sm_90",))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    return compiler


def make() -> bytes:
    return CODE


def never() -> bytes:
    raise AssertionError("it was kept")


def test_code_is_made_once(tmp_path: Path) -> None:
    assert KeptCode(tmp_path / "new").get("a", make) == CODE
    assert KeptCode(tmp_path / "new").get("a", never) == CODE
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.cubin"]


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 100])
def test_a_damaged_file_is_made_anew(damage: bytes, tmp_path: Path) -> None:
    kept = KeptCode(tmp_path)
    kept.get("a", make)
    (tmp_path / "a.cubin").write_bytes(damage)
    assert kept.get("a", make) == CODE
    assert kept.get("a", never) == CODE


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_changed_byte_is_seen(at: int, tmp_path: Path) -> None:
    kept = KeptCode(tmp_path)
    kept.get("a", make)
    whole = bytearray((tmp_path / "a.cubin").read_bytes())
    whole[at] ^= 1
    (tmp_path / "a.cubin").write_bytes(whole)
    assert kept.get("a", make) == CODE
    assert kept.get("a", never) == CODE


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING, "mlxbun.compute"):
        assert KeptCode(tmp_path / "file").get("a", make) == CODE
    assert "each start compiles them" in caplog.text


def test_a_compiler_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> bytes:
        raise nvrtc.CompileFailed("error: expected a ';'")

    with pytest.raises(nvrtc.CompileFailed, match="expected a ';'"):
        KeptCode(tmp_path).get("a", fails)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_go_first(tmp_path: Path) -> None:
    kept = KeptCode(tmp_path, most=2)
    for age, key in ((300, "a"), (100, "b"), (200, "c")):
        kept.get(key, make)
        at = (tmp_path / f"{key}.cubin").stat().st_mtime - age
        os.utime(tmp_path / f"{key}.cubin", (at, at))
    kept.get("d", make)
    assert sorted(file.stem for file in tmp_path.iterdir()) == ["b", "d"]


GET_ALL = """
import sys
from pathlib import Path
from mlxbun.adapters.mlx_compute.cuda_kernels import KeptCode

for key in map(str, range(50)):
    assert KeptCode(Path(sys.argv[1]), most=20).get(key, lambda: b"machine code") == b"machine code"
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GET_ALL, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert {file.suffix for file in tmp_path.iterdir()} == {".cubin"}


def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let MLX take kernels without a GPU; return what it was given."""
    calls: list[dict[str, Any]] = []

    def take(**call: Any) -> list[mx.array]:
        calls.append(call)
        return [mx.zeros(shape) for shape in call["output_shapes"]]

    monkeypatch.setattr(mx.fast, "precompiled_cuda_kernel", take)
    return calls


def run(kernel: CudaKernel, x: mx.array, width: int = 8) -> None:
    kernel(
        inputs=[x, mx.zeros((3,), mx.int32)],
        grid=(256, 1, 1),
        threadgroup=(128, 1, 1),
        output_shapes=[(2, 3)],
        output_dtypes=[mx.float32],
        template=[("T", x.dtype), ("WIDTH", width)],
    )


@pytest.fixture
def kernel() -> CudaKernel:
    return CudaKernel(
        name="mlxbun_test",
        input_names=["x", "ids"],
        output_names=["out"],
        source="  out[0] = x_shape[1] + ids[0] + WIDTH + T(0);",
    )


def test_a_kernel_gets_its_shapes_and_constants(
    kernel: CudaKernel, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = given(monkeypatch)
    run(kernel, mx.zeros((5, 7), mx.bfloat16))
    [_, call], [text] = calls, compiler.texts
    assert call["scalars"] == [5, 7, RUN]
    assert call["output_shapes"] == [(2, 3)]
    assert call["ensure_row_contiguous"] is True
    head = (
        'extern "C" __global__ void __launch_bounds__(128)\n'
        "KERNEL(const __nv_bfloat16* x, const int* ids, float* out, "
        "int x_size_0, int x_size_1, int run)"
    )
    assert head in text
    assert f"#define KERNEL {call['name']}\n" in text
    assert "  if (run == 0) return;\n" in text
    assert "using T = __nv_bfloat16;" in text
    assert "constexpr int WIDTH = 8;" in text


def test_shapes_share_a_kernel_and_types_do_not(
    kernel: CudaKernel, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = given(monkeypatch)
    for x in (mx.zeros((5, 7)), mx.zeros((9, 1)), mx.zeros((5, 7), mx.float16)):
        run(kernel, x)
    run(kernel, mx.zeros((5, 7)), width=9)
    names = [call["name"] for call in calls if call["scalars"][-1] == RUN]
    assert len(compiler.texts) == 3
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_code_is_given_to_mlx_once_a_thread(
    kernel: CudaKernel, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = given(monkeypatch)
    run(kernel, mx.zeros((5, 7)))
    run(kernel, mx.zeros((9, 1)))
    load, *runs = calls
    assert load["compiled_source"] == CODE
    assert load["scalars"] == [0, 0, LOAD]
    assert len(load["inputs"]) == 2
    assert load["output_shapes"] == [(1,)]
    assert load["grid"] == load["threadgroup"] == (128, 1, 1)
    assert [call["compiled_source"] for call in runs] == [b"", b""]
    assert {call["name"] for call in calls} == {load["name"]}

    def elsewhere() -> None:
        run(kernel, mx.zeros((5, 7)))
        mx.clear_streams()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert [call["compiled_source"] for call in calls[3:]] == [CODE, b""]


def test_a_kernel_is_loaded_while_a_step_is_traced(
    kernel: CudaKernel, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = given(monkeypatch)

    def step(x: mx.array) -> mx.array:
        run(kernel, x)
        return x + 1

    assert mx.compile(step)(mx.zeros((5, 7))).sum().item() == 35
    assert [call["scalars"][-1] for call in calls] == [LOAD, RUN]


@pytest.fixture
def another(kernel: CudaKernel) -> Callable[[], CudaKernel]:
    """The same kernel as a later process makes it."""
    return lambda: CudaKernel(
        name="mlxbun_test",
        input_names=kernel.input_names,
        output_names=kernel.output_names,
        source="  out[0] = x_shape[1] + ids[0] + WIDTH + T(0);",
    )


def test_a_later_process_compiles_nothing(
    kernel: CudaKernel,
    another: Callable[[], CudaKernel],
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    calls = given(monkeypatch)
    monkeypatch.setattr(cuda_kernels, "_folder", tmp_path)
    run(kernel, mx.zeros((5, 7)))
    run(another(), mx.zeros((5, 7)))
    assert len(compiler.texts) == 1
    assert len({call["name"] for call in calls}) == 1
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")  # its code may differ
    run(another(), mx.zeros((5, 7)))
    assert len(compiler.texts) == 2
    assert calls[-1]["name"] != calls[0]["name"]


def test_a_machine_without_the_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "_LIBRARIES", ("libnvrtc.so.none",))
    nvrtc._library.cache_clear()
    with pytest.raises(nvrtc.NoCompiler, match=r"libnvrtc\.so\.none"):
        nvrtc.version()
    nvrtc._library.cache_clear()
