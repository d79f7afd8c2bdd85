"""The model layer: what of mlx-lm is imported, and what loading does to weights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from mlxbun.adapters.mlx_compute import loading
from models import tiny

LEAN = """
import resource, sys
before = resource.getrlimit(resource.RLIMIT_NOFILE)
from pathlib import Path
from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache
loaded = loading.load(Path(sys.argv[1]))
caches = mlx_lm_cache().make_prompt_cache(loaded.model)
assert caches, "the model has layers"
heavy = {"torch", "transformers", "huggingface_hub"} & set(sys.modules)
assert not heavy, f"imported {heavy}"
assert resource.getrlimit(resource.RLIMIT_NOFILE) == before, "the limit of open files moved"
from huggingface_hub import snapshot_download
assert snapshot_download.__module__.startswith("huggingface_hub."), "a stand-in was left"
print("lean")
"""


def test_a_model_loads_without_transformers_and_leaves_the_file_limit(
    tiny_model: Callable[[str], Path],
) -> None:
    """The contract with the pinned mlx-lm: entered through the stand-in, it needs no more."""
    done = subprocess.run(
        [sys.executable, "-c", LEAN, str(tiny_model("tiny-qwen3-5"))],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "lean\n", done.stderr


def test_the_hub_s_stand_in_has_its_modules() -> None:
    """Another thread may look for the hub's folder while mlx-lm is imported."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from mlxbun.adapters.mlx_compute import model_layer\n"
            "sys.modules['huggingface_hub'] = model_layer._no_hub()\n"
            "from huggingface_hub.constants import HF_HUB_CACHE\n"
            "assert HF_HUB_CACHE.endswith('hub')\n",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", tiny.NAMES)
def test_a_loaded_model_runs_on_any_thread(name: str, tiny_model: Callable[[str], Path]) -> None:
    """Nothing is left to be computed that only the thread that loaded it could compute."""
    model = loading.load(tiny_model(name), "native").model

    def shape() -> tuple[int, ...]:
        logits = model(mx.array([[3, 4, 5]]))
        mx.eval(logits)
        return tuple(logits.shape)

    with ThreadPoolExecutor(1) as other:
        assert other.submit(shape).result() == (1, 3, 512)
        other.submit(mx.clear_streams).result()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_are_cast_as_asked(dtype: loading.DType, tiny_model: Callable[[str], Path]) -> None:
    loaded = loading.load(tiny_model("tiny-llama"), dtype)
    weights = dict(tree_flatten(loaded.model.parameters())).values()
    assert {str(array.dtype) for array in weights} == {f"mlx.core.{dtype}"}
    assert loaded.num_bytes == sum(array.nbytes for array in weights)


def test_auto_is_float32_on_a_cpu_and_says_why(tiny_model: Callable[[str], Path]) -> None:
    loaded = loading.load(tiny_model("tiny-llama"))
    setting, value, why = loaded.notes[1]
    if loading.on_cpu():
        assert (setting, value) == ("weights", "float32")
        assert "CPU" in why
    else:
        assert (setting, value) == ("weights", "native")


def test_quantised_weights_are_widened_to_what_they_stand_for(
    tiny_model: Callable[[str], Path],
) -> None:
    folder = tiny_model("tiny-llama-4bit")
    wide = dict(tree_flatten(loading.load(folder, "float32").model.parameters()))
    packed = dict(tree_flatten(load_model(folder)[0].parameters()))
    scales = [name for name in packed if name.endswith(".scales")]
    assert scales, "the model is quantised"
    for name in scales:
        stem = name.removesuffix(".scales")
        want = mx.dequantize(
            packed[f"{stem}.weight"],
            packed[name].astype(mx.float32),
            packed[f"{stem}.biases"].astype(mx.float32),
            group_size=32,
            bits=4,
        )
        assert mx.array_equal(wide[f"{stem}.weight"], want)


def test_native_leaves_weights_as_they_are(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("tiny-llama-4bit")
    ours = dict(tree_flatten(loading.load(folder, "native").model.parameters()))
    theirs = dict(tree_flatten(load_model(folder)[0].parameters()))
    assert ours.keys() == theirs.keys()
    assert all(mx.array_equal(ours[name], theirs[name]) for name in ours)


def test_a_folder_without_weights_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FileNotFoundError, match="safetensors"):
        loading.load(tmp_path)
