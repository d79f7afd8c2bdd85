"""Every sentence of the compute port, on MLX in both layouts and on the scripted double."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from doubles.compute import ScriptedCompute
from doubles.grammar import TextsMatcher
from mlxbun.adapters.mlx_compute import layouts, loading
from mlxbun.adapters.mlx_compute.compute import MlxCompute
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.domain.blocks import (
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockLost,
    Namespace,
    Tensor,
    chain,
    linked,
    tails,
)
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import Compute, StepPlan, StepResult

A, B = RequestId("A"), RequestId("B")
GREEDY = SamplingParams(temperature=0.0)
PROMPT = tuple(TokenId(i) for i in b"a prompt of some tokens")


@pytest.fixture(params=["double", "double mixed", "slots", "mlx-lm", "mlx-lm recurrent"])
def compute(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Compute:
    if request.param == "double":
        return ScriptedCompute()
    if request.param == "double mixed":
        return ScriptedCompute(cuts="boundary", mixed=True)
    name = "tiny-qwen3-5" if request.param == "mlx-lm recurrent" else "tiny-llama"
    model = loading.load(tiny_model(name), "native").model
    states, _ = layouts.choose(model, l1=request.param == "mlx-lm", compiled=True)
    return MlxCompute(states, Sampler(512, (), normalise=False, sort_all=False))


def opened(compute: Compute, *rows: RequestId, params: SamplingParams = GREEDY) -> None:
    """Open `rows` and prefill all but the last token of their prompts, as step 1."""
    for row in rows:
        compute.open_row(row, PROMPT, params)
    chunks = tuple((row, len(PROMPT) - 1) for row in rows)
    assert compute.dispatch(StepPlan(1, prefill=chunks)) == ()
    assert compute.wait_prefill() == ()
    result = compute.collect()
    assert (result.step, result.request_ids) == (1, ())


def test_a_started_row_draws_one_token_a_step(compute: Compute) -> None:
    opened(compute, A)
    compute.dispatch(StepPlan(2, start=(A,)))
    first = compute.collect()
    compute.dispatch(StepPlan(3, decode=(A,)))
    second = compute.collect()
    assert (first.step, second.step) == (2, 3)
    assert first.request_ids == second.request_ids == (A,)
    assert len(first.token_ids) == len(second.token_ids) == 1


def test_two_steps_may_be_dispatched_before_the_first_is_read(compute: Compute) -> None:
    opened(compute, A, B)
    compute.dispatch(StepPlan(2, start=(A, B)))
    compute.dispatch(StepPlan(3, decode=(A, B)))
    results = [compute.collect(), compute.collect()]
    assert [r.step for r in results] == [2, 3]
    assert all(set(r.request_ids) == {A, B} for r in results)


def test_a_prompt_in_chunks_draws_what_the_whole_draws(compute: Compute) -> None:
    opened(compute, A)
    compute.open_row(B, PROMPT, GREEDY)
    for step, count in ((2, 5), (3, 9), (4, len(PROMPT) - 15)):
        compute.dispatch(StepPlan(step, prefill=((B, count),)))
        compute.wait_prefill()
        compute.collect()
    compute.dispatch(StepPlan(5, start=(A, B)))
    result = compute.collect()
    assert len(set(result.token_ids)) == 1


def test_prompts_of_one_plan_draw_what_each_draws_alone(compute: Compute) -> None:
    prompts = {RequestId(f"row-{n}"): PROMPT[n:] for n in range(4)} | {A: PROMPT * 9, B: PROMPT[:2]}

    def first(step: int, rows: tuple[RequestId, ...]) -> dict[RequestId, TokenId]:
        for row in rows:
            compute.open_row(row, prompts[row], GREEDY)
        chunks = tuple((row, len(prompts[row]) - 1) for row in rows)
        assert compute.dispatch(StepPlan(step, prefill=chunks)) == compute.wait_prefill() == ()
        compute.collect()
        compute.dispatch(StepPlan(step + 1, start=rows))
        result = compute.collect()
        for row in rows:
            compute.close_row(row)
        return dict(zip(result.request_ids, result.token_ids, strict=True))

    alone: dict[RequestId, TokenId] = {}
    for number, row in enumerate(prompts):
        alone |= first(2 * number + 1, (row,))
    assert first(99, tuple(prompts)) == alone


def test_a_row_in_no_plan_keeps_its_state(compute: Compute) -> None:
    """B's prefill waits while A decodes."""
    compute.open_row(B, PROMPT, GREEDY)
    opened(compute, A)
    compute.dispatch(StepPlan(2, prefill=((B, len(PROMPT) - 1),)))
    compute.wait_prefill()
    compute.collect()
    compute.dispatch(StepPlan(3, start=(A,)))
    alone = compute.collect()
    compute.dispatch(StepPlan(4, start=(B,), decode=(A,)))
    both = compute.collect()
    assert dict(zip(both.request_ids, both.token_ids, strict=True))[B] == alone.token_ids[0]


