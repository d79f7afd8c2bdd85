"""The engine's bench: what it measures is there, and the models it makes are what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from doubles.compute import ScriptedCompute
from mlxbun.adapters.bench import bare_steps, models, ratios
from mlxbun.adapters.bench.baselines import open_baselines
from mlxbun.adapters.bench.engine_steps import (
    WARM_STEPS,
    EngineSteps,
    Mark,
    StepsFailed,
    cost,
    greedy_params,
    mixed_params,
)
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.scheduling import Limits

ROOT = Path(__file__).parents[2]
FOREVER = tuple(map(TokenId, b"[forever]"))
BREAKING = tuple(map(TokenId, b"[break row] x"))


def test_a_steps_cost_is_the_mean_between_the_warm_steps() -> None:
    marks = [Mark(host=0.002 * i, wall=0.004 * i) for i in range(2 * WARM_STEPS + 11)]
    found = cost(marks, 8)
    assert found.num_steps == 10
    assert found.host_ms_per_step == pytest.approx(2.0)
    assert found.tokens_per_second == pytest.approx(8 / 0.004)


def test_too_few_steps_are_no_measurement() -> None:
    with pytest.raises(StepsFailed, match="too few"):
        cost([Mark(0.0, 0.0)] * (2 * WARM_STEPS), 8)


def test_the_engines_steps_are_measured_on_its_thread() -> None:
    with EngineSteps(ScriptedCompute, Limits(max_rows=4)) as engine:
        found = [engine.measure(greedy_params(4), FOREVER, 30) for _ in range(2)]
    for run in found:
        assert (run.num_rows, run.num_steps >= 28) == (4, True)
        assert run.host_ms_per_step > 0


def test_bare_steps_are_measured_without_an_engine_and_leave_nothing() -> None:
    compute = ScriptedCompute()
    run = bare_steps.measure(compute, greedy_params(4), FOREVER, 30)
    assert (run.num_rows, run.num_steps) == (4, 29)
    assert run.wall_ms_per_step > 0
    assert compute.num_rows == 0
    with pytest.raises(StepsFailed):
        bare_steps.measure(compute, greedy_params(2), BREAKING, 20)
    assert compute.num_rows == 0


def test_rows_that_break_are_no_measurement() -> None:
    with EngineSteps(ScriptedCompute, Limits(max_rows=2)) as engine, pytest.raises(StepsFailed):
        engine.measure(greedy_params(2), BREAKING, 20)


def test_a_model_that_does_not_open_is_no_measurement() -> None:
    def open_compute() -> ScriptedCompute:
        raise FileNotFoundError("no weights")

    with pytest.raises(StepsFailed, match="no weights"), EngineSteps(open_compute, Limits()):
        pass


def test_mixed_rows_all_differ_and_use_every_kind_of_filter_and_penalty() -> None:
    rows = mixed_params(32)
    assert len(set(map(repr, rows))) == 32
    assert all(0 < row.top_p <= 1 and not row.greedy for row in rows)
    for name in ("top_k", "min_p", "presence_penalty", "frequency_penalty"):
        assert {getattr(row, name) == 0 for row in rows} == {True, False}


def test_the_baselines_decode_the_rows_that_were_asked_for(
    tiny_model: Callable[[str], Path],
) -> None:
    baselines = open_baselines(str(tiny_model("tiny-llama")))
    prompt = [5, 6, 7, 8]
    hand = baselines.hand_loop(3, prompt, 20)
    theirs = baselines.batch_generator(mixed_params(3), prompt, 20)
    assert (hand.num_rows, hand.num_steps) == (3, 19)
    assert theirs.num_rows == 3 and theirs.num_steps >= 19
    assert hand.host_ms_per_step > 0 and theirs.host_ms_per_step > 0


def test_the_script_writes_a_result_for_each_number_of_rows(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/bench/engine.py"), "--model", "random:qwen3-tiny",
         "--rows", "1,3", "--steps", "8", "--rounds", "1", "--json", str(out)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["model"], found["prompt_tokens"]) == ("random:qwen3-tiny", 128)
    assert [result["rows"] for result in found["results"]] == [1, 3]
    for result in found["results"]:
        assert result["ratio"] == pytest.approx(result["ours_tps"] / result["theirs_tps"])
        assert result["bare_tps"] > 0
        assert result["paired_ratio"] == pytest.approx(result["ratio"])  # of one round
        assert result["path"].split(", ")[-1] in ("compiled", "plain")
    kind = ratios.read_kind(found)
    assert kind.os and kind.machine and kind.device
    assert [row.rows for row in ratios.read_results("m", "greedy", found)] == [1, 3]


def test_an_endless_copy_gives_no_chance_to_special_tokens(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    source = tiny_model("tiny-llama")
    copy = models.endless_copy(source, tmp_path / "endless")
    special = models.special_ids(source)
    assert special and set(models.end_ids(source)) <= set(special)
    model, _ = load_model(copy)
    logits = model(mx.array([[1, 2, 3, 40, 50]]))[0]
    assert mx.abs(logits[:, mx.array(special)]).max().item() == 0
    assert logits.max(axis=-1).min().item() > 0
    assert (copy / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_name_that_is_no_model_is_named() -> None:
    with pytest.raises(models.ModelNotFound, match="no-such-model"):
        models.find_model("no-such-model")
