"""OpenBLAS under MLX's CPU build.  The dynamic linker itself says which library it bound."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mlxbun.adapters.mlx_compute.blas import BlasReport, load_fast_blas, renamed
from mlxbun.adapters.mlx_compute.probe import Probe, describe, machine_checks

pytestmark = pytest.mark.skipif(
    load_fast_blas().kind == "not needed", reason="this build of MLX needs no BLAS of ours"
)

MULTIPLY = """
from mlxbun.adapters.mlx_compute.blas import load_fast_blas
first, again = load_fast_blas(), load_fast_blas()
assert first == again, (first, again)
import mlx.core as mx
x = mx.random.normal((64, 64))
mx.eval(x @ x)
print(first.kind, first.threads)
"""


def run(script: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**{k: v for k, v in os.environ.items() if "BLAS" not in k}, **environ},
    )


def test_mlx_multiplies_with_the_library_that_was_loaded(tmp_path: Path) -> None:
    done = run(MULTIPLY, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "bindings"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("openblas ")
    bindings = "".join(path.read_text() for path in tmp_path.iterdir())
    bound = [x for x in bindings.splitlines() if "libmlx.so" in x and "`cblas_sgemm'" in x]
    assert bound and all(" to " in x and "libopenblas" in x.split(" to ")[1] for x in bound), bound


def test_the_number_of_threads_that_was_asked_for_is_kept() -> None:
    done = run(MULTIPLY, OPENBLAS_NUM_THREADS="2")
    assert done.stdout.split() == ["openblas", "2"], done.stderr


def test_by_default_half_of_the_cores_multiply() -> None:
    done = run(MULTIPLY)
    cores = len(os.sched_getaffinity(0))
    assert done.stdout.split() == ["openblas", str(max(1, min(8, cores // 2)))], done.stderr


def test_a_named_library_that_cannot_be_loaded_is_an_error() -> None:
    done = run(MULTIPLY, MLX_BUN_BLAS="/nowhere/libblas.so")
    assert done.returncode != 0
    assert "BlasUnusable: MLX_BUN_BLAS=/nowhere/libblas.so" in done.stderr


def test_it_says_so_when_mlx_was_there_first() -> None:
    done = run(
        "import mlx.core\n"
        "from mlxbun.adapters.mlx_compute.blas import load_fast_blas\n"
        "print(load_fast_blas())"
    )
    assert "kind='reference'" in done.stdout and "before" in done.stdout, done.stderr


def test_the_probe_finds_mlx_and_the_library_under_it() -> None:
    checks = {check.name: check for check in machine_checks()}
    assert list(checks) == ["mlx", "blas", "compile"]
    assert checks["mlx"].verdict == "ok" and "0.32.4" in checks["mlx"].found
    assert "libopenblas" in checks["blas"].found and "threads" in checks["blas"].found


def test_a_probe_that_breaks_is_a_finding() -> None:
    (check,) = machine_checks(blas="/nowhere/libblas.so")
    assert (check.name, check.verdict) == ("mlx", "fail")
    assert "MLX_BUN_BLAS=/nowhere/libblas.so" in check.found


PROBED = Probe("0", "cpu", BlasReport("openblas", "/lib/libopenblas.so.0", 1), 90.0, 100.0, "")


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({}, ["ok", "ok", "ok"]),
        ({"mlx_speed": 3.0}, ["ok", "warn", "ok"]),
        ({"blas": BlasReport("reference", note="none found")}, ["ok", "warn", "ok"]),
        ({"blas": BlasReport("not needed", note="CUDA"), "mlx_speed": 3.0}, ["ok", "ok", "ok"]),
        ({"compile_error": "no compiler"}, ["ok", "ok", "warn"]),
    ],
)
def test_what_is_slow_or_missing_is_a_warning_that_says_what_to_do(
    change: dict[str, object], verdicts: list[str]
) -> None:
    checks = describe(msgspec.structs.replace(PROBED, **change))
    assert [check.verdict for check in checks] == verdicts
    assert all(bool(check.todo) == (check.verdict != "ok") for check in checks)


def test_a_library_is_renamed_in_place() -> None:
    library = b"a\0libold-12.so\0b"
    assert renamed(library, b"libold-12.so", b"lib.so") == b"a\0lib.so" + bytes(7) + b"b"


@pytest.mark.parametrize("new", [b"libfar-too-long.so", b"x"])
def test_a_name_that_does_not_fit_or_is_not_there_is_refused(new: bytes) -> None:
    library = b"a\0libold.so\0b" if len(new) > 1 else b"a\0libother.so\0b"
    with pytest.raises(OSError, match="cannot rename"):
        renamed(library, b"libold.so", new)
