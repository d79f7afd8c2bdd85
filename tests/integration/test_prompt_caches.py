"""Prompts that are read in one forward: what each row keeps is what mlx-lm keeps for it alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_driver import Arrival, generate, open_compute
from mlxbun.adapters.mlx_compute import layouts
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache
from mlxbun.adapters.mlx_compute.prompt_caches import PromptCaches
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import StepPlan

PLAIN = ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-deepseek-v3")
WITH_OTHER_CACHES = ("tiny-gemma3", "tiny-gpt-oss", "tiny-qwen3-5", "tiny-mamba2", "tiny-falcon-h1")
GREEDY = SamplingParams(temperature=0.0)


def prompt(seed: int, length: int) -> tuple[TokenId, ...]:
    return tuple(TokenId((seed * 41 + i * i * 11 + i) % 450 + 5) for i in range(length))


def row_id(number: int) -> RequestId:
    return RequestId(f"row-{number}")


class Calls:
    """A model that remembers the shape of each forward, and may change what it does."""

    def __init__(self, model: Any, change: Callable[[mx.array, Any], None] | None = None) -> None:
        self._model = model
        self._change = change
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, token_ids: mx.array, cache: Any) -> Any:
        self.shapes.append(token_ids.shape)
        logits = self._model(token_ids, cache=cache)
        if self._change is not None:
            self._change(token_ids, cache)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def filled(model: Any, prompts: Sequence[tuple[TokenId, ...]]) -> PromptCaches:
    """Return the caches of rows that were read in one forward."""
    caches = PromptCaches(model)
    rows = [row_id(i) for i in range(len(prompts))]
    for row in rows:
        caches.open(row)
    padded = np.full((len(prompts), max(map(len, prompts))), 7, dtype=np.int32)
    for line, ids in zip(padded, prompts, strict=True):
        line[: len(ids)] = ids
    mx.eval(caches.extend_together(rows, mx.array(padded), [len(ids) for ids in prompts]))
    return caches


def assert_keeps(model: Any, ours: Sequence[Any], ids: Sequence[int]) -> None:
    """Compare with what mlx-lm keeps after one forward over `ids`."""
    theirs = mlx_lm_cache().make_prompt_cache(model)
    model(mx.array([ids]), cache=theirs)
    for got, want in zip(ours, theirs, strict=True):
        assert type(got) is type(want) and got.offset == want.offset == len(ids)
        for name in ("keys", "values"):
            np.testing.assert_allclose(
                np.array(getattr(got, name)[:, :, : len(ids)]),
                np.array(getattr(want, name)[:, :, : len(ids)]),
                rtol=1e-4,
                atol=1e-4,
            )


@pytest.mark.parametrize("name", PLAIN)
@given(st.lists(st.integers(1, 300), min_size=2, max_size=5))
@settings(max_examples=6)
def test_a_row_read_together_keeps_what_mlx_lm_keeps_for_it_alone(
    name: str, load: Callable[[str], Any], lengths: list[int]
) -> None:
    model = load(name)
    prompts = [prompt(i, length) for i, length in enumerate(lengths)]
    caches = filled(model, prompts)
    for number, ids in enumerate(prompts):
        assert_keeps(model, caches.take(row_id(number)), ids)


def test_a_row_read_together_goes_on_alone(load: Callable[[str], Any]) -> None:
    """Through mlx-lm's cache, as the rest of its prompt or as decode steps do."""
    model = load("tiny-llama")
    ids = prompt(0, 330)
    caches = filled(model, [ids[:40], prompt(1, 47)])
    for start, end in ((40, 41), (41, 300), (300, 330)):
        mx.eval(caches.extend(row_id(0), mx.array([ids[start:end]])))
    assert_keeps(model, caches.take(row_id(0)), ids)


