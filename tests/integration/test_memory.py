"""The ledger against MLX itself: what is claimed is there, and what is given back is free."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.memory import working_set_bytes
from mlxbun.adapters.mlx_compute.opening import leave_thread, open_loaded
from mlxbun.domain import residency
from mlxbun.domain.memory import PRESSURE, MemoryMeasured
from tier_driver import Process

NAMES = ("tiny-llama", "tiny-gemma3", "tiny-qwen3-5")


def prompt(seed: int) -> list[int]:
    return [(7 * i + seed * 31 + i // 5) % 500 + 3 for i in range(700)]


def opened(folder: Path) -> Callable[[], MlxCompute]:
    def open_compute() -> MlxCompute:
        model = loading.load(folder, "native").model
        return open_loaded(model, l1=False, vocab_size=512, xtc_exempt=()).compute

    return open_compute


def events(process: Process, kind: type) -> list[object]:
    return [e for batch in process.journal.read() for e in batch.events if isinstance(e, kind)]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_ledger_claims_is_what_arrays_take(
    tiny_model: Callable[[str], Path], name: str
) -> None:
    process = Process(None, opened(tiny_model(name)), leave_thread=leave_thread)
    for seed in range(3):
        process.ask(prompt(seed))
    process.stop()
    compute = process.compute
    assert isinstance(compute, MlxCompute)
    last = events(process, MemoryMeasured)[-1]
    assert isinstance(last, MemoryMeasured)
    assert last.prefix_cache_bytes == compute._kept.num_bytes() > 0
    assert last.weights_bytes == compute._weights_bytes > 0
    assert last.live_kv_bytes == 0
    assert last.working_set_bytes == working_set_bytes() > last.active_bytes
    before = mx.get_active_memory()
    compute.forget(list(compute._kept._kept))
    freed = before - mx.get_active_memory()
    more = 1.2 if loading.on_cpu() else 1.6  # a GPU's allocator gives whole pages
    assert last.prefix_cache_bytes <= freed < more * last.prefix_cache_bytes


def test_under_pressure_memory_is_given_back_and_requests_go_on(
    tiny_model: Callable[[str], Path],
) -> None:
    process = Process(None, opened(tiny_model("tiny-llama")), leave_thread=leave_thread)
    first = process.ask(prompt(0))
    for seed in range(1, 5):
        process.ask(prompt(seed))
    compute = process.compute
    assert isinstance(compute, MlxCompute)
    full = compute._kept.num_bytes()
    compute._working_set_bytes = int((mx.get_active_memory() - full / 2) / PRESSURE)
    again = process.ask(prompt(0))
    process.stop()
    relieved = events(process, residency.PressureRelieved)
    assert relieved and again.tokens == first.tokens
    assert compute._kept.num_bytes() < full
    last = events(process, MemoryMeasured)[-1]
    assert isinstance(last, MemoryMeasured) and last.short_bytes == 0
