"""The sampling graph against mlx-lm's own samplers and processors, row by row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm import sample_utils

from mlxbun.adapters.bench.engine_steps import mixed_params
from mlxbun.adapters.mlx_compute import sampler as sampler_module
from mlxbun.adapters.mlx_compute import sampling_graph
from mlxbun.adapters.mlx_compute.drawn import read_logprobs
from mlxbun.adapters.mlx_compute.quick_exp import quick_exp
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.adapters.mlx_compute.uniforms import uniforms
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId, uniform

VOCAB = 20
EXEMPT = (TokenId(0), TokenId(3))
LOGITS = np.random.default_rng(1).normal(size=VOCAB).astype(np.float32) * 2


def rows_of(
    params: Sequence[SamplingParams], prompts: Sequence[Sequence[int]] | None = None
) -> list[SamplingRow]:
    prompts = prompts or [[1]] * len(params)
    return [
        SamplingRow(RequestId(str(i)), p, tuple(map(TokenId, prompt)))
        for i, (p, prompt) in enumerate(zip(params, prompts, strict=True))
    ]


def sampler_for(
    rows: Sequence[SamplingRow], vocab: int = VOCAB, sort_all: bool = False, quick_exp: bool = True
) -> Sampler:
    made = Sampler(vocab, EXEMPT, normalise=False, sort_all=sort_all, quick_exp=quick_exp)
    made.compose(rows, [-1] * len(rows))
    return made


def expected(params: SamplingParams, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the distribution that mlx-lm draws from, XTC's coin averaged out."""

    def after(xtc: bool) -> npt.NDArray[np.float64]:
        x = mx.array(logits)[None]
        x = x - mx.logsumexp(x, axis=-1, keepdims=True)
        if 0 < params.top_p < 1:
            x = sample_utils.apply_top_p(x, params.top_p)
        if params.min_p:
            x = sample_utils.apply_min_p(x, params.min_p)
        if xtc:
            x = sample_utils.apply_xtc(x, 1.0, params.xtc_threshold, list(EXEMPT))
        if params.top_k:
            x = sample_utils.apply_top_k(x, params.top_k)
        drawn_from = mx.softmax(x / params.temperature, axis=-1)
        return np.asarray(drawn_from, dtype=np.float64).reshape(-1)

    p = params.xtc_probability
    return (1 - p) * after(False) + p * after(True) if p else after(False)


def draws(
    params: SamplingParams, logits: npt.NDArray[np.float32], n: int, sort_all: bool = False
) -> npt.NDArray[np.int64]:
    """Return n draws: one batch of n rows that differ in the seed alone."""
    import msgspec

    rows = rows_of([msgspec.structs.replace(params, seed=seed) for seed in range(n)])
    made = sampler_for(rows, len(logits), sort_all)
    drawn = made.draw(mx.broadcast_to(mx.array(logits), (n, len(logits))))
    return np.array(drawn.tokens, dtype=np.int64)


FILTERS = [
    SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
                   xtc_probability=xtc, xtc_threshold=0.1)
    for temperature, top_p, top_k, min_p, xtc in itertools.product(
        (0.7, 1.6), (1.0, 0.8), (0, 3), (0.0, 0.1), (0.0, 0.5))
]  # fmt: skip


@pytest.mark.parametrize("params", FILTERS, ids=repr)
def test_draws_follow_the_distribution_of_mlx_lm(params: SamplingParams) -> None:
    n, p = 4000, expected(params, LOGITS)
    counts = np.bincount(draws(params, LOGITS, n), minlength=VOCAB)
    support = p > 0
    assert counts[~support].sum() == 0, "a token outside of mlx-lm's support was drawn"
    often = p * n >= 5
    chi2 = ((counts - p * n)[often] ** 2 / (p * n)[often]).sum()
    # Five sigma over the mean of chi squared.
    assert chi2 < often.sum() + 5 * np.sqrt(2 * often.sum())


@pytest.mark.parametrize("top_p", [0.3, 0.9])
def test_candidates_and_the_whole_vocabulary_draw_alike(top_p: float) -> None:
    logits = np.random.default_rng(2).normal(size=4000).astype(np.float32) * 3
    params = SamplingParams(temperature=0.8, top_p=top_p)
    few, all_ = (draws(params, logits, 500, sort_all=s) for s in (False, True))
    # Equal but where rounding of two sums falls on both sides of a draw.
    assert (few == all_).mean() > 0.99


@given(st.lists(st.floats(-100, 0, width=32), min_size=1, max_size=40))
@settings(deadline=None)
def test_the_quick_exp_is_exp(values: list[float]) -> None:
    quick = quick_exp(mx.array(values))
    want = np.exp(np.array(values, dtype=np.float64))
    np.testing.assert_allclose(np.asarray(quick), want, rtol=4e-6, atol=2e-38)
    assert (np.asarray(quick)[want < np.exp(-88)] == 0).all()


