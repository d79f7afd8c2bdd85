"""Two dozen clients at once, of every kind, and a server that is stopped under them.

`scripts/chaos` does it for every layout, with other seeds, and for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.rounds import Plan, run
from embedding_folders import make_encoder


@pytest.mark.timeout(400)  # four lives of a server, on a machine that may be busy
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3-5"])
def test_whatever_clients_do_answers_are_right_and_nothing_is_left(
    name: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    embedder = make_encoder("tiny-bert", tmp_path / "tiny-bert")
    plan = Plan(seed=7, num_lives=2, num_rounds=1, num_cases=30, spread_seconds=0.5)
    outcome = run(tiny_model(name), embedder, plan)
    assert not outcome.faults, "\n".join(outcome.faults)
    assert outcome.counts["chat 200"] > 10, outcome.counts
    assert outcome.counts["left"] > 5, outcome.counts
