"""Both row layouts against the model itself: a row's logits are those of its tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

from doubles import paged_attention as numpy_kernels
from mlxbun.adapters.mlx_compute import layouts, loading, slot_rows, slot_step
from mlxbun.adapters.mlx_compute.joint_projections import join_projections
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.paged_rows import PagedRows
from mlxbun.adapters.mlx_compute.row_states import RowStates
from mlxbun.adapters.mlx_compute.slot_plan import Prices
from mlxbun.adapters.mlx_compute.slot_rows import SlotRows
from mlxbun.domain.sampling import RequestId
from models import tiny

on_a_cpu = pytest.mark.skipif(
    not loading.on_cpu(), reason="slots in groups, written in place, are for CPUs; GPUs have pages"
)
PLAIN = ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-deepseek-v3")  # keys and values
OTHERS = tuple(name for name in tiny.NAMES if name not in (*PLAIN, "tiny-llama-4bit"))


class Timeline:
    """Rows that come, decode and go; every logit is compared with a forward from scratch."""

    def __init__(self, model: Any, states: RowStates) -> None:
        self._model = model
        self._states = states
        self._shares = states.shares_prompts()
        self.seen: dict[RequestId, list[int]] = {}  # of the batch: every token fed
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
        stay = list(self.seen)[leave:]
        join = list(self._apart)
        if not stay and not join:
            self._states.keep_none()
            self.seen.clear()
            return
        fed = {row: self._token(row) for row in stay}
        slots = list(self._states.batch)
        tokens = mx.array([fed.get(row, 0) if row is not None else 0 for row in slots])
        last = mx.array([self._apart[row][-1] for row in join]) if join else None
        out = self._states.forward(stay, tokens if len(slots) else None, join, last)
        self.seen = {row: [*self.seen[row], fed[row]] for row in stay} | self._apart
        self._apart = {}
        self._check(slots, out.logits, out.moved)

    def _token(self, row: RequestId) -> int:
        return (len(self.seen[row]) * 17 + len(row)) % 400 + 9

    def _check(
        self, before: Sequence[RequestId | None], logits: mx.array, moved: list[int] | None
    ) -> None:
        slots = list(self._states.batch)
        assert {row for row in slots if row is not None} == set(self.seen)
        for slot, row in enumerate(slots):
            if row is None:
                continue
            if moved is None:
                assert before[slot] == row
            elif moved[slot] >= 0:
                assert before[moved[slot]] == row
            else:
                assert row not in before
            want = self._model(mx.array([self.seen[row]]))[0, -1]
            np.testing.assert_allclose(np.array(logits[slot]), np.array(want), rtol=2e-3, atol=2e-3)


def short(model: Any, prices: Prices | None = None) -> SlotRows:
    """Return slots whose steps take few operations, of a model that may be changed."""
    join_projections(model)
    return SlotRows(model, prices, short=True)


LAYOUTS: dict[str, Callable[[Any], RowStates]] = {
    "slots": SlotRows,
    "slots, few operations": short,
    "pages": lambda model: PagedRows(model, numpy_kernels),
    "mlx-lm": lambda model: MlxLmRows(model, batch_caches_always=False),
    "mlx-lm, always batched": lambda model: MlxLmRows(model, batch_caches_always=True),
}


def turns(longest: int) -> st.SearchStrategy[list[tuple[list[int], int, int]]]:
    """Return turns of rows that come, how many leave, and how many steps follow."""
    prompts = st.one_of(st.integers(1, 90), st.integers(1, longest))  # tokens
    turn = st.tuples(st.lists(prompts, max_size=3), st.integers(0, 3), st.integers(1, 4))
    return st.lists(turn, min_size=1, max_size=6)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(turns(longest=90))
@settings(deadline=None, max_examples=12)
def test_logits_are_those_of_each_row_alone(
    layout: str, load: Callable[[str], Any], script: list[tuple[list[int], int, int]]
) -> None:
    if layout == "slots, few operations" and not loading.on_cpu():
        pytest.skip("few operations are for CPUs")
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


@pytest.mark.parametrize("name", OTHERS)
@given(turns(longest=90))
@settings(deadline=None, max_examples=8)
def test_windows_and_arrays_in_slots_are_those_of_each_row_alone(
    name: str, load: Callable[[str], Any], script: list[tuple[list[int], int, int]]
) -> None:
    model = load(name)
    play(Timeline(model, SlotRows(model)), script)


@pytest.mark.parametrize("name", (*PLAIN, *OTHERS))
def test_slots_suit_every_kind_of_layer(name: str, load: Callable[[str], Any]) -> None:
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
def test_on_a_gpu_other_caches_keep_mlx_lm_s_layout_and_say_why(
    name: str, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_rows, "on_cpu", lambda: False)
    states, why = layouts.choose(load(name), l1=False, compiled=True)
    assert isinstance(states, MlxLmRows)
    assert "Cache" in why


@pytest.mark.parametrize("name", tiny.NAMES)
def test_only_what_mlx_lm_can_trim_at_any_length_is_cut(
    name: str, load: Callable[[str], Any]
) -> None:
    """A longer prefix serves a shorter one in every layer, or is kept for its length alone."""
    caches = make_prompt_cache(load(name))
    mx.eval(load(name)(mx.array([[5 + i for i in range(64)]]), cache=caches))  # past all windows
    states, _ = layouts.choose(load(name), l1=False, compiled=True)
    assert (states.capabilities.cuts == "block") == can_trim_prompt_cache(caches)


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


MANY_GROUPS = Prices(cell=1, group=0, first_class=16)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
@given(turns(longest=700))
@settings(deadline=None, max_examples=12)
def test_logits_do_not_depend_on_how_rows_are_grouped(
    name: str, load: Callable[[str], Any], script: list[tuple[list[int], int, int]]
) -> None:
    model = load(name)
    play(Timeline(model, SlotRows(model, MANY_GROUPS)), script)


@on_a_cpu
@given(turns(longest=700))
@settings(deadline=None, max_examples=12)
def test_steps_of_few_operations_go_by_group_too(
    load: Callable[[str], Any], script: list[tuple[list[int], int, int]]
) -> None:
    model = load("tiny-qwen3")
    play(Timeline(model, short(model, MANY_GROUPS)), script)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-qwen3-moe", "tiny-gemma3"])
def test_rows_stand_in_groups_of_like_length(name: str, load: Callable[[str], Any]) -> None:
    model = load(name)
    states = SlotRows(model, MANY_GROUPS)
    timeline = Timeline(model, states)
    for length in (600, 20, 21, 22):
        timeline.arrive(length)
    timeline.step(0)
    assert [(shape.rows, shape.columns) for shape in states.shapes] == [(3, 64), (1, 640)]
    for length in (19, 23):
        timeline.arrive(length)
        timeline.step(0)
    assert [shape.rows for shape in states.shapes] == [5, 1]
    timeline.step(1)  # the long row leaves; its group goes with it
    assert [shape.rows for shape in states.shapes] == [5]
    timeline.arrive(300)
    timeline.step(3)  # and short rows leave while another long one comes
    for _ in range(30):
        timeline.step(0)
    assert [shape.rows for shape in states.shapes] == [2, 1]


def test_groups_that_became_alike_are_made_one(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    states = SlotRows(model, Prices(cell=1, group=1000, first_class=16))
    timeline = Timeline(model, states)
    for length in (*[10] * 14, 600, 10, 100, 10):
        timeline.arrive(length)
    timeline.step(0)
    assert [shape.rows for shape in states.shapes] == [16, 2]
    timeline.step(15)  # few are left: an operation more would cost more than padding
    assert [shape.rows for shape in states.shapes] == [3]
    timeline.step(0)


def test_a_row_s_state_is_in_the_order_of_its_tokens(load: Callable[[str], Any]) -> None:
    """Whatever joined, left, was squeezed or moved to another group before."""
    model = load("tiny-llama")
    states = SlotRows(model, Prices(cell=1, group=1000, first_class=16))
    timeline = Timeline(model, states)
    for length in (*[10] * 14, 600, 10, 100, 10):
        timeline.arrive(length)
    timeline.step(0)
    timeline.step(0)
    for leave in (15, 0, 0):
        timeline.step(leave)
        for row, seen in timeline.seen.items():
            want = make_prompt_cache(model)
            model(mx.array([seen]), cache=want)
            for ours, theirs in zip(states.caches(row), want, strict=True):
                assert ours.offset == len(seen)
                for got, wanted in zip(ours.state[:2], theirs.state[:2], strict=True):
                    np.testing.assert_allclose(
                        np.array(got), np.array(wanted[:, :, : len(seen)]), rtol=2e-3, atol=2e-3
                    )


@pytest.mark.parametrize("name", (*PLAIN, *OTHERS))
def test_a_row_goes_on_in_mlx_lm_s_caches(name: str, load: Callable[[str], Any]) -> None:
    """What is read of a row in the batch, for the prefix cache, is what mlx-lm would have."""
    model = load(name)
    states = SlotRows(model)
    timeline = Timeline(model, states)
    for length in (40, 1, 14):  # beyond windows of 16 tokens, and within them until they wrap
        timeline.arrive(length)
        timeline.step(0)
    for leave in (0, 0, 1, 0, 0):
        timeline.step(leave)
        for row, seen in timeline.seen.items():
            caches, following = states.caches(row), [7, 8, 9]
            ours = [model(mx.array([[token]]), cache=caches)[0, -1] for token in following]
            want = model(mx.array([[*seen, *following]]))[0, -3:]
            np.testing.assert_allclose(
                np.array(mx.stack(ours)), np.array(want), rtol=2e-3, atol=2e-3
            )


def test_attention_that_has_a_mask_of_its_own_keeps_one_group(load: Callable[[str], Any]) -> None:
    model = load("tiny-deepseek-v3")
    states = SlotRows(model, MANY_GROUPS)
    timeline = Timeline(model, states)
    for length in (300, 5, 6):
        timeline.arrive(length)
    timeline.step(0)
    assert [shape.rows for shape in states.shapes] == [3]


def test_a_steady_batch_of_two_groups_is_never_traced_again(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama")
    states = SlotRows(model, MANY_GROUPS)
    timeline = Timeline(model, states)
    for length in (200, 9, 5):
        timeline.arrive(length)
    timeline.step(0)
    assert len(states.shapes) == 2
    traces = states.num_traces
    assert traces == 1
    for _ in range(30):
        timeline.step(0)
    assert states.num_traces == traces


def test_traces_of_old_shapes_are_let_go(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_step, "MOST_TRACES", 2)
    model = load("tiny-llama")
    states = SlotRows(model)
    timeline = Timeline(model, states)
    steps = {id(states._step._compiled): states._step._compiled}
    for length in (5, 70, 140, 210, 280):
        timeline.arrive(length)
        timeline.step(0)
        steps[id(states._step._compiled)] = states._step._compiled
    assert states.num_traces == 5
    assert len(steps) == 3


@on_a_cpu
@pytest.mark.parametrize("together", [True, False])
def test_a_long_row_leaves_short_ones_short(together: bool, load: Callable[[str], Any]) -> None:
    """What is held is at most 1.2 times the tokens that are alive."""
    states = SlotRows(load("tiny-llama"))
    order = (*[64] * 7, 8192)
    rows = list[RequestId]()
    for length in order:
        row = RequestId(f"row-{len(rows)}")
        states.open(row)
        for start in range(0, length - 1, 512):
            chunk = mx.ones((1, min(512, length - 1 - start)), mx.int32)
            mx.eval(states.extend(row, chunk))
        rows.append(row)
        if together and len(rows) < len(order):
            continue
        joining = rows if together else [row]
        tokens = None if len(joining) == len(rows) else mx.ones(len(states.batch), mx.int32)
        stay = rows[: len(rows) - len(joining)]
        mx.eval(states.forward(stay, tokens, joining, mx.ones(len(joining), mx.int32)).logits)
    mx.eval(states.forward(rows, mx.ones(len(states.batch), mx.int32), (), None).logits)
    bytes_a_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, dim, float32
    assert states.num_bytes() <= 1.2 * sum(order) * bytes_a_token


@on_a_cpu
@pytest.mark.parametrize("layout", [SlotRows, short])
@pytest.mark.parametrize("lengths", [(500,) * 8, (1600, 1600, *[40] * 6)])
def test_a_step_writes_in_place(lengths: Sequence[int], layout: Callable[[Any], SlotRows]) -> None:
    """While a step is in flight and the next is submitted, no second state is made."""
    model = wide_llama()
    states = layout(model)
    rows = [RequestId(f"row-{i}") for i in range(len(lengths))]
    for row, length in zip(rows, lengths, strict=True):
        states.open(row)
        mx.eval(states.extend(row, mx.ones((1, length), mx.int32)))

    tokens = drawn(states.forward((), None, rows, mx.ones(len(rows), mx.int32)).logits)
    mx.eval(tokens)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(6):
        latest = tokens
        tokens = drawn(states.forward(rows, tokens, (), None).logits)
        submit(tokens)
        mx.eval(latest)
    mx.eval(tokens)
    assert states.num_bytes() > 60e6
    assert mx.get_peak_memory() - before < states.num_bytes() / 20


@on_a_cpu
def test_a_row_that_finds_all_slots_taken_does_not_copy_the_others() -> None:
    """A step is in flight when the row joins, as in the engine."""
    model = wide_llama()
    states = SlotRows(model)
    rows = [RequestId(f"row-{i}") for i in range(9)]
    for row in rows:
        states.open(row)
        mx.eval(states.extend(row, mx.ones((1, 500), mx.int32)))
    tokens = drawn(states.forward((), None, rows[:8], mx.ones(8, mx.int32)).logits)
    mx.eval(tokens)
    full, apart = states.shapes, 500 * 2 * 2 * 8 * 128 * 4
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    tokens = drawn(states.forward(rows[:8], tokens, (), None).logits)
    submit(tokens)
    out = states.forward(rows[:8], tokens, rows[8:], mx.ones(1, mx.int32))
    mx.eval(out.logits)
    assert [shape.slots for shape in states.shapes] == [8, 1] and len(full) == 1
    assert out.moved == [*range(8), -1]
    assert mx.get_peak_memory() - before < 2 * apart < states.num_bytes() / 4


submit: Callable[..., None] = mx.async_eval


def drawn(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def wide_llama() -> Any:
    """Return a random llama whose state is large against its weights."""
    return Model(
        ModelArgs(
            model_type="llama",
            hidden_size=64,
            num_hidden_layers=2,
            intermediate_size=64,
            num_attention_heads=8,
            num_key_value_heads=8,
            head_dim=128,
            rms_norm_eps=1e-5,
            vocab_size=128,
        )
    )
