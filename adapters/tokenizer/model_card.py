"""A model folder's own words about the model: its sizes, its ends, its sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from mlxbun.adapters.tokenizer.folder import read_object, token_text
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.sampling_policy import SamplingRequest, check_range
from mlxbun.domain.text import ModelCard

UNSTATED_CONTEXT = 131_072  # for models that nothing bounds, such as state-space ones
_CONTEXT_KEYS = ("max_position_embeddings", "max_sequence_length", "max_seq_len", "seq_length",
                 "n_positions", "n_ctx")  # fmt: skip
_NO_LIMIT = 10**9  # transformers writes 10**30 for a length that nobody knows
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class _Token(msgspec.Struct):
    id: int
    content: str


class _Vocabulary(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = msgspec.field(default_factory=dict[str, int])


class _AddedTokens(msgspec.Struct):
    """As much of a tokenizer.json as an end token needs; the rest is skipped."""

    added_tokens: list[_Token] = msgspec.field(default_factory=list[_Token])


class _Words(_AddedTokens):
    model: _Vocabulary = msgspec.field(default_factory=_Vocabulary)


def read_card(folder: Path, model_id: str) -> ModelCard:
    """Return what `folder` says of its model.  Raises ValueError naming the file at fault.

    A vocabulary size that config.json leaves out is that of the tokenizer, which the logits
    are at least as wide as.
    """
    config = read_object(folder / "config.json")
    if not config:
        raise ValueError(f"{folder / 'config.json'} is missing: this is no model folder")
    text_config = cast(dict[str, Any], config.get("text_config") or {})
    tokenizer_config = read_object(folder / "tokenizer_config.json")
    generation = read_object(folder / "generation_config.json")
    stop_ids = {
        *_ids(generation.get("eos_token_id")),
        *_ids(config.get("eos_token_id")),
        *_ids(text_config.get("eos_token_id")),
        *_end_token(folder, token_text(tokenizer_config.get("eos_token"))),
    }
    vocab_size = text_config.get("vocab_size", config.get("vocab_size"))
    return ModelCard(
        id=model_id,
        model_type=str(config.get("model_type", "unknown")),
        context_window=_context_window(text_config, config, tokenizer_config),
        vocab_size=vocab_size if isinstance(vocab_size, int) else _num_words(folder),
        stop_ids=frozenset(stop_ids),
        created=int((folder / "config.json").stat().st_mtime),
        defaults=_defaults(generation, folder / "generation_config.json"),
    )


def _context_window(*configs: Mapping[str, Any]) -> int:
    for config in configs:
        for key in _CONTEXT_KEYS:
            if isinstance(length := config.get(key), int) and length > 0:
                return max(length, _stretched(config))
    length = configs[-1].get("model_max_length")
    return length if isinstance(length, int) and 0 < length < _NO_LIMIT else UNSTATED_CONTEXT


def _stretched(config: Mapping[str, Any]) -> int:
    """Return the window that YaRN makes of the one the model was first trained with."""
    scaling: Any = config.get("rope_scaling") or config.get("rope_parameters")
    match scaling:
        case {"factor": int() | float() as factor, "original_max_position_embeddings": int(length)}:
            yarn = "yarn" in (scaling.get("type"), scaling.get("rope_type"))
            return int(factor * length) if yarn else 0
        case _:
            return 0


def _ids(said: object) -> list[TokenId]:
    items = cast(list[object], said) if isinstance(said, list) else [said]
    return [TokenId(item) for item in items if isinstance(item, int)]


def _end_token(folder: Path, text: str | None) -> list[TokenId]:
    """Return the id of token `text`, if tokenizer.json has it."""
    path = folder / "tokenizer.json"
    if text is None or not path.exists():
        return []
    file = path.read_bytes()
    added = msgspec.json.decode(file, type=_AddedTokens).added_tokens
    found = next((token.id for token in added if token.content == text), None)
    if found is None:
        words = msgspec.json.decode(file, type=_Words).model.vocab
        found = words.get(text) if isinstance(words, dict) else None
    return [] if found is None else [TokenId(found)]


def _num_words(folder: Path) -> int:
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{folder / 'config.json'} says no vocab_size")
    words = msgspec.json.decode(path.read_bytes(), type=_Words)
    last = max((token.id for token in words.added_tokens), default=-1)
    vocab = words.model.vocab
    numbers = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
    return 1 + max(last, max(numbers, default=-1))


def _defaults(generation: Mapping[str, Any], path: Path) -> SamplingRequest:
    said = {key: generation[key] for key in _DEFAULTS if generation.get(key) is not None}
    for key, value in said.items():
        try:
            check_range(key, value)
        except Refused as refused:
            raise ValueError(f"{path}: {refused}") from refused
    return SamplingRequest(**said)
