"""Both row layouts against the model itself: a row's logits are those of its tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles import paged_attention as numpy_kernels
from mlxbun.adapters.mlx_compute import layouts
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.paged_rows import PagedRows
from mlxbun.adapters.mlx_compute.row_states import RowStates, UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_rows import SlotRows, _columns
from mlxbun.domain.sampling import RequestId
from models import tiny

SLOT_MODELS = ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-deepseek-v3")
OTHERS = tuple(name for name in tiny.NAMES if name not in (*SLOT_MODELS, "tiny-llama-4bit"))


class Timeline:
    """Rows that come, decode and go; every logit is compared with a forward from scratch."""

    def __init__(self, model: Any, states: RowStates) -> None:
        self._model = model
        self._states = states
        self._shares = states.shares_prompts()
        self._seen: dict[RequestId, list[int]] = {}  # of the batch: every token fed
        self._apart: dict[RequestId, list[int]] = {}
        self._count = 0

    def arrive(self, *lengths: int) -> None:
        """Open rows and prefill all but their last tokens, each in one or two chunks.

        The first chunks are read together where the layout shares forwards.
        """
        arrived: dict[RequestId, list[int]] = {}
        for length in lengths:
            self._count += 1
            row = RequestId(f"row-{self._count}")
            arrived[row] = [(self._count * 31 + i * i * 7 + i) % 450 + 5 for i in range(length)]
            self._states.open(row)
        first = {row: prompt[: len(prompt) // 2] for row, prompt in arrived.items()}
        read = {row: chunk for row, chunk in first.items() if chunk}
        if len(read) > 1 and self._shares:
            longest = max(map(len, read.values()))
            padded = mx.array([chunk + [3] * (longest - len(chunk)) for chunk in read.values()])
            mx.eval(self._states.extend_together([*read], padded, [*map(len, read.values())]))
            read = {}
        rest = {row: prompt[len(first[row]) : -1] for row, prompt in arrived.items()}
        for row, chunk in (*read.items(), *rest.items()):
            if chunk:
                mx.eval(self._states.extend(row, mx.array([chunk])))
        self._apart |= arrived

    def step(self, leave: int) -> None:
        """Let `leave` rows go, everyone apart join, and check one forward."""
        stay = list(self._seen)[leave:]
        join = list(self._apart)
        if not stay and not join:
            self._states.keep_none()
            self._seen.clear()
            return
        fed = {row: self._token(row) for row in stay}
        slots = list(self._states.batch)
        tokens = mx.array([fed.get(row, 0) if row is not None else 0 for row in slots])
        last = mx.array([self._apart[row][-1] for row in join]) if join else None
        out = self._states.forward(stay, tokens if len(slots) else None, join, last)
        self._seen = {row: [*self._seen[row], fed[row]] for row in stay} | self._apart
        self._apart = {}
        self._check(slots, out.logits, out.moved)

    def _token(self, row: RequestId) -> int:
        return (len(self._seen[row]) * 17 + len(row)) % 400 + 9

    def _check(
        self, before: Sequence[RequestId | None], logits: mx.array, moved: list[int] | None
    ) -> None:
        slots = list(self._states.batch)
        assert {row for row in slots if row is not None} == set(self._seen)
        for slot, row in enumerate(slots):
            if row is None:
                continue
            if moved is None:
                assert before[slot] == row
            elif moved[slot] >= 0:
                assert before[moved[slot]] == row
            else:
                assert row not in before
            want = self._model(mx.array([self._seen[row]]))[0, -1]
            np.testing.assert_allclose(np.array(logits[slot]), np.array(want), rtol=2e-3, atol=2e-3)


LAYOUTS: dict[str, Callable[[Any], RowStates]] = {
    "slots": SlotRows,
    "pages": lambda model: PagedRows(model, numpy_kernels),
    "mlx-lm": lambda model: MlxLmRows(model, batch_caches_always=False),
    "mlx-lm, always batched": lambda model: MlxLmRows(model, batch_caches_always=True),
}
turns = st.lists(
    st.tuples(st.lists(st.integers(1, 90), max_size=3), st.integers(0, 3), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(turns)
@settings(deadline=None, max_examples=12)
def test_logits_are_those_of_each_row_alone(
    layout: str, load: Callable[[str], Any], script: list[tuple[list[int], int, int]]
) -> None:
    model = load("tiny-llama")
    if layout == "pages":
        mx.disable_compile()  # the double computes while the step is traced
    try:
        play(Timeline(model, LAYOUTS[layout](model)), script)
    finally:
        mx.enable_compile()


def play(timeline: Timeline, script: list[tuple[list[int], int, int]]) -> None:
    for arrivals, leave, steps in script:
        timeline.arrive(*arrivals)
        timeline.step(leave)
        for _ in range(steps):
            timeline.step(0)


@pytest.mark.parametrize("name", SLOT_MODELS)
def test_slots_suit_every_model_with_plain_caches(name: str, load: Callable[[str], Any]) -> None:
    model = load(name)
    states, _ = layouts.choose(model, l1=False, compiled=True)
    assert isinstance(states, SlotRows)
    timeline = Timeline(model, states)
    for length in (40, 1, 7):
        timeline.arrive(length)
        timeline.step(0)
    for leave in (0, 1, 0):
        timeline.step(leave)


@pytest.mark.parametrize("name", OTHERS)
def test_other_caches_keep_mlx_lm_s_layout_and_say_why(
    name: str, load: Callable[[str], Any]
) -> None:
    states, why = layouts.choose(load(name), l1=False, compiled=True)
    assert isinstance(states, MlxLmRows)
    assert "Cache" in why


def test_parity_keeps_mlx_lm_s_layout(load: Callable[[str], Any]) -> None:
    states, why = layouts.choose(load("tiny-llama"), l1=True, compiled=True)
    assert not states.capabilities.compiled
    assert "--l1" in why


def test_a_steady_batch_is_never_traced_again(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    states = SlotRows(model)
    timeline = Timeline(model, states)
    for length in (5, 9):
        timeline.arrive(length)
    timeline.step(0)
    traces = states.num_traces
    for _ in range(30):
        timeline.step(0)
    assert states.num_traces == traces


def test_columns_of_rows_that_left_are_squeezed_out(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    states = SlotRows(model)
    timeline = Timeline(model, states)
    timeline.arrive(900)
    timeline.step(0)
    timeline.arrive(10)
    timeline.step(0)
    wide = states.num_bytes()
    timeline.step(1)  # the long row leaves
    assert states.num_bytes() * 4 < wide
    for _ in range(5):
        timeline.step(0)


def test_a_join_copies_one_row_not_the_batch(load: Callable[[str], Any]) -> None:
    """Slots that are there already are written in place: peak memory shows no second batch."""
    model = load("tiny-llama")
    states = SlotRows(model)
    timeline = Timeline(model, states)
    for length in (2000, 10, 10):
        timeline.arrive(length)
    timeline.step(0)
    timeline.step(1)
    timeline.arrive(10)
    held = states.num_bytes()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    timeline.step(0)
    assert mx.get_peak_memory() - before < held


def test_a_window_is_more_than_slots_give(load: Callable[[str], Any]) -> None:
    with pytest.raises(UnsuitableModel, match="RotatingKVCache"):
        SlotRows(load("tiny-gemma3"))


@given(st.integers(1, 200_000))
def test_capacity_has_an_eighth_of_slack_at_most(needed: int) -> None:
    assert needed <= _columns(needed) <= max(needed + 63, needed * 5 // 4)