def test_a_started_row_keeps_its_state_while_another_prefills(compute: Compute) -> None:
    opened(compute, A)
    compute.open_row(B, PROMPT, GREEDY)
    compute.dispatch(StepPlan(2, start=(A,)))
    compute.dispatch(StepPlan(3, prefill=((B, len(PROMPT) - 1),)))
    compute.wait_prefill()
    first = compute.collect()
    compute.collect()
    compute.dispatch(StepPlan(4, start=(B,), decode=(A,)))
    both = compute.collect()
    assert dict(zip(both.request_ids, both.token_ids, strict=True))[B] == first.token_ids[0]
    assert set(both.request_ids) == {A, B}


def test_a_closed_row_s_slot_is_computed_and_then_gone(compute: Compute) -> None:
    opened(compute, A, B)
    compute.dispatch(StepPlan(2, start=(A, B)))
    compute.close_row(B)
    in_flight = compute.collect()
    assert A in in_flight.request_ids
    compute.dispatch(StepPlan(3, decode=(A,)))
    assert compute.collect().request_ids == (A,)


def test_closing_an_unknown_row_does_nothing(compute: Compute) -> None:
    compute.close_row(RequestId("nobody"))
    opened(compute, A)
    compute.close_row(RequestId("nobody"))
    compute.dispatch(StepPlan(2, start=(A,)))
    assert compute.collect().request_ids == (A,)


def test_a_row_may_be_closed_before_it_starts(compute: Compute) -> None:
    opened(compute, A, B)
    compute.close_row(A)
    compute.dispatch(StepPlan(2, start=(B,)))
    assert compute.collect().request_ids == (B,)


def test_reset_drops_everything_and_the_next_row_is_served(compute: Compute) -> None:
    opened(compute, A, B)
    compute.dispatch(StepPlan(2, start=(A, B)))
    compute.reset()
    opened(compute, A)
    compute.dispatch(StepPlan(2, start=(A,)))
    assert compute.collect().request_ids == (A,)


def test_who_asks_hears_of_probabilities_and_who_does_not_is_spared(compute: Compute) -> None:
    compute.open_row(A, PROMPT, SamplingParams(temperature=0.0, logprobs=3))
    compute.open_row(B, PROMPT, GREEDY)
    chunks = ((A, len(PROMPT) - 1), (B, len(PROMPT) - 1))
    compute.dispatch(StepPlan(1, prefill=chunks))
    compute.wait_prefill()
    compute.collect()
    compute.dispatch(StepPlan(2, start=(A, B)))
    result = compute.collect()
    told = dict(zip(result.request_ids, result.logprobs, strict=True))
    token = dict(zip(result.request_ids, result.token_ids, strict=True))[A]
    asked = told[A]
    assert told[B] is None and asked is not None
    assert asked.logprob <= 0 and len(asked.top) == 3
    assert asked.top[0] == (token, asked.logprob), "greedy takes the likeliest"


def test_everything_that_rows_held_is_given_back(compute: Compute) -> None:
    opened(compute, A, B)
    compute.dispatch(StepPlan(2, start=(A, B)))
    compute.collect()
    compute.close_row(A)
    compute.close_row(B)
    compute.open_row(A, PROMPT[:1], GREEDY)
    compute.close_row(A)
    compute.dispatch(StepPlan(3))
    assert compute.collect().kv_bytes == 0


def test_memory_is_what_rows_and_copies_take_and_what_they_gave_back(compute: Compute) -> None:
    before = compute.memory()
    opened(compute, A)
    compute.dispatch(StepPlan(2, start=(A,)))
    compute.collect()
    during = compute.memory()
    assert before.live_kv_bytes == 0 < during.live_kv_bytes
    assert during.active_bytes >= before.active_bytes
    assert during.peak_bytes >= during.active_bytes >= during.live_kv_bytes
    assert during.weights_bytes == before.weights_bytes
    compute.close_row(A)
    assert compute.memory().live_kv_bytes == 0


