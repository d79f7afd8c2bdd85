"""Fused decode steps against the models' own code, with kernels that need no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from doubles import fused_kernels
from doubles import paged_attention as numpy_kernels
from mlxbun.adapters.mlx_compute import layouts, loading
from mlxbun.adapters.mlx_compute.fused_decode import kernels
from mlxbun.adapters.mlx_compute.fused_decode.decoder import COMPARED, decoder_of
from mlxbun.adapters.mlx_compute.joint_projections import join_projections
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils
from mlxbun.adapters.mlx_compute.paged_rows import FUSED, PagedRows
from mlxbun.adapters.mlx_compute.row_states import RowStates, UnsuitableModel
from mlxbun.domain.sampling import RequestId

pytestmark = pytest.mark.usefixtures("eager")
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
# What some files ask for, at values that change nothing.
MORE = {
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "attention_out_bias": False,
    "bias": False,
    "qkv_bias": False,
    "num_nextn_predict_layers": 0,
}
LLAMA = QWEN2 | {"model_type": "llama", "head_dim": 16, "tie_word_embeddings": False}


@pytest.fixture
def eager() -> Iterator[None]:
    """The doubles compute at once, which a traced function cannot."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture
def load(tiny_model: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return a function from a tiny model's name to a model that may be changed."""
    return lambda name: loading.load(tiny_model(name), "native").model


def made(config: dict[str, Any]) -> Any:
    classes = mlx_lm_utils()._get_classes(config)
    mx.random.seed(3)
    model = classes[0](classes[1].from_dict(config))
    mx.eval(model.parameters())
    return model


def decoded(states: RowStates, prompts: list[list[int]], num_steps: int) -> mx.array:
    """Prefill rows, then feed each its number; return the logits of every step."""
    rows = [RequestId(f"row-{i}") for i in range(len(prompts))]
    for row, prompt in zip(rows, prompts, strict=True):
        states.open(row)
        mx.eval(states.extend(row, mx.array([prompt])))
    fed = mx.array([5 + i for i in range(len(rows))])
    found = [states.forward((), None, rows, fed).logits]
    for _ in range(num_steps - 1):
        slots = len(states.batch)
        mx.eval(found[-1])
        found.append(states.forward(rows, mx.array([7] * slots), (), None).logits)
    where = mx.array([states.batch.index(row) for row in rows])
    return mx.stack([logits[where] for logits in found])


def fused(model: Any) -> PagedRows:
    join_projections(model)
    return PagedRows(model, numpy_kernels, fused_kernels)


@pytest.mark.parametrize("num_rows", [1, 3, fused_kernels.MOST + 2])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda load: load("tiny-llama"), id="tiny-llama"),
        pytest.param(lambda load: load("tiny-qwen3"), id="tiny-qwen3"),
        pytest.param(lambda load: made(QWEN2), id="biased"),
        pytest.param(lambda load: made(LLAMA), id="untied head"),
        pytest.param(
            lambda load: made(
                LLAMA
                | {
                    "max_position_embeddings": 64,
                    "rope_scaling": {
                        "rope_type": "llama3",
                        "factor": 8.0,
                        "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 16,
                    },
                }
            ),
            id="scaled rotations",
        ),
    ],
)
def test_a_fused_step_gives_the_logits_of_the_models_own_code(
    load: Callable[[str], Any], make: Callable[[Any], Any], num_rows: int
) -> None:
    prompts = [[3 + (i * n) % 60 for i in range(9 * n)] for n in range(1, num_rows + 1)]
    want = decoded(MlxLmRows(make(load), batch_caches_always=True), prompts, 3)
    found = decoded(fused(make(load)), prompts, 3)
    np.testing.assert_allclose(np.array(found), np.array(want), atol=2e-4)


@pytest.mark.parametrize("file", COMPARED)
def test_files_of_mlx_lm_that_count_compute_what_their_modules_show(file: str) -> None:
    """In float32, with weights so large that a cap or a multiplier would show."""
    config = LLAMA | {"model_type": file, "num_hidden_layers": 3} | MORE
    prompts = [[3, 4, 5, 6, 7], [9, 8, 7]]
    want = decoded(MlxLmRows(large(made(config)), batch_caches_always=True), prompts, 3)
    found = decoded(fused(large(made(config))), prompts, 3)
    near = 1e-5 * float(np.abs(np.array(want)).max())
    np.testing.assert_allclose(np.array(found), np.array(want), atol=near)


