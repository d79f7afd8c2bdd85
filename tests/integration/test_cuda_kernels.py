"""What CUDA kernels were compiled to is kept; that needs no GPU."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxbun.adapters.mlx_compute import cuda_kernels, nvrtc
from mlxbun.adapters.mlx_compute.cuda_kernels import CudaKernel
from mlxbun.adapters.mlx_compute.kept_code import STALE, KeptCode, text_file

CODE = b"\x7fELF machine code"
INCLUDE = re.compile(r'#include "(/.*)"\n')


class Compiler:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, options: tuple[str, ...]) -> bytes:
        self.texts.append(text)
        return CODE


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """NVRTC's double: what it is given is what MLX gets."""
    compiler = Compiler()
    monkeypatch.setattr(nvrtc, "compiled", compiler)
    monkeypatch.setattr(nvrtc, "options", lambda: ("--gpu-architecture=sm_90",))
    monkeypatch.setattr(nvrtc, "version", lambda: "13.0")
    monkeypatch.setattr(cuda_kernels, "_code", tmp_path / "kernels")
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


def test_what_a_dead_process_left_goes(tmp_path: Path) -> None:
    for name, age in (("dead", 2 * STALE), ("busy", 0)):
        (tmp_path / f"{name}.part").write_bytes(b"half")
        at = (tmp_path / f"{name}.part").stat().st_mtime - age
        os.utime(tmp_path / f"{name}.part", (at, at))
    KeptCode(tmp_path).get("a", make)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.cubin", "busy.part"]


GET_ALL = """
import sys
from pathlib import Path
from mlxbun.adapters.mlx_compute.kept_code import KeptCode

for key in map(str, range(50)):
    assert KeptCode(Path(sys.argv[1]), most=20).get(key, lambda: b"machine code") == b"machine code"
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GET_ALL, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert {file.suffix for file in tmp_path.iterdir()} == {".cubin"}


def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """Let MLX take kernels without a GPU; return what it was given."""
    calls: list[dict[str, object]] = []

    def take(**call: object) -> list[mx.array]:
        calls.append(call)
        return [mx.zeros((2, 3))]

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
    [call], [text] = calls, compiler.texts
    assert call["scalars"] == [5, 7]
    assert call["compiled_source"] == CODE
    assert call["ensure_row_contiguous"] is True
    head = (
        'extern "C" __global__ void __launch_bounds__(128)\n'
        "KERNEL(const __nv_bfloat16* x, const int* ids, float* out, int x_size_0, int x_size_1)"
    )
    assert head in text
    assert f"#define KERNEL {call['name']}\n" in text
    assert "using T = __nv_bfloat16;" in text
    assert "constexpr int WIDTH = 8;" in text


def test_shapes_share_a_kernel_and_types_do_not(
    kernel: CudaKernel, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = given(monkeypatch)
    for x in (mx.zeros((5, 7)), mx.zeros((9, 1)), mx.zeros((5, 7), mx.float16)):
        run(kernel, x)
    run(kernel, mx.zeros((5, 7)), width=9)
    names = [call["name"] for call in calls]
    assert len(compiler.texts) == 3
    assert names[0] == names[1]
    assert len(set(names)) == 3


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
) -> None:
    calls = given(monkeypatch)
    run(kernel, mx.zeros((5, 7)))
    run(another(), mx.zeros((5, 7)))
    assert len(compiler.texts) == 1
    assert calls[0]["name"] == calls[1]["name"]
    monkeypatch.setattr(nvrtc, "version", lambda: "13.1")  # its code may differ
    run(another(), mx.zeros((5, 7)))
    assert len(compiler.texts) == 2
    assert calls[2]["name"] != calls[0]["name"]


@pytest.mark.parametrize("template", [True, False])
def test_without_a_folder_mlx_compiles(
    template: bool, kernel: CudaKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    def make(**given: Any) -> Any:
        def take(**call: Any) -> list[mx.array]:
            calls.append(call)
            return [mx.zeros((2, 3))]

        made.append(given)
        return take

    monkeypatch.setattr(mx.fast, "cuda_kernel", make)
    monkeypatch.setattr(cuda_kernels, "_code", None)
    monkeypatch.setattr(cuda_kernels, "_texts", None)
    for x in (mx.zeros((5, 7)), mx.zeros((9, 1))):
        if template:
            run(kernel, x)
        else:
            kernel(
                inputs=[x, x],
                grid=(256, 1, 1),
                threadgroup=(128, 1, 1),
                output_shapes=[(2, 3)],
                output_dtypes=[mx.float32],
            )
    [given] = made
    assert [call["inputs"][0].shape for call in calls] == [(5, 7), (9, 1)]
    assert given["input_names"] == ["x", "ids"] and given["output_names"] == ["out"]
    bounds = "#define custom_kernel_mlxbun_test __launch_bounds__(128) custom_kernel_mlxbun_test\n"
    assert (bounds in given["header"]) is not template
    assert given["source"].startswith("#undef custom_kernel_mlxbun_test\n") is not template


@pytest.mark.parametrize("writable", [True, False])
def test_mlx_gets_a_text_that_names_files(
    writable: bool,
    kernel: CudaKernel,
    another: Callable[[], CudaKernel],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is hashed at each step; MLX looks in it for the shapes that the kernel wants."""
    made: list[dict[str, Any]] = []

    def make(**given: Any) -> Any:
        made.append(given)
        return lambda **_: [mx.zeros((2, 3))]

    monkeypatch.setattr(mx.fast, "cuda_kernel", make)
    monkeypatch.setattr(cuda_kernels, "_code", None)
    monkeypatch.setattr(cuda_kernels, "_texts", None)
    run(kernel, mx.zeros((5, 7)))
    folder = tmp_path / "kernels"
    if not writable:
        folder.write_text("not a folder")
    with caplog.at_level(logging.WARNING, "mlxbun.compute"):
        cuda_kernels.keep_in(folder, as_code=False)
        run(another(), mx.zeros((5, 7)))
    whole, short = made
    for part in ("header", "source"):
        assert INCLUDE.sub(lambda found: Path(found[1]).read_text(), short[part]).endswith(
            whole[part]
        )
    if writable:
        assert len(short["header"]) + len(short["source"]) < 400
        assert "x_shape" in short["source"] and "ids_shape" not in short["source"]
        assert not caplog.records
    else:
        assert "cannot be kept" in caplog.text


