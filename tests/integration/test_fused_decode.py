"""Fused decode steps against the models' own code, with kernels that need no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from decoders import LLAMA, MORE, QWEN2, SCALED, decoded, large, made
from doubles import fused_kernels
from doubles import paged_attention as numpy_kernels
from mlxbun.adapters.mlx_compute import layouts, loading
from mlxbun.adapters.mlx_compute.fused_decode import kernels
from mlxbun.adapters.mlx_compute.fused_decode.decoder import COMPARED, decoder_of
from mlxbun.adapters.mlx_compute.joint_projections import join_projections
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.paged_rows import FUSED, PagedRows
from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel

pytestmark = pytest.mark.usefixtures("eager")


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
            lambda load: made(SCALED),
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