def drawn(compute: Compute, row: RequestId, step: int, num_tokens: int) -> list[TokenId]:
    """Decode a running row alone; return the tokens."""
    tokens: list[TokenId] = []
    for number in range(step, step + num_tokens):
        compute.dispatch(StepPlan(number, decode=(row,)))
        tokens += compute.collect().token_ids
    return tokens


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "params",
    [GREEDY, SamplingParams(temperature=1.0, seed=9, top_k=20, frequency_penalty=0.5)],
    ids=["greedy", "drawn"],
)
def test_a_row_goes_on_from_a_snapshot_of_another_as_that_one_does(
    compute: Compute, params: SamplingParams, ahead: bool
) -> None:
    opened(compute, A, params=params)
    compute.dispatch(StepPlan(2, start=(A,)))
    tokens = [*compute.collect().token_ids, *drawn(compute, A, 3, 5)]
    if ahead:  # the state has read the last of them too, and the token of this step is known later
        compute.dispatch(StepPlan(8, decode=(A,)))
    state = compute.snapshot(A, 0, copies())
    if ahead:
        tokens += compute.collect().token_ids
    known = (*PROMPT, *tokens)
    assert state and all(part.num_bytes > 0 for part in state)
    assert (state[0].start, state[-1].end) == (0, len(known) - 1)
    expected = drawn(compute, A, 9, 6)
    compute.close_row(A)
    keys = tuple(part.key for part in state)
    compute.open_row(B, known, params, keys, state[-1].end, len(tokens))
    compute.dispatch(StepPlan(20, start=(B,)))
    assert [*compute.collect().token_ids, *drawn(compute, B, 21, 5)] == expected


def test_a_row_goes_on_from_its_tokens_alone(compute: Compute) -> None:
    params = SamplingParams(temperature=1.0, seed=9)
    opened(compute, A, params=params)
    compute.dispatch(StepPlan(2, start=(A,)))
    tokens = [*compute.collect().token_ids, *drawn(compute, A, 3, 9)]
    compute.close_row(A)
    known = (*PROMPT, *tokens[:4])
    compute.open_row(B, known, params, num_drawn=4)
    compute.dispatch(StepPlan(20, prefill=((B, len(known) - 1),)))
    compute.wait_prefill()
    compute.collect()
    compute.dispatch(StepPlan(21, start=(B,)))
    assert [*compute.collect().token_ids, *drawn(compute, B, 22, 5)] == tokens[4:]


def test_there_is_no_snapshot_of_a_row_that_is_not_running(compute: Compute) -> None:
    assert compute.snapshot(A, 0, copies()) is None
    opened(compute, A)
    assert compute.snapshot(A, 0, copies()) is None
    compute.dispatch(StepPlan(2, start=(A,)))
    compute.collect()
    compute.close_row(A)
    assert compute.snapshot(A, 0, copies()) is None


def copies() -> Iterator[BlockKey]:
    return (BlockKey(f"copy {number}") for number in itertools.count())


def test_a_snapshot_of_nothing_keeps_nothing(compute: Compute) -> None:
    if compute.cuts == "boundary":
        pytest.skip("a state that cannot be cut is never nothing")
    prompt = tuple(TokenId(i % 250) for i in range(BLOCK))
    compute.open_row(A, prompt, GREEDY)
    compute.dispatch(StepPlan(1, prefill=((A, BLOCK - 1),)))
    compute.wait_prefill()
    compute.collect()
    compute.dispatch(StepPlan(2, start=(A,)))
    compute.collect()
    assert compute.snapshot(A, BLOCK, copies()) == ()
    with pytest.raises(BlockLost):
        compute.tensors(next(copies()))


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, seed=9, top_k=20)])
def test_a_row_goes_on_from_parts_that_were_copied_as_it_went(
    compute: Compute, params: SamplingParams
) -> None:
    """Over the end of a block; of layers that cannot be cut, the last copy alone counts."""
    keys, prompt = copies(), tuple(TokenId(i % 250) for i in range(BLOCK - 4))
    compute.open_row(A, prompt, params)
    compute.dispatch(StepPlan(1, prefill=((A, len(prompt) - 1),)))
    compute.wait_prefill()
    compute.collect()
    compute.dispatch(StepPlan(2, start=(A,)))
    known = [*prompt, *compute.collect().token_ids]
    parts, there = list[BlockInfo](), 0
    in_parts = compute.cuts == "block" or compute.mixed
    for step in (3, 9):
        known += drawn(compute, A, step, 5)
        made = compute.snapshot(A, there if in_parts else 0, keys)
        assert made is not None and made[-1].end == len(known) - 1
        parts = [*(part for part in parts if part.kind == "block"), *made]
        there = len(known) - 1
    if in_parts:
        spans = [(part.start, part.end) for part in parts if part.kind == "block"]
        assert spans == [(0, BLOCK), (BLOCK, BLOCK + 1), (BLOCK + 1, len(known) - 1)]
    if compute.mixed:
        assert (parts[-1].kind, parts[-1].start) == ("boundary", len(known) - 1)
    for part in parts:  # and over a disk
        tensors = [
            Tensor(t.name, t.dtype, t.shape, bytes(t.data)) for t in compute.tensors(part.key)
        ]
        compute.forget([part.key])
        assert compute.adopt(part, tensors) == part
    expected = drawn(compute, A, 20, 6)
    compute.close_row(A)
    num_drawn = len(known) - len(prompt)
    compute.open_row(
        B, tuple(known), params, tuple(p.key for p in parts), len(known) - 1, num_drawn
    )
    compute.dispatch(StepPlan(40, start=(B,)))
    assert [*compute.collect().token_ids, *drawn(compute, B, 41, 5)] == expected


