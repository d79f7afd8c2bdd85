"""Kept copies on MLX: they pin nothing, never change, and come back from bytes bit by bit."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache

from mlxbun.adapters.mlx_compute import layouts, loading
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.kept_prefixes import KeptPrefixes
from mlxbun.adapters.mlx_compute.loading import DType
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockLost,
    Namespace,
    Tensor,
    boundary,
    chain,
    linked,
)
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import StepPlan
from models import tiny

SPACE = Namespace("ab" * 32)
GREEDY = SamplingParams(temperature=0.0)
ONE, TWO = BlockKey("11" * 32), BlockKey("22" * 32)
SLACK = 4096  # bytes of small arrays that come and go
ROUNDED = 1 if loading.on_cpu() else 1.5  # a GPU's allocator gives whole pages


def ids(seed: int, length: int) -> tuple[TokenId, ...]:
    return tuple(TokenId((seed * 37 + i * i * 13 + i * 7) % 450 + 5) for i in range(length))


def filled(cache: Any, heads: int, length: int, dtype: mx.Dtype) -> Any:
    """Give a cache as many tokens of noise, as a prefill in chunks does."""
    for start in range(0, length, 100):
        shape = (1, heads, min(100, length - start), 16)
        noise = [mx.random.normal(shape).astype(dtype) for _ in range(2)]
        cache.update_and_fetch(*noise)
    mx.eval(cache.keys, cache.values)
    return cache


def active() -> int:
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def raw(tensors: Sequence[Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(t.name, t.dtype, t.shape, bytes(t.data)) for t in tensors]


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_kept_blocks_pin_nothing_of_their_row(heads: int, dtype: mx.Dtype) -> None:
    before = active()
    caches = [filled(KVCache(), heads, 3 * BLOCK, dtype)]
    kept = KeptPrefixes()
    size = kept.keep_blocks(caches, [(ONE, 0), (TWO, BLOCK)])
    del caches
    assert size == 2 * heads * BLOCK * 16 * dtype.size
    assert active() - before <= 2 * size * ROUNDED + SLACK
    kept.forget([ONE])
    assert active() - before <= size * ROUNDED + SLACK, "one block does not hold another"


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", [KVCache, lambda: RotatingKVCache(64)], ids=["full", "sliding"])
def test_a_kept_boundary_pins_nothing_of_its_row(heads: int, kind: Callable[[], Any]) -> None:
    before = active()
    caches = [filled(kind(), heads, 700, mx.float32)]
    kept = KeptPrefixes()
    active()  # MLX has no larger buffers left over to use
    [size] = kept.keep_boundary(caches, ONE, 0, 700)
    del caches
    assert active() - before <= size * ROUNDED + SLACK


def test_of_what_can_be_cut_a_boundary_keeps_what_follows_the_blocks() -> None:
    layers = [KVCache(), RotatingKVCache(64), KVCache()]
    caches = [filled(layer, 2, 700, mx.float32) for layer in layers]
    kept = KeptPrefixes()
    token = 2 * 2 * 16 * 4  # bytes of one layer: keys and values of two heads
    numbers = 2 * 8 + 4 * 8  # lengths and places of the three layers
    [size] = kept.keep_boundary(caches, ONE, 2 * BLOCK, 700)
    assert size == 2 * (700 - 2 * BLOCK) * token + 64 * token + numbers
    [size] = kept.keep_boundary(caches, TWO, 0, 700)
    assert size == 2 * 700 * token + 64 * token + numbers


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_boundary_is_lent_after_its_own_blocks_alone(missing: int) -> None:
    caches = [
        filled(KVCache(), 2, 700, mx.float32),
        filled(RotatingKVCache(64), 2, 700, mx.float32),
    ]
    kept, boundary_key = KeptPrefixes(), BlockKey("33" * 32)
    kept.keep_boundary(caches, boundary_key, 2 * BLOCK, 700, [(ONE, 0), (TWO, BLOCK)])
    keys = (ONE, TWO)[: 2 - missing]
    if missing:
        with pytest.raises(ValueError, match="leaves out"):
            kept.lend_boundary((*keys, boundary_key), caches, 700)
        return
    full, _ = kept.lend_boundary((*keys, boundary_key), caches, 700)
    assert full.offset == 700
    for side in ("keys", "values"):
        assert mx.array_equal(getattr(full, side), getattr(caches[0], side)[:, :, :700])


def test_a_state_is_kept_with_its_blocks_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    caches = [
        filled(KVCache(), 2, 700, mx.float32),
        filled(RotatingKVCache(64), 2, 700, mx.float32),
    ]
    kept, blocks = KeptPrefixes(), [(ONE, 0)]

    def broken(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(mx, "eval", broken)
    with pytest.raises(MemoryError):
        kept.keep_boundary(caches, TWO, BLOCK, 700, blocks)
    assert ONE not in kept and TWO not in kept
    monkeypatch.undo()
    sizes = kept.keep_boundary(caches, TWO, BLOCK, 700, blocks)
    assert sum(sizes) == kept.num_bytes() and ONE in kept and TWO in kept


@pytest.mark.parametrize("keep", [0, 4])
@pytest.mark.parametrize("count", [1, 40])
def test_a_window_is_kept_without_what_its_next_write_drops(keep: int, count: int) -> None:
    """A chunk of a prompt leaves all of itself in the cache."""
    cache = filled(RotatingKVCache(64, keep), 2, 700, mx.float32)
    assert cache.keys.shape[2] > 64
    kept = KeptPrefixes()
    kept.keep_boundary([cache], ONE, 0, 700)
    (lent,) = kept.lend_boundary((ONE,), [cache], 700)
    assert lent.keys.shape[2] == 64
    for _ in range(3):
        noise = [mx.random.normal((1, 2, count, 16)) for _ in range(2)]
        want, got = cache.update_and_fetch(*noise), lent.update_and_fetch(*noise)
        assert all(mx.array_equal(one, other) for one, other in zip(want, got, strict=True))
        assert (lent.offset, lent._idx) == (cache.offset, cache._idx)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_a_row_that_writes_into_its_window_leaves_the_donor_as_it_was(dtype: mx.Dtype) -> None:
    cache = filled(RotatingKVCache(64), 2, 130, dtype)
    kept = KeptPrefixes()
    kept.keep_boundary([cache], ONE, 0, 130)
    first = raw(kept.tensors(ONE))
    for _ in range(2):
        (lent,) = kept.lend_boundary((ONE,), [cache], 130)
        lent.update_and_fetch(*(mx.ones((1, 2, 1, 16), dtype) for _ in range(2)))
        mx.eval(lent.keys, lent.values)
        assert raw(kept.tensors(ONE)) == first


def opened(folder: Path, dtype: DType) -> MlxCompute:
    model = loading.load(folder, dtype).model
    states, _ = layouts.choose(model, l1=False, compiled=True)
    return MlxCompute(states, Sampler(512, (), normalise=False, sort_all=False))


class Rows:
    """One model's rows, each run by itself."""

    def __init__(self, compute: MlxCompute) -> None:
        self.compute = compute
        self._step = 0

    def draw(
        self,
        prompt: tuple[TokenId, ...],
        prefix: tuple[BlockKey, ...] = (),
        num_cached: int = 0,
        keep: Sequence[BlockInfo] = (),
    ) -> tuple[list[TokenId], tuple[BlockInfo, ...]]:
        """Return what a row draws, and what was kept of it once its prompt was read."""
        row = RequestId("row")
        self.compute.open_row(row, prompt, GREEDY, prefix, num_cached)
        if rest := len(prompt) - 1 - num_cached:
            self._run(StepPlan(0, prefill=((row, rest),)))
        kept = self.compute.keep(row, keep)
        tokens = self._run(StepPlan(0, start=(row,)))
        for _ in range(7):
            tokens += self._run(StepPlan(0, decode=(row,)))
        self.compute.close_row(row)
        return tokens, kept

    def _run(self, plan: StepPlan) -> list[TokenId]:
        self._step += 1
        numbered = StepPlan(self._step, plan.decode, plan.start, plan.prefill)
        assert self.compute.dispatch(numbered) == self.compute.wait_prefill() == ()
        return list(self.compute.collect().token_ids)