def test_a_row_read_together_does_not_keep_the_others_in_memory(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    before = mx.get_active_memory()
    caches = filled(model, [prompt(i, 300 - i) for i in range(6)])
    together = mx.get_active_memory() - before
    assert together >= caches.num_bytes()
    for number in range(1, 6):
        caches.drop(row_id(number))
    assert mx.get_active_memory() - before <= together // 5
    assert caches.num_bytes() <= together // 5


@pytest.mark.parametrize("name", PLAIN)
def test_models_with_plain_caches_share(name: str, load: Callable[[str], Any]) -> None:
    assert PromptCaches(load(name)).shares_prompts()


@pytest.mark.parametrize("name", WITH_OTHER_CACHES)
def test_models_with_other_caches_do_not_share(name: str, load: Callable[[str], Any]) -> None:
    assert not PromptCaches(load(name)).shares_prompts()


def test_a_model_that_looks_ahead_does_not_share(load: Callable[[str], Any]) -> None:
    def look_ahead(_: mx.array, cache: Any) -> None:
        for layer in cache:
            layer.keys = layer.keys + layer.keys[:, :, layer.offset - 1 : layer.offset]

    assert not PromptCaches(Calls(load("tiny-llama"), look_ahead)).shares_prompts()


def test_a_model_that_takes_one_prompt_only_does_not_share(load: Callable[[str], Any]) -> None:
    def refuse(token_ids: mx.array, _: Any) -> None:
        if len(token_ids) > 1:
            raise ValueError("one at a time")

    assert not PromptCaches(Calls(load("tiny-llama"), refuse)).shares_prompts()


# -- through the executor --


def compute_over(model: Any, *, l1: bool = False) -> MlxCompute:
    states = MlxLmRows(model, batch_caches_always=l1)
    return MlxCompute(states, Sampler(512, (), normalise=l1, sort_all=False))


def opened(compute: MlxCompute, lengths: Sequence[int]) -> StepPlan:
    """Open a row of each length, and one token more; return the plan that prefills all."""
    for number, length in enumerate(lengths):
        compute.open_row(row_id(number), prompt(number, length + 1), GREEDY)
    return StepPlan(1, prefill=tuple((row_id(i), n) for i, n in enumerate(lengths)))


def first_tokens(compute: MlxCompute, num_rows: int) -> list[int]:
    compute.collect()
    rows = tuple(row_id(i) for i in range(num_rows))
    compute.dispatch(StepPlan(2, start=rows))
    result = compute.collect()
    drawn = dict(zip(result.request_ids, result.token_ids, strict=True))
    return [int(drawn[row]) for row in rows]


def test_prompts_of_like_length_are_one_forward(load: Callable[[str], Any]) -> None:
    model = Calls(load("tiny-llama"))
    compute = compute_over(model)
    model.shapes.clear()
    assert compute.dispatch(opened(compute, [20, 18, 20, 90, 19])) == ()
    assert compute.wait_prefill() == ()
    assert model.shapes == [(4, 20), (1, 90)]


def test_parity_reads_every_prompt_alone(load: Callable[[str], Any]) -> None:
    model = Calls(load("tiny-llama"))
    compute = compute_over(model, l1=True)
    assert compute.dispatch(opened(compute, [20, 18, 20])) == ()
    assert compute.wait_prefill() == ()
    assert model.shapes == [(1, 20), (1, 18), (1, 20)]


def test_a_shared_forward_that_cannot_be_built_fails_nobody(
    load: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = Calls(load("tiny-llama"))
    compute = compute_over(model)

    def refuse(token_ids: mx.array, _: Any) -> None:
        if len(token_ids) > 1 and token_ids.shape[1] > 1:
            raise MemoryError("three are too many")

    model._change = refuse
    assert compute.dispatch(opened(compute, [20, 18, 20])) == ()
    assert compute.wait_prefill() == ()
    assert "three are too many" in caplog.text
    model._change = None
    whole = compute_over(load("tiny-llama"))
    assert whole.dispatch(opened(whole, [20, 18, 20])) == whole.wait_prefill() == ()
    assert first_tokens(compute, 3) == first_tokens(whole, 3)


@pytest.mark.parametrize("when", ["built", "evaluated"])
def test_only_the_row_that_breaks_a_shared_forward_fails(
    when: str, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Calls(load("tiny-llama"))
    compute = compute_over(model)
    plan = opened(compute, [20, 18, 20])
    bad = prompt(1, 18)

    def breaks(token_ids: mx.array, _: Any) -> None:
        if any(tuple(line[: len(bad)]) == bad for line in np.array(token_ids).tolist()):
            raise ValueError("row 1 is broken")

    evaluate, failing = mx.eval, [True, False, True, False]

    def evaluate_or_fail(*arrays: Any) -> None:
        if failing.pop(0):
            raise ValueError("row 1 is broken")
        evaluate(*arrays)

    if when == "built":
        model._change = breaks
    else:
        monkeypatch.setattr(mx, "eval", evaluate_or_fail)
    failures = [*compute.dispatch(plan), *compute.wait_prefill()]
    monkeypatch.undo()
    model._change = None
    assert [(f.request_id, f.cause) for f in failures] == [
        (row_id(1), "ValueError: row 1 is broken")
    ]
    compute.collect()
    compute.dispatch(StepPlan(2, start=(row_id(0), row_id(2))))
    assert compute.collect().request_ids == (row_id(0), row_id(2))


def test_the_engine_draws_the_same_from_prompts_read_together_and_alone(
    load: Callable[[str], Any],
) -> None:
    model = load("tiny-llama")
    arrivals = [Arrival(prompt(i, 20 + i % 4), GREEDY, 12) for i in range(10)]
    together = generate(open_compute(model, l1=False), arrivals, Limits(max_rows=16))
    alone = [generate(open_compute(model, l1=False), [a], Limits())[0] for a in arrivals]
    assert together == alone


@pytest.mark.parametrize("lengths", [[2047], [255] * 8], ids=["one chunk", "a shared forward"])
def test_logits_of_a_prompt_are_never_computed(
    lengths: list[int], load: Callable[[str], Any]
) -> None:
    """Memory shows it: those of 2,048 tokens would be the largest arrays by far."""
    del load  # mlx-lm is entered through it
    vocab_size = 60_000
    module: Any = importlib.import_module("mlx_lm.models.llama")
    config = dict(model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=64)
    config |= dict(num_attention_heads=2, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-5)
    model = module.Model(module.ModelArgs.from_dict(config | dict(vocab_size=vocab_size)))
    mx.eval(model.parameters())
    states, _ = layouts.choose(model, l1=False, compiled=True)
    compute = MlxCompute(states, Sampler(vocab_size, (), normalise=False, sort_all=False))
    compute.prompts.longest_shared = 256
    plan = opened(compute, lengths)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    assert compute.dispatch(plan) == compute.wait_prefill() == ()
    assert mx.get_peak_memory() - before < sum(lengths) * vocab_size * 4 / 4
