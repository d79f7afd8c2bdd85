"""An answer that was cut goes on to the very tokens that it would have had, on every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_driver import open_compute
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import BLOCK
from mlxbun.domain.sampling import SamplingParams
from resume_driver import Resumable

MODELS = (
    "tiny-llama",
    "tiny-gemma3",
    "tiny-qwen3-5",
    "tiny-mamba2",
    "tiny-falcon-h1",
    "tiny-deepseek-v3",
)
GREEDY = SamplingParams(temperature=0.0, logprobs=3)
DRAWN = SamplingParams(
    temperature=1.0,
    top_k=50,
    seed=7,
    repetition_penalty=1.3,
    frequency_penalty=0.2,
    frequency_context_size=0,
    xtc_probability=0.3,
    xtc_threshold=0.02,
    logprobs=5,
)
MAX_TOKENS = 100

Life = Callable[..., Resumable]


@pytest.fixture
def life(tmp_path: Path, load: Callable[[str], Any]) -> Life:
    """Return what begins the life of a process on one folder; `stop` ends it."""

    def begin(
        name: str, *, every: int = 16, cut_after: int | None = None, folder: str = "ssd"
    ) -> Resumable:
        store = open_block_store(tmp_path / folder, verify="always")
        return Resumable(
            open_compute(load(name), l1=False),
            store,
            store.generations,
            every=every,
            cut_after=cut_after,
            leave_thread=leave_thread,
        )

    return begin


def prompt(num_tokens: int) -> list[int]:
    return [(7 * i * i + 3 * i) % 500 for i in range(num_tokens)]


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", MODELS)
def test_a_cut_answer_goes_on_as_if_it_had_not_been(
    life: Life, name: str, params: SamplingParams
) -> None:
    asked = prompt(BLOCK + 40)
    whole = life(name, every=0, folder="other")
    expected = whole.ask(asked, params, MAX_TOKENS)
    whole.stop()
    first = life(name, cut_after=2)
    cut = first.submit(asked, params, MAX_TOKENS)
    first.wait_saved(2)
    first.stop()
    assert 2 * 16 <= len(cut.tokens) < 3 * 16
    second = life(name)
    resumed = second.ask(asked, params, MAX_TOKENS)
    anew = second.ask(asked, params, MAX_TOKENS)
    second.stop()
    assert resumed.tokens == expected.tokens
    assert resumed.num_replayed >= 2 * 16 and resumed.num_cached == len(asked)
    assert None not in resumed.told and resumed.told == expected.told, "to the last bit"
    assert anew.tokens == expected.tokens
    assert not anew.num_replayed, "who is complete is not resumed"


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3-5"])
def test_an_answer_whose_state_is_lost_is_computed_from_its_tokens(
    life: Life, tmp_path: Path, name: str
) -> None:
    asked = prompt(BLOCK + 40)
    whole = life(name, every=0, folder="other")
    expected = whole.ask(asked, DRAWN, MAX_TOKENS).tokens
    whole.stop()
    first = life(name, cut_after=2)
    first.submit(asked, DRAWN, MAX_TOKENS)
    first.wait_saved(2)
    first.stop()
    for file in (tmp_path / "ssd" / "objects").rglob("*.safetensors"):
        file.unlink()
    second = life(name)
    resumed = second.ask(asked, DRAWN, MAX_TOKENS)
    second.stop()
    assert resumed.tokens == expected
    assert resumed.num_replayed >= 2 * 16 and resumed.num_cached == 0


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
def test_answers_are_cut_and_go_on_in_company(life: Life, name: str) -> None:
    asked = [prompt(BLOCK + 40), prompt(30), prompt(3 * BLOCK + 5)]
    whole = life(name, every=0, folder="other")
    expected = [whole.ask(ids, DRAWN, MAX_TOKENS).tokens for ids in asked]
    whole.stop()
    first = life(name, every=8, cut_after=5)
    for ids in asked:
        first.submit(ids, DRAWN, MAX_TOKENS)
    first.wait_saved(5)
    first.stop()
    second = life(name)
    resumed = [second.submit(ids, DRAWN, MAX_TOKENS) for ids in asked]
    for client in resumed:
        client.end()
    second.stop()
    assert [client.tokens for client in resumed] == expected
    assert sum(client.num_replayed > 0 for client in resumed) >= 2