@pytest.mark.parametrize("length", [BLOCK + 90, 90])
def test_a_row_begins_with_blocks_and_a_tail_of_another_as_that_one_did(
    compute: Compute, length: int
) -> None:
    if compute.cuts == "boundary":
        pytest.skip("it has boundaries")
    prompt = tuple(TokenId(i * i % 250) for i in range(length))
    compute.open_row(A, prompt, GREEDY)
    compute.dispatch(StepPlan(1, prefill=((A, length - 1),)))
    compute.wait_prefill()
    compute.collect()
    space = Namespace("00" * 32)
    keys = chain(space, prompt)
    wanted = [*linked(keys), *tails(space, prompt, keys, [length - 1])]
    kept = compute.keep(A, wanted)
    assert [(block.key, block.kind) for block in kept] == [(b.key, b.kind) for b in wanted]
    a_token = kept[-1].num_bytes / kept[-1].num_tokens
    assert all(block.num_bytes == block.num_tokens * a_token for block in kept)
    compute.dispatch(StepPlan(2, start=(A,)))
    expected = [*compute.collect().token_ids, *drawn(compute, A, 3, 5)]
    compute.close_row(A)
    compute.open_row(B, prompt, GREEDY, tuple(b.key for b in kept), length - 1)
    compute.dispatch(StepPlan(20, start=(B,)))
    assert [*compute.collect().token_ids, *drawn(compute, B, 21, 5)] == expected


def keeps_to(text: str) -> TextsMatcher:
    return TextsMatcher([text.encode()])


def drew(results: Sequence[StepResult], row: RequestId) -> list[int]:
    return [dict(zip(r.request_ids, r.token_ids, strict=True))[row] for r in results]


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_row_with_a_matcher_draws_what_that_allows_beside_one_without(
    compute: Compute, looks_ahead: bool
) -> None:
    text, free = b"ahoy", RequestId("free")
    opened(compute, free)
    compute.dispatch(StepPlan(2, start=(free,)))
    compute.dispatch(StepPlan(3, decode=(free,)))
    alone = drew([compute.collect(), compute.collect()], free)
    compute.close_row(free)

    compute.open_row(A, PROMPT, GREEDY, matcher=keeps_to(text.decode()))
    compute.open_row(B, PROMPT, GREEDY)
    chunks = tuple((row, len(PROMPT) - 1) for row in (A, B))
    assert compute.dispatch(StepPlan(4, prefill=chunks)) == compute.wait_prefill() == ()
    compute.collect()
    results: list[StepResult] = []
    for step in range(5, 9):
        plan = StepPlan(step, decode=(A, B)) if step > 5 else StepPlan(step, start=(A, B))
        compute.dispatch(plan)
        if not looks_ahead or step > 5:
            results.append(compute.collect())
    if looks_ahead:
        results.append(compute.collect())
    assert drew(results, A) == list(text)
    assert drew(results, B)[:2] == alone
    assert [r.complete for r in results] == [(), (), (), (A,)]
    assert not any(r.failures for r in results)


def test_a_row_whose_matcher_lets_nothing_follow_is_said_to_have_failed(compute: Compute) -> None:
    compute.open_row(A, PROMPT[:1], GREEDY, matcher=TextsMatcher([]))
    compute.open_row(B, PROMPT[:1], GREEDY)
    compute.dispatch(StepPlan(1, start=(A, B)))
    result = compute.collect()
    assert [failure.request_id for failure in result.failures] == [A]
    assert result.complete == ()
