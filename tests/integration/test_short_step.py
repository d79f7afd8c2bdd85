"""Steps of few operations against the models' own code, on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from decoders import LLAMA, MORE, SCALED, decoded, large, made
from mlxbun.adapters.mlx_compute import layouts, loading, one_row_products
from mlxbun.adapters.mlx_compute.fused_decode import short_step
from mlxbun.adapters.mlx_compute.fused_decode.decoder import COMPARED, decoder_of, turns_of
from mlxbun.adapters.mlx_compute.gated_mlp import quicken_mlps
from mlxbun.adapters.mlx_compute.joint_projections import join_projections
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel
from mlxbun.adapters.mlx_compute.shared_rope import share_rotations
from mlxbun.adapters.mlx_compute.slot_rows import SHORT, SlotRows
from mlxbun.domain.sampling import RequestId

pytestmark = pytest.mark.skipif(not loading.on_cpu(), reason="few operations are for CPUs")
THREE = LLAMA | {"num_hidden_layers": 3} | MORE
CONFIGS = {file: THREE | {"model_type": file} for file in COMPARED} | {
    "scaled rotations": SCALED,
    "tied head": THREE | {"tie_word_embeddings": True},
    "one key head": THREE | {"num_key_value_heads": 1},
    "as many key heads": THREE | {"num_key_value_heads": 4},
}


def short(model: Any, *, quick: bool = True) -> SlotRows:
    """Return the layout of a model that is changed as when it is opened."""
    if quick:
        quicken_mlps(model)
    join_projections(model)
    share_rotations(model)
    return SlotRows(model, short=True)


def prompts(*lengths: int) -> list[list[int]]:
    return [[3 + i * n % 60 for i in range(length)] for n, length in enumerate(lengths, 1)]


def near(found: mx.array, want: mx.array) -> None:
    """Compare logits of models whose weights are so large that a cap or a factor would show."""
    wanted = np.array(want)
    np.testing.assert_allclose(np.array(found), wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("form", ["rows", "columns", "pieces"])
@pytest.mark.parametrize("config", CONFIGS)
def test_it_gives_the_logits_of_the_models_own_code(
    config: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over columns that run out twice, with every way of multiplying; pieces are for one row."""
    fed = prompts(60) if form == "pieces" else prompts(60, 9, 2)
    theirs = MlxLmRows(large(made(CONFIGS[config])), batch_caches_always=True)
    want = decoded(theirs, fed, 70)
    if form != "rows":
        monkeypatch.setattr(short_step, "_SMALL", 0)
    if form == "pieces":
        monkeypatch.setattr(one_row_products, "PIECE", 2000)
        monkeypatch.setattr(one_row_products, "_ENOUGH", 1)
    near(decoded(short(large(made(CONFIGS[config]))), fed, 70), want)


def test_an_mlp_that_is_the_model_s_own_is_read_too() -> None:
    want = decoded(MlxLmRows(large(made(LLAMA)), batch_caches_always=True), prompts(5, 9), 3)
    near(decoded(short(large(made(LLAMA)), quick=False), prompts(5, 9), 3), want)


def test_rotations_are_the_module_s_at_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a table grows, and is filled in parts."""
    monkeypatch.setattr(short_step, "_POSITIONS", 24)
    model = made(SCALED)
    join_projections(model)
    decoder = decoder_of(model)
    turns = short_step._Turns(decoder)
    for columns, positions in ((30, [0, 29]), (200, [199, 3]), (64, [63, 0])):
        offset = mx.array(positions)
        found = turns.at(offset, columns)
        want = np.array(turns_of(decoder.rope, offset, decoder.dim))
        cosines, sines = np.split(want, 2, axis=-1)
        np.testing.assert_allclose(np.array(found.cosines)[:, 0, 0], cosines, atol=1e-6)
        np.testing.assert_allclose(np.array(found.sines)[:, 0, 0], -sines, atol=1e-6)
        np.testing.assert_allclose(np.array(found.sines)[:, 0, 1], sines, atol=1e-6)


@pytest.mark.parametrize(("name", "most"), [("tiny-llama", 74), ("tiny-qwen3", 82)])
def test_a_step_takes_few_operations(
    name: str, most: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """What a step costs a small model: 29 a layer, 4 more with norms of queries and keys."""
    states = short(loading.load(tiny_model(name), "native").model)
    row = RequestId("row")
    states.open(row)
    mx.eval(states.extend(row, mx.array([[3, 4, 5]])))
    mx.eval(states.forward((), None, [row], mx.array([7])).logits)
    logits = states.forward([row], mx.array([8]), (), None).logits
    graph = tmp_path / "step.dot"
    mx.export_to_dot(str(graph), logits)
    assert len(re.findall("label", graph.read_text())) <= most


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tiny-gemma3", "was not compared"),
        ("tiny-llama-4bit", "its embedding is not a plain one"),
        ("tiny-mamba2", "was not compared"),
    ],
)
def test_other_models_keep_their_code_and_it_is_said_why(
    name: str, reason: str, tiny_model: Callable[[str], Path]
) -> None:
    model = loading.load(tiny_model(name), "native").model
    join_projections(model)
    states, why = layouts.choose(model, l1=False, compiled=True)
    assert isinstance(states, SlotRows) and states.capabilities.name == "static slots"
    assert f"{SHORT} do not suit this model" in why and reason in why


def test_a_common_decoder_gets_it(tiny_model: Callable[[str], Path]) -> None:
    model = loading.load(tiny_model("tiny-llama"), "native").model
    join_projections(model)
    states, _ = layouts.choose(model, l1=False, compiled=True)
    assert states.capabilities.name == SHORT and states.capabilities.compiled


def test_other_precisions_and_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(LLAMA)
    model.set_dtype(mx.bfloat16)
    join_projections(model)
    with pytest.raises(UnsuitableModel, match=r"its weights are mlx\.core\.bfloat16"):
        short_step.ShortStep(decoder_of(model))
    monkeypatch.setattr(short_step, "on_cpu", lambda: False)
    with pytest.raises(UnsuitableModel, match="for a CPU"):
        short_step.ShortStep(decoder_of(model))