@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=40).filter(any),
    st.sampled_from([0.0, 0.5, 1 - 2**-23, 1 - 2**-24]) | st.floats(0, 1 - 2**-24, width=32),
)
@settings(deadline=None)
def test_no_draw_falls_where_there_is_no_weight(weights: list[float], uniform: float) -> None:
    """Nor short of its place: what lies before it does not reach the uniform number."""
    total = np.sum(weights, dtype=np.float64)
    if total < 1e-30:
        return  # no distribution: a likeliest token weighs 1
    arrays = {"uniforms": mx.array([[uniform, 0.0]])}
    place = int(np.asarray(sampling_graph._invert(mx.array([weights]), arrays))[0])
    assert weights[place] > 0
    assert sum(weights[:place]) <= uniform * total * (1 + 1e-5)
    assert sum(weights[: place + 1]) >= uniform * total * (1 - 1e-5)


@pytest.mark.parametrize("quick_exp", [False, True])
def test_an_impossible_token_is_never_drawn(quick_exp: bool) -> None:
    """A bias of -inf's kind, and a grammar's mask later, must not come back by rounding."""
    rows = rows_of([SamplingParams(temperature=1.0, min_p=0.01, seed=s) for s in range(64)])
    made = sampler_for(rows, quick_exp=quick_exp)
    logits = mx.broadcast_to(mx.where(mx.arange(VOCAB) == 4, 0.0, -200.0), (64, VOCAB))
    assert made.draw(logits).tokens.tolist() == [4] * 64


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ([SamplingParams(temperature=0.7, seed=s) for s in range(8)], 20),
        ([SamplingParams(temperature=0.7, top_p=0.9, top_k=20, seed=s) for s in range(8)], 58),
        (mixed_params(8), 186),
    ],
    ids=["temperature", "top-k", "mixed"],
)
def test_a_draw_takes_few_operations(
    asked: list[SamplingParams], most: int, tmp_path: Path
) -> None:
    """Whatever they compute, operations cost the host some microseconds each."""
    made = sampler_for(rows_of(asked), 49152)
    logits = mx.zeros((8, 49152))
    mx.eval(logits, made.draw(logits).arrays)  # what rows asked is computed once
    drawn = made.draw(logits)
    mx.export_to_dot(str(tmp_path / "draw.dot"), *drawn.arrays.values())
    assert (tmp_path / "draw.dot").read_text().count("shape=rectangle") <= most


def test_a_nucleus_wider_than_the_candidates_is_counted_and_then_drawn_among_more() -> None:
    logits = np.zeros(4 * sampler_module.CANDIDATES, dtype=np.float32)
    rows = rows_of([SamplingParams(temperature=1.0, top_p=0.9, seed=s) for s in (1, 2)])
    made = sampler_for(rows, len(logits))
    batch = mx.broadcast_to(mx.array(logits), (2, len(logits)))
    first = made.draw(batch)
    assert first.wide is not None and first.wide.tolist() == [True, True]
    for row in rows:
        row.num_wide = 1
    made.compose(rows, [0, 1])
    again = made.draw(batch)
    assert again.wide is None


@pytest.mark.parametrize(("vocab_size", "groups"), [(512, (512,)), (8192, (64, 2048))])
def test_few_candidates_are_not_worth_a_group_of_their_own(
    vocab_size: int, groups: tuple[int, ...]
) -> None:
    """A group is some twenty operations: on a small vocabulary all rows rank as many."""
    asked = [
        SamplingParams(temperature=0.7, top_k=20, seed=1),
        SamplingParams(temperature=0.7, top_p=0.9, seed=2),
    ]
    made = sampler_for(rows_of(asked), vocab_size)
    tokens = made.draw(mx.broadcast_to(-mx.arange(vocab_size) * 9.0, (2, vocab_size))).tokens
    assert tokens.tolist() == [0, 0]
    assert [variant.candidates for variant in made._graphs] == [groups]


def test_a_row_draws_the_same_alone_and_beside_any_neighbours() -> None:
    params = [
        SamplingParams(temperature=0.9, seed=5),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, top_p=0.8, top_k=4, seed=6),
        SamplingParams(temperature=1.2, xtc_probability=0.5, xtc_threshold=0.1, seed=7),
        SamplingParams(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.4, seed=8),
        SamplingParams(temperature=0.8, logit_bias=((TokenId(2), 3.0),), seed=9),
    ]
    logits = np.random.default_rng(3).normal(size=(8, len(params), VOCAB)).astype(np.float32)
    together = sampler_for(rows_of(params))
    seen = [np.array(together.draw(mx.array(step)).tokens) for step in logits]
    for i, row_params in enumerate(params):
        alone = sampler_for(rows_of([row_params]))
        for step, row in zip(logits, seen, strict=True):
            assert np.array(alone.draw(mx.array(step[i : i + 1])).tokens)[0] == row[i]


