"""Draws under a mask: in every way of drawing, only what it allows, and that as it was likely."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from mlxbun.adapters.mlx_compute.drawn import read_logprobs
from mlxbun.adapters.mlx_compute.row_masks import RowMask, num_words, stacked
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.domain.constraint import GrammarStuck
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId

VOCAB = 70  # the last word of a mask is not full
ALLOWED = (0, 31, 32, 63, 64, 69)
LOGITS = np.random.default_rng(3).normal(size=VOCAB).astype(np.float32) * 3


class Allows:
    """A matcher that always allows the same tokens."""

    def __init__(self, token_ids: Collection[int], *, complete: bool = False) -> None:
        self._token_ids = token_ids
        self._complete = complete

    def accept(self, token_id: TokenId) -> bool:
        return token_id in self._token_ids

    def accept_text(self, text: bytes) -> bool:
        return False

    def fill(self, words: memoryview) -> bool:
        if not self._token_ids:
            raise GrammarStuck("nothing may follow")
        bits = np.zeros(32 * len(words), dtype=np.uint8)
        bits[list(self._token_ids)] = 1
        words[:] = np.packbits(bits, bitorder="little").view(np.int32).data
        return self._complete

    def rollback(self, num_tokens: int) -> None:
        raise AssertionError("nobody takes anything back")


def row(number: int, params: SamplingParams, allowed: Collection[int] | None) -> SamplingRow:
    made = SamplingRow(RequestId(str(number)), params, (TokenId(1),))
    if allowed is not None:
        made.mask = RowMask(Allows(allowed), VOCAB)
        made.mask.begin()
    return made


def drawn(rows: list[SamplingRow], *, normalise: bool = False, quick_exp: bool = True) -> Any:
    sampler = Sampler(VOCAB, (), normalise=normalise, sort_all=False, quick_exp=quick_exp)
    sampler.compose(rows, [-1] * len(rows))
    return sampler.draw(mx.broadcast_to(mx.array(LOGITS), (len(rows), VOCAB)))


WAYS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, logit_bias=((TokenId(5), 50.0),)),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.5, top_p=0.7),
    SamplingParams(temperature=1.5, top_k=4),
    SamplingParams(temperature=1.0, top_k=60, top_p=0.99, xtc_probability=0.5, xtc_threshold=0.1),
    SamplingParams(temperature=1.0, xtc_probability=1.0, xtc_threshold=0.05),
]


@pytest.mark.parametrize("params", WAYS, ids=repr)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("quick_exp", [False, True])
def test_only_what_is_allowed_is_drawn(
    params: SamplingParams, normalise: bool, quick_exp: bool
) -> None:
    rows = [
        row(seed, msgspec.structs.replace(params, seed=seed), ALLOWED if seed % 2 else [7])
        for seed in range(80)
    ]
    out = drawn(rows, normalise=normalise, quick_exp=quick_exp)
    tokens = out.tokens.tolist()
    assert set(tokens[::2]) == {7} and set(tokens[1::2]) <= set(ALLOWED)
    assert out.wide is None or not any(out.wide.tolist()), "few may be drawn, so none is missed"


def test_what_is_allowed_is_drawn_as_often_as_it_is_likely() -> None:
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(4000)]
    tokens = drawn([row(i, p, ALLOWED) for i, p in enumerate(params)]).tokens.tolist()
    weights = np.exp(LOGITS[list(ALLOWED)].astype(np.float64))
    wanted = 4000 * weights / weights.sum()
    counts = np.array([tokens.count(token_id) for token_id in ALLOWED])
    often = wanted >= 5
    chi2 = ((counts - wanted)[often] ** 2 / wanted[often]).sum()
    assert chi2 < often.sum() + 5 * np.sqrt(2 * often.sum())


def test_a_row_without_a_mask_draws_as_it_would_alone() -> None:
    params = [SamplingParams(temperature=1.0, top_p=0.8, seed=seed) for seed in range(16)]
    alone = drawn([row(i, p, None) for i, p in enumerate(params)]).tokens.tolist()
    beside = [row(i, p, [3] if i % 2 else None) for i, p in enumerate(params)]
    together = drawn(beside).tokens.tolist()
    assert together[::2] == alone[::2] and set(together[1::2]) == {3}


def test_logprobs_are_those_without_the_mask() -> None:
    params = SamplingParams(temperature=0.0, logprobs=2)
    rows: list[SamplingRow | None] = [row(0, params, [7]), row(1, params, None)]
    out = drawn([r for r in rows if r is not None])
    masked, free = read_logprobs(out, rows)
    total = np.log(np.exp(LOGITS.astype(np.float64)).sum())
    assert masked is not None and free is not None
    assert masked.logprob == pytest.approx(LOGITS[7] - total, abs=1e-5)
    assert masked.top == free.top and free.top[0][0] == int(LOGITS.argmax())


def test_masks_are_stacked_by_slot_and_an_empty_slot_allows_all() -> None:
    mask = RowMask(Allows([1]), VOCAB)
    mask.begin()
    words = np.array(stacked([None, mask], VOCAB))
    assert words.shape == (2, num_words(VOCAB))
    assert (words[0] == 2**32 - 1).all() and words[1].tolist() == [2, 0, 0]


def test_a_mask_says_that_a_text_is_complete_and_then_allows_all() -> None:
    mask = RowMask(Allows([4], complete=True), VOCAB)
    assert mask.advance(TokenId(4)) == (True, None)
    assert mask.over and (mask.words == -1).all()


@pytest.mark.parametrize("allowed", [(), (3,)])
def test_a_mask_says_why_a_row_cannot_go_on(allowed: tuple[int, ...]) -> None:
    mask = RowMask(Allows(allowed), VOCAB)
    mask.begin()
    complete, cause = mask.advance(TokenId(5))
    assert not complete and cause and mask.over
