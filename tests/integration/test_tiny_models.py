from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models import brief, tiny

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

KINDS = {
    "tiny-llama": {"KVCache"},
    "tiny-llama-4bit": {"KVCache"},
    "tiny-qwen3": {"KVCache"},
    "tiny-gemma3": {"KVCache", "RotatingKVCache"},
    "tiny-gpt-oss": {"KVCache", "RotatingKVCache"},
    "tiny-gemma4": {"KVCache", "RotatingKVCache"},
    "tiny-qwen3-moe": {"KVCache"},
    "tiny-qwen3-5": {"KVCache", "ArraysCache"},
    "tiny-mamba2": {"ArraysCache"},
    "tiny-falcon-h1": {"CacheList"},
    "tiny-deepseek-v3": {"KVCache"},
}


@pytest.mark.parametrize("name", tiny.NAMES)
def test_mlx_lm_opens_a_tiny_model_and_its_greedy_text_is_clear(
    name: str, tiny_model: Callable[[str], Path]
) -> None:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    model, tokenizer = load(str(tiny_model(name)))[:2]
    prompt: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What should I do next?"}], add_generation_prompt=True
    )
    assert {type(c).__name__ for c in make_prompt_cache(model)} == KINDS[name]
    tokens, leads = zip(*_greedy(mx, model, make_prompt_cache(model), prompt, 32), strict=True)
    assert len(set(tokens)) > 12, "it repeats itself"
    assert sorted(leads)[3] > 0.01, "near-ties are more than rare"
    changed = [
        tokenizer.encode("x")[0] if i == len(prompt) - 8 else t for i, t in enumerate(prompt)
    ]
    others = _greedy(mx, model, make_prompt_cache(model), changed, 32)
    assert [t for t, _ in others] != list(tokens), "it does not look back"


def test_the_brief_model_says_its_sentence_and_ends(tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx_lm import load
    from mlx_lm.models.cache import make_prompt_cache

    model, tokenizer = load(str(brief.make(tmp_path / brief.NAME)))[:2]
    for asked in ("Hi", "What now? " * 50):
        prompt: list[int] = tokenizer.apply_chat_template(
            [{"role": "user", "content": asked}], add_generation_prompt=True
        )
        tokens, leads = zip(*_greedy(mx, model, make_prompt_cache(model), prompt, 16), strict=True)
        end = tokens.index(tokenizer.eos_token_id)
        assert tokenizer.decode(list(tokens[:end])) == brief.SENTENCE
        assert min(leads[: end + 1]) > brief.SURE / 2, "sampling would say something else"


def _greedy(
    mx: Any, model: Any, cache: Any, prompt: list[int], count: int
) -> Iterator[tuple[int, float]]:
    """Yield `count` greedy tokens, and by how much each led the second best logit."""
    tokens = prompt
    for _ in range(count):
        logits = model(mx.array([tokens]), cache=cache)[0, -1]
        second, best = mx.sort(logits)[-2:].tolist()
        tokens = [int(mx.argmax(logits).item())]
        yield tokens[0], best - second


def test_the_same_command_makes_the_same_bytes(tmp_path: Path) -> None:
    one, two = (tiny.make("tiny-llama", tmp_path / folder) for folder in "ab")
    files = sorted(path.name for path in one.iterdir())
    assert "model.safetensors" in files
    assert files == sorted(path.name for path in two.iterdir())
    for file in files:
        assert (one / file).read_bytes() == (two / file).read_bytes(), file


def test_a_folder_that_is_there_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    assert tiny.make("tiny-llama", folder) == folder
    assert list(folder.iterdir()) == []


def test_nothing_is_left_when_making_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "write_weights", _full_disk)
    with pytest.raises(OSError, match="no space"):
        tiny.make("tiny-llama", tmp_path / "tiny-llama")
    assert list(tmp_path.iterdir()) == []


def _full_disk(*_: object, **__: object) -> None:
    raise OSError("no space")
