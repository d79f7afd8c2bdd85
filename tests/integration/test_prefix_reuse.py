"""Reused state on MLX: what a warm engine draws is what a cold one draws, on every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_driver import Arrival, generate, open_compute
from mlxbun.adapters.mlx_compute import loading
from mlxbun.application.prefixes import Prefixes
from mlxbun.domain.blocks import BLOCK, Namespace
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import SamplingParams
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute
from models import tiny

GREEDY = SamplingParams(temperature=0.0)
LIMITS = Limits(max_rows=4)
LAYOUTS = [name for name in tiny.NAMES if name != "tiny-llama-4bit"]


def ids(seed: int, length: int) -> tuple[int, ...]:
    return tuple((seed * 37 + i * i * 13 + i * 7) % 450 + 5 for i in range(length))


def opener(folder: Path, l1: bool = False) -> Callable[[], Compute]:
    """Return what loads the model on the engine's thread, as the server does."""
    return lambda: open_compute(loading.load(folder, "native").model, l1=l1)()


def prefixes(num_bytes: int = 1 << 30) -> Prefixes:
    return Prefixes(Namespace("cd" * 32), Budget(num_bytes))


@pytest.mark.parametrize("l1", [False, True], ids=["default", "l1"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_follow_up_turn_draws_what_it_draws_without_the_cache(
    name: str, l1: bool, tiny_model: Callable[[str], Path]
) -> None:
    """Three turns of a chat, and a second chat that shares its beginning."""
    folder = tiny_model(name)
    beginning = ids(1, 2 * BLOCK + 70)
    history, other = list(beginning), [*beginning, *ids(9, 40)]
    arrivals, cold = list[Arrival](), list[list[int]]()
    for turn in range(3):
        asked = [
            Arrival(tuple(history), GREEDY, 12, after_all=True),
            Arrival(tuple(other), GREEDY, 12),
        ]
        answers = generate(opener(folder, l1), asked, LIMITS)
        arrivals += asked
        cold += answers
        history += [*answers[0], *ids(20 + turn, BLOCK)]
        other += [*answers[1], *ids(30 + turn, 60)]
    reused = list[int]()
    warm = generate(opener(folder, l1), arrivals, LIMITS, prefixes(), reused)
    assert warm == cold
    assert reused[0] == 0
    assert min(reused[2], reused[4]) >= 2 * BLOCK, "later turns began with state"


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3-5", "tiny-gemma3"])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(2, 700), st.integers(0, 2), st.integers(0, 300)),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from([1 << 30, 300_000]),
)
@settings(max_examples=8, deadline=None)
def test_any_requests_draw_what_they_draw_cold(
    name: str,
    tiny_model: Callable[[str], Path],
    asked: list[tuple[int, int, int, int]],
    budget: int,
) -> None:
    """Prompts share beginnings of any length; with a small budget state comes and goes."""
    folder = tiny_model(name)
    prompts = [ids(a, n) + ids(7 + b, m) for a, n, b, m in asked]
    arrivals = [Arrival(p, GREEDY, 6) for p in prompts]
    cold = [generate(opener(folder), [arrival], LIMITS)[0] for arrival in arrivals]
    warm = generate(opener(folder), arrivals, LIMITS, prefixes(budget))
    assert warm == cold