def test_a_text_is_written_once_and_mended(tmp_path: Path) -> None:
    path = text_file(tmp_path / "new", "return 1;")
    changed = path.stat().st_mtime_ns
    assert text_file(tmp_path / "new", "return 1;") == path
    assert path.stat().st_mtime_ns == changed and path.read_text() == "return 1;"
    path.write_text("return")
    assert text_file(tmp_path / "new", "return 1;").read_text() == "return 1;"
    assert text_file(tmp_path / "new", "return 2;") != path


def test_a_machine_without_the_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nvrtc, "_LIBRARIES", ("libnvrtc.so.none",))
    nvrtc._library.cache_clear()
    with pytest.raises(nvrtc.NoCompiler, match=r"libnvrtc\.so\.none"):
        nvrtc.version()
    nvrtc._library.cache_clear()


def test_where_we_cannot_compile_mlx_does_and_a_warning_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def options() -> tuple[str, ...]:
        raise nvrtc.NoCompiler("cuda_bf16.h is in none of /usr/local/cuda/include")

    monkeypatch.setattr(nvrtc, "options", options)
    monkeypatch.setattr(cuda_kernels, "_code", tmp_path)
    monkeypatch.setattr(cuda_kernels, "_texts", None)
    with caplog.at_level(logging.WARNING, "mlxbun.compute"):
        cuda_kernels.keep_in(tmp_path, as_code=True)
    assert cuda_kernels._code is None
    assert cuda_kernels._texts == tmp_path / "text"
    assert "cuda_bf16.h is in none of" in caplog.text