def beginning(compute: MlxCompute, ids: tuple[TokenId, ...]) -> list[BlockInfo]:
    """Return what is kept of a prompt of `ids` and one token; whole blocks where there are only."""
    blocks = linked(chain(SPACE, ids))
    if compute.cuts == "block":
        return blocks
    if not compute.mixed:
        return [BlockInfo(boundary(SPACE, ids), None, "boundary", 0, len(ids), 0)]
    key, start = boundary(SPACE, ids, after_blocks=True), len(blocks) * BLOCK
    parent = blocks[-1].key if blocks else None
    return [*blocks, BlockInfo(key, parent, "boundary", start, len(ids) - start, 0)]


# MLX has no experts in half precision on a CPU.
IN_HALF = ("tiny-llama", "tiny-gemma3", "tiny-qwen3-5", "tiny-mamba2")
MODELS = [(name, "native") for name in tiny.NAMES] + [(name, "bfloat16") for name in IN_HALF]


@pytest.mark.parametrize("length", [2 * BLOCK, 2 * BLOCK + 70])
@pytest.mark.parametrize(("name", "dtype"), MODELS)
def test_what_is_lent_stays_and_comes_back_from_bytes(
    name: str, dtype: DType, length: int, tiny_model: Callable[[str], Path]
) -> None:
    """Three rows go their own ways from one beginning, the last from bytes alone."""
    if dtype == "bfloat16" and not loading.on_cpu():
        pytest.skip("there a product of many rows rounds otherwise than one of few")
    compute = opened(tiny_model(name), dtype)
    rows = Rows(compute)
    if compute.cuts == "block":
        length = 2 * BLOCK
    start = ids(1, length)
    prompts = [(*start, *ids(seed, count)) for seed, count in ((3, 1), (4, 30), (5, 2))]
    cold = [rows.draw(prompt)[0] for prompt in prompts]

    drawn, kept = rows.draw(prompts[0], keep=beginning(compute, start))
    assert drawn == cold[0], "keeping changes nothing"
    keys = tuple(block.key for block in kept)
    first = [raw(compute.tensors(key)) for key in keys]
    assert [block.num_bytes for block in kept] == [sum(len(t[3]) for t in of) for of in first]
    for prompt, expected in zip(prompts, cold, strict=True):
        assert rows.draw(prompt, keys, len(start))[0] == expected
        assert [raw(compute.tensors(key)) for key in keys] == first, "the donor stays as it was"

    compute.forget(keys)
    with pytest.raises(BlockLost):
        compute.tensors(keys[0])
    for block, tensors in zip(kept, first, strict=True):
        assert compute.adopt(block, [Tensor(*fields) for fields in tensors]) == block
    assert [raw(compute.tensors(key)) for key in keys] == first
    for prompt, expected in zip(prompts, cold, strict=True):
        assert rows.draw(prompt, keys, len(start))[0] == expected


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("0.keys", "F8", (4,), bytes(4)),
        Tensor("0.keys", "F32", (2,), bytes(7)),
        Tensor("0.keys", "F32", (3,), bytes(8)),
    ],
    ids=["type", "bytes", "shape"],
)
def test_what_is_no_block_is_lost_and_not_kept(tensor: Tensor) -> None:
    kept = KeptPrefixes()
    with pytest.raises(BlockLost, match="0.keys"):
        kept.adopt(ONE, [tensor])
    assert ONE not in kept
