"""Looks, in a process of its own, at what MLX can do on this machine and how fast.

The caller's process stays without MLX, and a crash in there is a finding like any other.
"""

from __future__ import annotations

import subprocess
import sys

import msgspec
from msgspec import Struct

from mlxbun.adapters.mlx_compute.blas import BlasReport
from mlxbun.application.diagnosis import Check

SECONDS = 60
SLOW = 0.2  # of numpy's speed: the reference BLAS has a fortieth
INSTALL_BLAS = (
    "pip install cmeel-openblas, or apt-get install libopenblas0-pthread, or name a library "
    "in MLX_BUN_BLAS; prompts are read 20 to 40 times slower without"
)


class Probe(Struct, frozen=True):
    """What that process found.  Speeds are 1e9 operations a second, float32, on the CPU."""

    mlx: str
    device: str
    blas: BlasReport
    mlx_speed: float
    numpy_speed: float
    compile_error: str


def machine_checks(blas: str | None = None) -> list[Check]:
    """Return what is to be said of MLX here; `blas` is the library that was asked for."""
    command = [sys.executable, "-c", _SCRIPT, *([blas] if blas else [])]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        todo = "is the machine busy?  Try again"
        return [Check("mlx", "fail", f"no answer within {SECONDS} s", todo)]
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        found = said[-1] if said else f"the process ended with status {done.returncode}"
        return [Check("mlx", "fail", found, "reinstall it: pip install --force-reinstall mlx")]
    return describe(msgspec.json.decode(done.stdout, type=Probe))


def describe(probe: Probe) -> list[Check]:
    """Return the checks that `probe` amounts to."""
    blas = probe.blas
    checks = [Check("mlx", "ok", f"{probe.mlx} on {probe.device}")]
    if blas.kind == "not needed":
        checks.append(Check("blas", "ok", blas.note))
    else:
        name = f"{blas.path}, {blas.threads} threads, {blas.note}" if blas.path else blas.note
        speeds = f"{probe.mlx_speed:.0f} GFLOP/s (numpy {probe.numpy_speed:.0f})"
        if blas.is_fast and probe.mlx_speed > SLOW * probe.numpy_speed:
            checks.append(Check("blas", "ok", f"{speeds}, {blas.kind}: {name}"))
        else:
            checks.append(Check("blas", "warn", f"{speeds}, {blas.kind}: {name}", INSTALL_BLAS))
    if probe.compile_error:
        todo = "install a C++ compiler (apt-get install g++); steps are a little slower without"
        checks.append(Check("compile", "warn", probe.compile_error, todo))
    else:
        checks.append(Check("compile", "ok", "mx.compile works"))
    return checks


_SCRIPT = """
import sys, time, msgspec
from mlxbun.adapters.mlx_compute.blas import load_fast_blas
from mlxbun.adapters.mlx_compute.probe import Probe
blas = load_fast_blas(*sys.argv[1:])
import mlx.core as mx
import numpy as np
a, b = (np.random.default_rng(i).normal(size=(512, 512)).astype(np.float32) for i in (0, 1))
x, y = mx.array(a), mx.array(b)
def speed(multiply):
    def once():
        begin = time.perf_counter()
        multiply()
        return time.perf_counter() - begin
    return 2 * 512**3 / min(once() for _ in range(5)) / 1e9
with mx.stream(mx.cpu):
    assert np.allclose(np.array(x @ y), a @ b, atol=1e-3), "MLX multiplies matrices wrong"
    of_mlx = speed(lambda: mx.eval(x @ y))
try:
    mx.eval(mx.compile(lambda z: mx.exp(z * 2 + 1) - z)(x))
    error = ""
except Exception as raised:
    error = (str(raised).strip().splitlines() or [type(raised).__name__])[0]
device = str(mx.default_device()) + ", " + str(mx.device_info().get("device_name", "?"))
probe = Probe(mx.__version__, device, blas, of_mlx, speed(lambda: a @ b), error)
sys.stdout.buffer.write(msgspec.json.encode(probe))
"""
