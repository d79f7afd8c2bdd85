"""A random model as a folder that a server can open: weights, config.json, a made-up tokenizer.

Every token is a word of its own, so that each one drawn shows at once as text; a prompt's ASCII
characters are a token each.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench import random_models
from mlxbun.adapters.bench.random_models import Shape

END = "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_SHARD_BYTES = 4 << 30  # MLX copies what it writes to host memory


def write_folder(shape: Shape, folder: Path) -> None:
    """Write a model of `shape` to `folder`.  Calls MLX on this thread."""
    mx: Any = importlib.import_module("mlx.core")
    trees: Any = importlib.import_module("mlx.utils")
    folder.mkdir(parents=True)
    config = random_models.config_of(shape) | {"eos_token_id": shape.vocab_size - 1}
    if shape.bits:
        config["quantization"] = {"group_size": random_models.GROUP_SIZE, "bits": shape.bits}
    (folder / "config.json").write_text(json.dumps(config))
    _write_tokenizer(folder, shape.vocab_size)
    shard: dict[str, Any] = {}
    shards: list[dict[str, Any]] = [shard]
    for name, weight in trees.tree_flatten(random_models.make(shape).parameters()):
        if shard and sum(w.nbytes for w in shard.values()) + weight.nbytes > _SHARD_BYTES:
            shard = {}
            shards.append(shard)
        shard[name] = weight
    for number, some in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        mx.save_safetensors(str(folder / name), some, metadata={"format": "mlx"})


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"\u0120w{number}" for number in range(vocab_size - len(alphabet) - 1)]
    vocab = {token: at for at, token in enumerate([*alphabet, *words])}
    tokenizer: Any = Tokenizer(BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    said["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