@given(
    st.integers(2, 5000), st.integers(1, 2048), st.integers(1, 3), st.integers(2, 2**24), st.data()
)
@settings(deadline=None, max_examples=60)
def test_the_likeliest_tokens_are_found_by_their_groups(
    vocab: int, count: int, rows: int, num_values: int, data: st.DataObject
) -> None:
    count = min(count, vocab - 1)
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    # Few values make ties; which of equal ones are found does not matter, that all differ does.
    scores = rng.integers(0, num_values, (rows, vocab)).astype(np.float32)
    ids = np.array(sampling_graph.likeliest(mx.array(scores), count))
    assert ids.shape == (rows, count)
    for row, found in zip(scores, ids, strict=True):
        assert len(set(found)) == count
        assert sorted(row[found]) == sorted(row)[vocab - count :]


penalties = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    repetition_context_size=st.sampled_from([0, 2, 20]),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.5]),
    presence_context_size=st.sampled_from([0, 3, 20]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    frequency_context_size=st.sampled_from([0, 5, 40]),
    logit_bias=st.sampled_from([(), ((TokenId(4), 2.5), (TokenId(19), -100.0))]),
    logprobs=st.just(VOCAB),
)


@given(
    st.lists(
        st.tuples(penalties, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=70)),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=30)
def test_processed_logits_equal_those_of_mlx_lm_over_several_steps(
    batch: list[tuple[SamplingParams, list[int]]],
) -> None:
    rows = rows_of([p for p, _ in batch], [prompt for _, prompt in batch])
    made = sampler_for(rows)
    histories = [list(prompt) for _, prompt in batch]
    rng = np.random.default_rng(0)
    for _ in range(40 if len(batch) == 1 else 3):
        logits = rng.normal(size=(len(batch), VOCAB)).astype(np.float32) * 2
        drawn = made.draw(mx.array(logits))
        tokens = np.array(drawn.tokens)
        reported = read_logprobs(drawn, rows)
        for i, (params, _) in enumerate(batch):
            want = _mlx_lm_logprobs(params, histories[i], logits[i])
            got = reported[i]
            assert got is not None
            ids = [t for t, _ in got.top]
            values = [v for _, v in got.top]
            assert sorted(ids) == list(range(VOCAB))
            np.testing.assert_allclose(values, want[ids], rtol=2e-4, atol=2e-4)
            assert values == sorted(values, reverse=True)
            assert got.logprob == pytest.approx(values[0])
            histories[i].append(int(tokens[i]))


def _mlx_lm_logprobs(
    params: SamplingParams, history: list[int], logits: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    processors = sample_utils.make_logits_processors(
        {int(i): b for i, b in params.logit_bias} or None,
        params.repetition_penalty if params.repetition_penalty != 1.0 else None,
        params.repetition_context_size,
        params.presence_penalty,
        params.presence_context_size,
        params.frequency_penalty,
        params.frequency_context_size,
    )
    x = mx.array(logits)[None]
    for processor in processors:
        x = cast(Any, processor)(mx.array(history), x)
    logprobs = x - mx.logsumexp(x, axis=-1, keepdims=True)
    return np.asarray(logprobs, dtype=np.float32).reshape(-1)


def test_history_follows_rows_that_join_and_leave() -> None:
    """A penalised row keeps its own history when its place in the batch changes."""
    penalised = SamplingParams(temperature=0.0, repetition_penalty=5.0, repetition_context_size=0)
    plain = SamplingParams(temperature=0.0)
    logits = mx.broadcast_to(mx.arange(VOCAB, 0, -1).astype(mx.float32), (1, VOCAB))
    rows = rows_of([plain, penalised], [[7], [0, 1]])
    made = sampler_for(rows)
    tokens = [np.array(made.draw(mx.repeat(logits, 2, axis=0)).tokens).tolist()]
    made.compose(rows[1:], [1])
    tokens += [np.array(made.draw(logits).tokens).tolist() for _ in range(3)]
    # Tokens 0 and 1 were in the prompt; then each drawn one is avoided.
    assert tokens == [[0, 2], [3], [4], [5]]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**30)), min_size=1))
def test_uniforms_on_arrays_equal_the_domain_s(rows: list[tuple[int, int]]) -> None:
    seeds = np.array([s for s, _ in rows], dtype=np.uint64)
    index = np.array([i for _, i in rows], dtype=np.uint64)
    for stream in (0, 1):
        assert uniforms(seeds, index, stream).tolist() == [uniform(s, i, stream) for s, i in rows]
