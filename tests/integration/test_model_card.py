from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxbun.adapters.tokenizer.model_card import UNSTATED_CONTEXT, read_card
from mlxbun.domain.sampling_policy import SamplingRequest
from models.tiny import NAMES, TOKEN_IDS, VOCAB_SIZE

ENDS = frozenset({TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]})
ADDED = [{"id": 7, "content": "</s>", "special": True}]
TOKENIZER = {"added_tokens": ADDED, "model": {"type": "BPE", "vocab": {"a": 0, "b": 5}}}


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a model folder from the contents of its files."""

    def write(**files: object) -> Path:
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return write


@pytest.mark.parametrize("name", NAMES)
def test_the_card_of_a_tiny_model(name: str, tiny_model: Callable[[str], Path]) -> None:
    card = read_card(tiny_model(name), "mine")
    config = json.loads((tiny_model(name) / "config.json").read_text())
    assert (card.id, card.model_type) == ("mine", config["model_type"])
    assert card.context_window == (131072 if "llama" in name else 8192)
    assert (card.vocab_size, card.stop_ids) == (VOCAB_SIZE, ENDS)
    assert card.defaults == SamplingRequest()


def test_every_file_may_name_an_end(folder: Callable[..., Path]) -> None:
    model = folder(
        config={"eos_token_id": 1, "vocab_size": 9, "text_config": {"eos_token_id": [2, 3]}},
        generation_config={"eos_token_id": [4]},
        tokenizer_config={"eos_token": {"content": "</s>"}},
        tokenizer=TOKENIZER,
    )
    assert read_card(model, "m").stop_ids == {1, 2, 3, 4, 7}


def test_an_end_may_be_a_plain_word_of_the_vocabulary(folder: Callable[..., Path]) -> None:
    model = folder(
        config={"vocab_size": 9}, tokenizer_config={"eos_token": "b"}, tokenizer=TOKENIZER
    )
    assert read_card(model, "m").stop_ids == {5}


def test_a_model_may_name_no_end(folder: Callable[..., Path]) -> None:
    model = folder(config={"vocab_size": 9, "eos_token_id": None})
    assert read_card(model, "m").stop_ids == frozenset()


@pytest.mark.parametrize(
    "config, tokenizer_config, window",
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 512}, 4096),
        ({"text_config": {"max_position_embeddings": 64}, "n_ctx": 32}, {}, 64),
        ({"n_positions": 1024}, {}, 1024),
        ({}, {"model_max_length": 512}, 512),
        ({}, {"model_max_length": 10**30}, UNSTATED_CONTEXT),
        ({}, {}, UNSTATED_CONTEXT),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            {},
            131072,
        ),
        (
            {
                "max_position_embeddings": 8192,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 32.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            {},
            8192,
        ),
    ],
)
def test_the_context_window_has_many_names(
    folder: Callable[..., Path],
    config: dict[str, Any],
    tokenizer_config: dict[str, Any],
    window: int,
) -> None:
    model = folder(config={"vocab_size": 9} | config, tokenizer_config=tokenizer_config)
    assert read_card(model, "m").context_window == window


def test_an_unstated_vocabulary_is_the_tokenizers(folder: Callable[..., Path]) -> None:
    model = folder(config={"text_config": {"model_type": "x"}}, tokenizer=TOKENIZER)
    assert read_card(model, "m").vocab_size == 8
    unigram = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5]]}}
    assert read_card(folder(tokenizer=unigram), "m").vocab_size == 2


def test_sampling_defaults_are_those_of_generation_config(folder: Callable[..., Path]) -> None:
    said = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
    model = folder(
        config={"vocab_size": 9}, generation_config=said | {"do_sample": True, "max_length": 5}
    )
    assert read_card(model, "m").defaults == SamplingRequest(**said)  # type: ignore[arg-type]
    folder(generation_config={"temperature": None, "top_k": 20})
    assert read_card(model, "m").defaults == SamplingRequest(top_k=20)


@pytest.mark.parametrize("value", [-1.0, "warm", float("nan")])
def test_a_default_that_no_request_could_ask_for_is_named(
    folder: Callable[..., Path], value: object
) -> None:
    model = folder(config={"vocab_size": 9}, generation_config={"temperature": value})
    with pytest.raises(ValueError, match=r"generation_config.json: temperature must be"):
        read_card(model, "m")


def test_a_folder_without_a_model_is_named(folder: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"config.json is missing"):
        read_card(folder(), "m")
    with pytest.raises(ValueError, match="says no vocab_size"):
        read_card(folder(config={"model_type": "x"}), "m")
