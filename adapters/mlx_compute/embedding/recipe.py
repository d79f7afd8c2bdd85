"""What a folder says of how its model embeds: architecture, pooling, sizes.

Read from the files that the sentence-transformers library writes, and from config.json where
they are missing.  What cannot be done as the model was trained is an error, never a near miss.
Knows no MLX: it is asked of every model that is to be served.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct

Pooling = Literal["mean", "cls", "last"]

ENCODERS = ("bert", "roberta", "xlm-roberta", "camembert")
# Encoders, too, but others; mlx-lm generates with none of them.
_OTHER_ENCODERS = ("albert", "deberta", "deberta-v2", "distilbert", "electra", "modernbert",
                   "mpnet", "nomic_bert", "new", "t5", "xlm")  # fmt: skip
# Whose states were trained for a score, not to be compared.
_JUDGING = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_CALLED_SO = re.compile(r"(?<![a-z])embed(ding)?s?(?![a-z])")
_POOLINGS: dict[str, Pooling] = {
    "mean": "mean", "mean_tokens": "mean", "cls": "cls", "cls_token": "cls",
    "last": "last", "lasttoken": "last",
}  # fmt: skip


class Recipe(Struct, frozen=True):
    """How a model embeds.

    `encoder` reads in both directions, else mlx-lm's decoder is used.  `max_tokens` is the
    longest text.  `prefix` stands before every text, `suffix_token` after it unless the
    tokenizer puts it there.  `why` says where that was read.
    """

    encoder: bool
    pooling: Pooling
    normalise: bool
    dimensions: int
    max_tokens: int | None
    prefix: str = ""
    suffix_token: str | None = None
    lower_case: bool = False
    instructed: bool = False
    why: str = ""


def is_embedding_model(folder: Path, name: str) -> bool:
    """Say whether the model in `folder`, called `name`, is there to embed, not to generate.

    Raises ValueError naming a file that cannot be read.
    """
    config = _read(folder / "config.json")
    if (folder / "modules.json").exists() or (folder / "1_Pooling" / "config.json").exists():
        return True
    if config.get("model_type") in (*ENCODERS, *_OTHER_ENCODERS):
        return True
    architectures = config.get("architectures") or ()
    if architectures and not any(a.endswith(_GENERATING) for a in architectures):
        return True
    return _CALLED_SO.search(name.rsplit("/", 1)[-1].lower()) is not None


def read_recipe(folder: Path) -> Recipe:
    """Return how the model in `folder` embeds.

    Raises ValueError naming the file at fault, for what is not understood.
    """
    config = _read(folder / "config.json")
    model_type = str(config.get("model_type"))
    text_config = cast(Mapping[str, Any], config.get("text_config") or config)
    encoder = model_type in ENCODERS
    if model_type in _OTHER_ENCODERS:
        raise ValueError(
            f"{folder / 'config.json'}: no model of type {model_type} can embed here; "
            f"encoders of the types {', '.join(ENCODERS)} can, and mlx-lm's decoders"
        )
    judging = [a for a in config.get("architectures") or () if a.endswith(_JUDGING)]
    if judging and not (folder / "modules.json").exists():
        raise ValueError(f"{folder / 'config.json'}: {judging[0]} judges texts, it embeds none")
    if not encoder and (_sees_all(config) or _sees_all(text_config)):
        raise ValueError(
            f"{folder / 'config.json'}: a {model_type} that reads in both directions cannot be "
            "read so here"
        )
    kinds = _modules(folder)
    pooling, why = _pooling(folder, kinds)
    transformer = _read(folder / "sentence_bert_config.json")
    tokenizer = _read(folder / "tokenizer_config.json")
    # Of each architecture the decoders' own way, and what most encoders were trained with.
    pooling = pooling or ("mean" if encoder else "last")
    return Recipe(
        encoder=encoder,
        pooling=pooling,
        # Without a list of modules nobody says; servers of such models give unit vectors.
        normalise=not kinds or "Normalize" in kinds,
        dimensions=int(text_config["hidden_size"]),
        max_tokens=_max_tokens(transformer, tokenizer, config) if encoder else _of(transformer),
        prefix=_prefix(folder),
        suffix_token=None if encoder or pooling != "last" else _end(model_type, tokenizer),
        lower_case=bool(transformer.get("do_lower_case")),
        instructed=not encoder,
        why=why or "nothing in the folder says, so as most of its kind",
    )


def _sees_all(config: Mapping[str, Any]) -> bool:
    return bool(config.get("use_bidirectional_attention")) or config.get("is_causal") is False


def _modules(folder: Path) -> dict[str, Path]:
    """Return the modules that modules.json lists, by kind: where each has its files."""
    path = folder / "modules.json"
    if not path.exists():
        return {}
    said = cast(list[dict[str, Any]], json.loads(path.read_bytes()))
    kinds = {str(m["type"]).rsplit(".", 1)[-1]: folder / str(m.get("path", "")) for m in said}
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown or len(kinds) < len(said):
        raise ValueError(f"{path}: {', '.join(unknown) or 'a module twice'} is not supported")
    return kinds


def _pooling(folder: Path, kinds: Mapping[str, Path]) -> tuple[Pooling | None, str]:
    path = kinds.get("Pooling", folder / "1_Pooling") / "config.json"
    said = _read(path)
    if not said:
        return None, ""
    modes = {
        key.removeprefix("pooling_mode_")
        for key, value in said.items()
        if key.startswith("pooling_mode_") and value is True
    }
    if isinstance(mode := said.get("pooling_mode"), str):
        modes = {mode}
    pooling = _POOLINGS.get(next(iter(modes), "")) if len(modes) == 1 else None
    if pooling is None:
        named = ", ".join(sorted(modes)) or "none"
        raise ValueError(f"{path}: pooling is {named}; mean, cls or lasttoken can be done")
    return pooling, f"{path.parent.name}/{path.name}"


def _max_tokens(
    transformer: Mapping[str, Any], tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> int:
    """Return the longest text of an encoder: as trained, within its table of positions."""
    positions = int(config["max_position_embeddings"])
    if config["model_type"] != "bert":  # which begin to count after the padding's id
        positions -= int(config.get("pad_token_id") or 0) + 1
    lengths = (transformer.get("max_seq_length"), tokenizer.get("model_max_length"), positions)
    return min(int(length) for length in lengths if isinstance(length, int))


def _of(transformer: Mapping[str, Any]) -> int | None:
    length = transformer.get("max_seq_length")
    return length if isinstance(length, int) else None


def _prefix(folder: Path) -> str:
    """Return the prompt that the model wants before every text, unless told another."""
    said = _read(folder / "config_sentence_transformers.json")
    name, prompts = said.get("default_prompt_name"), said.get("prompts") or {}
    return str(prompts.get(name) or "") if name else ""


def _end(model_type: str, tokenizer: Mapping[str, Any]) -> str | None:
    """Return the token whose state is the vector, which stands after each text."""
    if model_type.startswith("qwen"):
        return "<|endoftext|>"  # Source: the tokenizer and model card of Qwen3-Embedding.
    said = tokenizer.get("eos_token") if tokenizer.get("add_eos_token") else None
    return said["content"] if isinstance(said, dict) else said


def _read(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        said = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast(Mapping[str, Any], said)