def large(model: Any) -> Any:
    model.update(tree_map(lambda a: 3 * a if a.ndim > 1 else a, model.parameters()))
    return model


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (LLAMA | {"mlp_bias": True}, "other than queries', keys' and values' have a bias"),
        (LLAMA | {"rope_traditional": True}, "rotate in ways of their own"),
        (LLAMA | {"model_type": "gemma", "tie_word_embeddings": True}, "gemma was not compared"),
        (LLAMA | {"model_type": "smollm3", "num_hidden_layers": 4}, "rotate in ways of their own"),
    ],
    ids=["biased MLP", "pairs of neighbours", "another file", "a layer without positions"],
)
def test_a_model_of_another_make_says_what_it_has(config: dict[str, Any], why: str) -> None:
    model = made(config)
    join_projections(model)
    with pytest.raises(UnsuitableModel, match=why):
        decoder_of(model)


def test_a_quantised_model_is_not_fused(load: Callable[[str], Any]) -> None:
    model = load("tiny-llama-4bit")
    join_projections(model)
    with pytest.raises(UnsuitableModel):
        decoder_of(model)


def test_a_model_whose_activation_is_not_silu_is_not_fused() -> None:
    model = made(LLAMA)
    join_projections(model)
    for layer in model.layers:
        layer.mlp.__class__ = type(
            "Relu",
            (type(layer.mlp),),
            {"__call__": lambda self, x: self.down_proj(mx.maximum(self.gate_proj(x), 0))},
        )
    with pytest.raises(UnsuitableModel, match="SiLU"):
        decoder_of(model)


def test_kernels_say_why_they_cannot_serve_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def why(**config: Any) -> str | None:
        model = made(LLAMA | {"head_dim": 64} | config)
        model.set_dtype(mx.bfloat16)
        if config.get("wide_norm"):
            model.model.norm.weight = model.model.norm.weight.astype(mx.float32)
        join_projections(model)
        return kernels.unsupported(decoder_of(model))

    monkeypatch.setattr(kernels, "on_cuda", lambda: False)
    assert why() == "its kernels are for CUDA"
    monkeypatch.setattr(kernels, "on_cuda", lambda: True)
    assert why() is None
    assert why(wide_norm=True) == "it has weights of mlx.core.float32, and kernels are for bfloat16"
    assert why(head_dim=16) == "heads of 16 elements"
    assert why(hidden_size=80) == "hidden states of 80 elements do not divide"


@pytest.mark.parametrize(
    ("num_rows", "shape", "ours"),
    [
        (16, (12288, 4096), True),
        (32, (1024, 4096), True),
        (32, (12288, 4096), False),  # more than 24 MiB
        (64, (1024, 4096), True),
        (64, (12288, 4096), False),
        (1, (32003, 4096), False),  # as some vocabularies are
        (65, (1024, 4096), False),
    ],
)
def test_products_that_do_not_pay_or_divide_are_mlx_s(
    num_rows: int, shape: tuple[int, int], ours: bool
) -> None:
    assert kernels.pays(num_rows, mx.zeros(shape, mx.bfloat16)) is ours


def test_warming_runs_every_kind_of_step_and_holds_nothing() -> None:
    states = fused(made(LLAMA))
    before = states.num_traces
    states.warm()
    assert states.num_bytes() == 0
    assert states.num_traces == before  # it is no trace of a batch's shape


@pytest.mark.parametrize(
    ("name", "layout", "why"),
    [
        ("tiny-llama", FUSED, "it keeps KVCache"),
        ("tiny-qwen3-moe", "pages", "fused pages do not suit this model: mlx-lm's qwen3_moe"),
    ],
)
def test_a_gpu_gets_fused_steps_where_the_model_allows_and_pages_else(
    name: str, layout: str, why: str, load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "on_cpu", lambda: False)
    plain = partial(PagedRows, kernels=numpy_kernels)
    tried = ((FUSED, partial(plain, fused=fused_kernels), (9,)), ("pages", plain, (9,)))
    monkeypatch.setattr(layouts, "_LAYOUTS", tried)
    model = load(name)
    join_projections(model)
    states, said = layouts.choose(model, l1=False, compiled=True)
    assert states.capabilities.name == layout
    assert why in said
