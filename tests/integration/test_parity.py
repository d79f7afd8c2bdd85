"""Greedy tokens against mlx-lm's BatchGenerator, on every layout of its caches.

The oracle runs in this process; ours runs in the engine's thread, with rows that join while
others decode and leave between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from engine_driver import Arrival, generate, open_compute
from mlxbun.adapters.mlx_compute import loading
from mlxbun.domain.sampling import SamplingParams
from mlxbun.domain.scheduling import Limits
from models import tiny

GREEDY = SamplingParams(temperature=0.0)
L1 = Limits(adaptive_chunks=False, max_chunk_tokens=32)
LAYOUTS = [name for name in tiny.NAMES if name != "tiny-llama-4bit"]


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Return ids that no tokenizer treats specially, another text for each seed."""
    return tuple((seed * 37 + i * i * 13 + i * 7) % 450 + 5 for i in range(length))


def oracle(model: Any, prompts: Sequence[tuple[int, ...]], max_tokens: Sequence[int]) -> list[Any]:
    """Return mlx-lm's greedy tokens for rows that are inserted together."""
    generator = BatchGenerator(
        model, prefill_step_size=32, completion_batch_size=8, stream=mx.default_stream(mx.cpu)
    )
    uids = generator.insert([list(p) for p in prompts], list(max_tokens))
    tokens: dict[int, list[int]] = {uid: [] for uid in uids}
    while len([t for t, m in zip(tokens.values(), max_tokens, strict=True) if len(t) < m]):
        for response in generator.next_generated():
            tokens[response.uid].append(response.token)
    generator.close()
    return [tokens[uid] for uid in uids]


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_batch_draws_what_mlx_lm_draws(name: str, rows: int, load: Callable[[str], Any]) -> None:
    """Prompts are longer than the sliding window, and answers go on past its wrap."""
    model = load(name)
    prompts = [prompt(i, 3 + 29 * i) for i in range(rows)]
    max_tokens = [40, 24, 33, 12][:rows]
    want = oracle(model, prompts, max_tokens)
    got = generate(
        open_compute(model, l1=True),
        [Arrival(p, GREEDY, m) for p, m in zip(prompts, max_tokens, strict=True)],
        L1,
    )
    assert got == want


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_that_join_and_leave_draw_what_they_draw_alone(
    name: str, load: Callable[[str], Any]
) -> None:
    model = load(name)
    arrivals = [
        Arrival(prompt(1, 50), GREEDY, 40),
        Arrival(prompt(2, 1), GREEDY, 9, after_tokens=3),
        Arrival(prompt(3, 90), GREEDY, 20, after_tokens=5),
        Arrival(prompt(4, 17), GREEDY, 30, after_tokens=16),
        Arrival(prompt(5, 33), GREEDY, 5, after_tokens=30),
    ]
    together = generate(open_compute(model, l1=False), arrivals, Limits(max_chunk_tokens=32))
    for arrival, tokens in zip(arrivals, together, strict=True):
        assert tokens == oracle(model, [arrival.prompt_ids], [arrival.max_tokens])[0]


def test_a_seeded_row_draws_the_same_alone_and_in_company(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    mixed = [
        SamplingParams(temperature=0.9, top_p=0.9, seed=1),
        SamplingParams(temperature=1.1, min_p=0.05, seed=2),
        SamplingParams(temperature=0.7, repetition_penalty=1.2, presence_penalty=0.5, seed=3),
        GREEDY,
    ]
    arrivals = [Arrival(prompt(i, 8 + i), p, 30, 4 * i) for i, p in enumerate(mixed)]
    together = generate(open_compute(model, l1=False), arrivals, Limits())
    for arrival, tokens in zip(arrivals, together, strict=True):
        alone = [Arrival(arrival.prompt_ids, arrival.params, arrival.max_tokens)]
        assert generate(open_compute(model, l1=False), alone, Limits()) == [tokens]


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Any:
    return loading.load(demo_model, "native").model


DEMO_PROMPTS = (
    (1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198),
    (504, 3575, 282, 4649, 314),
    tuple(range(300, 340)),
    (1, 4093, 198, 28120, 3, 2, 198, 1, 520, 9531, 198),
)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_demo_model_draws_what_mlx_lm_draws(rows: int, demo: Any) -> None:
    prompts, max_tokens = DEMO_PROMPTS[:rows], [16, 12, 20, 9][:rows]
    want = oracle(demo, prompts, max_tokens)
    arrivals = [Arrival(p, GREEDY, m) for p, m in zip(prompts, max_tokens, strict=True)]
    for l1 in (True, False):
        assert generate(open_compute(demo, l1=l1, vocab_size=49152), arrivals, L1) == want


def test_the_demo_model_draws_the_same_with_joins_and_leaves(demo: Any) -> None:
    arrivals = [
        Arrival(prompt_ids, GREEDY, m, after)
        for prompt_ids, m, after in zip(DEMO_PROMPTS, (24, 6, 12, 8), (0, 2, 5, 12), strict=True)
    ]
    together = generate(open_compute(demo, l1=True, vocab_size=49152), arrivals, L1)
    for arrival, tokens in zip(arrivals, together, strict=True):
        assert tokens == oracle(demo, [arrival.prompt_ids], [arrival.max_tokens])[0]


def test_quantised_weights_are_widened_and_answer_alike(
    tiny_model: Callable[[str], Path],
) -> None:
    folder = tiny_model("tiny-llama-4bit")
    wide, native = loading.load(folder, "float32"), loading.load(folder, "native")
    assert wide.notes[1][:2] == ("weights", "float32")
    assert "quantised" in wide.notes[1][2]
    arrival = [Arrival(prompt(1, 20), GREEDY, 16)]
    assert generate(open_compute(wide.model, l1=True), arrival, L1) == generate(
        open_compute(native.model, l1=True), arrival, L1
    )
