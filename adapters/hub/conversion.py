"""Turns a GGUF file of a Llama into a folder that MLX's model loaders open.

The folder has Hugging Face's file and tensor names, dequantised weights, and the tokenizer.
Without importing mlx, so that a process that will fork may do it.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbun.adapters.hub.demo import WeightType
from mlxbun.adapters.hub.gguf_file import GgufError, GgufFile
from mlxbun.application.model_store import Progress

_CONTROL = 3  # of tokenizer.ggml.token_type: never part of ordinary text
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path, dtype: WeightType, progress: Progress) -> None:
    """Write the model in the GGUF file `source` into `folder`, which must exist and be empty.

    Raises GgufError when the file is not a Llama with a byte-level tokenizer of a known kind.
    """
    save_file: Any = importlib.import_module("safetensors.numpy").save_file
    gguf = GgufFile(source)
    config = _config(gguf, dtype)
    weights: dict[str, NDArray[Any]] = {}
    for done, (name, tensor) in enumerate(gguf.tensors.items(), 1):
        floats = _rows_as_in_hugging_face(name, tensor.floats(), config)
        weights[_hugging_face_name(name)] = np.ascontiguousarray(floats.astype(dtype))
        progress("converting tensors", done, len(gguf.tensors))
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    _write_json(folder / "config.json", config)
    special = ("bos_token_id", "eos_token_id", "pad_token_id")
    _write_json(folder / "generation_config.json", {name: config[name] for name in special})
    _write_tokenizer(gguf, folder)


def _config(gguf: GgufFile, dtype: WeightType) -> dict[str, Any]:
    architecture = gguf["general.architecture"]
    if architecture != "llama":
        raise GgufError(f"the architecture {architecture} cannot be converted, only llama")
    heads, hidden = gguf["llama.attention.head_count"], gguf["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": gguf["llama.feed_forward_length"],
        "num_hidden_layers": gguf["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": gguf["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": gguf["llama.context_length"],
        # Stored as float32; the shortest decimal for it is what the model's authors wrote.
        "rms_norm_eps": float(str(np.float32(gguf["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": gguf["llama.rope.freq_base"],
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "bos_token_id": gguf["tokenizer.ggml.bos_token_id"],
        "eos_token_id": gguf["tokenizer.ggml.eos_token_id"],
        "pad_token_id": gguf["tokenizer.ggml.padding_token_id"],
        "torch_dtype": dtype,
    }


def _hugging_face_name(name: str) -> str:
    """Return Hugging Face's name of tensor `name`: blk.3.attn_q.weight is a q_proj."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    known = _LAYER.get(layer[2]) if layer else _OUTER.get(name.removesuffix(".weight"))
    if known is None:
        raise GgufError(f"the tensor {name} is not one of a Llama")
    return f"model.layers.{layer[1]}.{known}.weight" if layer else f"{known}.weight"


def _rows_as_in_hugging_face(
    name: str, weights: NDArray[np.float32], config: Mapping[str, Any]
) -> NDArray[np.float32]:
    """Undo llama.cpp's order of the rows of q and k, which makes rotary pairs neighbours.

    In: [heads, head_dim / 2, 2, hidden]; Hugging Face: [heads, 2, head_dim / 2, hidden].
    """
    if name.endswith("attn_q.weight"):
        heads = config["num_attention_heads"]
    elif name.endswith("attn_k.weight"):
        heads = config["num_key_value_heads"]
    else:
        return weights
    pairs = weights.reshape(heads, -1, 2, weights.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = (gguf["tokenizer.ggml.model"], gguf["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise GgufError(f"the tokenizer {'/'.join(kind)} cannot be converted, only gpt2/smollm")
    tokens: list[str] = gguf["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in gguf["tokenizer.ggml.merges"]]
    vocabulary = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, gguf["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, k in kinds if k == _CONTROL]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": gguf["llama.context_length"],
            "clean_up_tokenization_spaces": False,
            **{
                name: tokens[gguf[f"tokenizer.ggml.{key}_token_id"]]
                for name, key in (special | {"pad_token": "padding"}).items()
            },
            "chat_template": gguf["tokenizer.chat_template"],
        },
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
