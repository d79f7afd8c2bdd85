"""Opening a model for serving: load it, choose its row layout, and warm what a step runs.

Called on the engine's thread, which owns everything that comes out of here.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute import cuda_kernels, few_rows_matmul, layouts, loading
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.gated_mlp import quicken_mlps
from mlxbun.adapters.mlx_compute.joint_projections import join_projections
from mlxbun.adapters.mlx_compute.one_row_products import cut_heads, pieces_of
from mlxbun.adapters.mlx_compute.paged_rows import FUSED
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.adapters.mlx_compute.shared_rope import share_rotations
from mlxbun.adapters.mlx_compute.slot_rows import SHORT
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId

log = logging.getLogger("mlxbun.compute")

KERNELS = Path("~/.cache/mlxbun/kernels").expanduser()
LARGE_MODEL = 4_000_000_000  # bytes, of which the device reads for longer than the host prepares
OPS_A_GRAPH = 600
MB_A_GRAPH = 1_000_000  # MLX counts elements read, weights and pools among them: no limit

# What most requests ask; together they use every kernel that a step commonly needs.
_COMMON = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(
        temperature=1.0,
        top_p=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
    ),
)


class Note(Struct, frozen=True):
    """Something that opening decided: a line of the effective configuration."""

    name: str
    value: str
    why: str


class OpenedCompute(Struct, frozen=True):
    """`numerics` names all that the values of kept state depend on besides the model's files."""

    compute: MlxCompute
    notes: tuple[Note, ...]
    numerics: str = ""


def open_mlx_compute(
    folder: Path,
    *,
    dtype: loading.DType,
    l1: bool,
    vocab_size: int,
    xtc_exempt: Collection[TokenId],
    kernels: Path = KERNELS,
) -> OpenedCompute:
    """Open the model in `folder`.  Raises what mlx-lm raises for one that it cannot load.

    `vocab_size` is the width of its logits, `xtc_exempt` the tokens that XTC never removes;
    what is compiled for CUDA is kept in `kernels`.
    """
    started = time.monotonic()
    settle_device(kernels)
    loaded = loading.load(folder, dtype, exact=l1)
    return _opened(loaded, l1, vocab_size, xtc_exempt, started, kernels)


def open_loaded(
    model: Any, *, l1: bool, vocab_size: int, xtc_exempt: Collection[TokenId]
) -> OpenedCompute:
    """Open a model that is in memory, by the same rules.  Changes its modules."""
    started = time.monotonic()
    settle_device()
    loaded = loading.settled(model, "auto", exact=l1)
    return _opened(loaded, l1, vocab_size, xtc_exempt, started)


def settle_device(kernels: Path = KERNELS) -> None:
    """Set what MLX reads once, when its device is first used; a user's own setting stays."""
    if loading.on_cuda():
        os.environ.setdefault("MLX_PTX_CACHE_DIR", str(kernels / "mlx" / version("mlx")))
        # A step in one CUDA graph: with MLX's own limits, 100 and 1000, host time was a
        # fifth to a third more.
        os.environ.setdefault("MLX_MAX_OPS_PER_BUFFER", str(OPS_A_GRAPH))
        os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", str(MB_A_GRAPH))


def _opened(
    loaded: loading.LoadedModel,
    l1: bool,
    vocab_size: int,
    xtc_exempt: Collection[TokenId],
    started: float,
    kernels: Path = KERNELS,
) -> OpenedCompute:
    saved = quick_mlps = 0
    if not l1:
        if loading.on_cpu() and loaded.compiles:
            saved = quick_mlps = quicken_mlps(loaded.model)
        saved += join_projections(loaded.model, alone=_gains_alone)
        if loading.on_cpu():
            share_rotations(loaded.model)
            cut_heads(loaded.model)
    if loading.on_cuda():
        keeps = loaded.num_bytes >= LARGE_MODEL
        cuda_kernels.keep_in(kernels, as_code=keeps)
        log.info("compiling kernels%s", ", where none are kept from before" if keeps else "")
    states, why = layouts.choose(loaded.model, l1=l1, compiled=loaded.compiles)
    # A GPU sorts a vocabulary in no time; a CPU ranks the likeliest tokens only.
    sampler = Sampler(
        vocab_size,
        sorted(xtc_exempt),
        normalise=l1,
        sort_all=not loading.on_cpu(),
        quick_exp=loading.on_cpu() and loaded.compiles,
    )
    _warm(sampler, vocab_size)
    mx.clear_cache()
    seconds = time.monotonic() - started
    device = str(mx.default_device()).removeprefix("Device(").removesuffix(")")
    layout = states.capabilities.name
    levers = "" if l1 else ", ".join(_levers(saved, quick_mlps, layout))
    joined = f"{saved} products a step saved by joining those of one input"
    notes = (
        Note("device", device, f"MLX {version('mlx')}"),
        *(Note(*note) for note in loaded.notes),
        Note("weights_bytes", str(loaded.num_bytes), "in memory"),
        Note("projections", "joined" if saved else "apart", joined if saved else _apart(l1)),
        Note("numerics", levers or "mlx-lm's", "what rounds otherwise than under --l1"),
        Note("layout", layout, why),
        Note("load_seconds", f"{seconds:.2f}", "weights, layout and first kernels"),
    )
    precision = next((note[1] for note in loaded.notes if note[0] == "weights"), "")
    kind, architecture = mx.default_device().type.name, mx.device_info().get("architecture", "")
    numerics = f"MLX {version('mlx')}, {kind} {architecture}, {precision}, {levers}"
    compute = MlxCompute(states, sampler, loaded.num_bytes)
    return OpenedCompute(compute, notes, numerics)


def _levers(num_joined: int, num_quick_mlps: int, layout: str) -> list[str]:
    """Name what of ours may round in another order than mlx-lm does."""
    found = ["joined projections"] if num_joined else []
    if loading.on_cpu():
        return [
            *found,
            "rotations once a step",
            "softmax by polynomial, in blocks",
            "products in pieces",
            *(["MLPs by columns"] if num_quick_mlps else []),
            *(["steps of few operations"] if layout == SHORT else []),
        ]
    if loading.on_cuda():
        return [*found, "products of few rows", *(["fused layers"] if layout == FUSED else [])]
    return found


def _gains_alone(linear: Any) -> bool:
    """Return whether a projection that joins no other gains by a way of its own."""
    if loading.on_cpu():
        return pieces_of(linear.weight) is not None
    return few_rows_matmul.serves(linear)


def _apart(l1: bool) -> str:
    return "parity with mlx-lm was asked for (--l1)" if l1 else "no two of a kind read one input"


def _warm(sampler: Sampler, vocab_size: int) -> None:
    """Run the common sampling graphs once, so that no request waits for their compilation.

    On a CPU the first run on a machine calls a C++ compiler, for some seconds, and on CUDA
    NVRTC; MLX keeps what they built, in the temporary folder and in the one for kernels.
    """
    logits = mx.zeros((1, vocab_size))
    for params in _COMMON:
        sampler.compose([SamplingRow(RequestId("warm"), params, (TokenId(0),))], [-1])
        mx.eval(*sampler.draw(logits).arrays.values())
    sampler.compose([], [])


def leave_thread() -> None:
    """End what MLX keeps for this thread.  Call last on every thread that used MLX.

    Left to MLX, it happens when the thread is gone for Python, takes Python's lock, and aborts
    a process that is ending by then.  Source: ml-explore/mlx, pull request 4110.
    """
    mx.clear_streams()
