"""Tiny random models, one for each way a model of mlx-lm keeps state.

A folder holds all that `mlx_lm.load` opens.  What a model says is noise, but always the same
noise: the weights come from numpy's PCG64, and the best token mostly leads clearly.

    python tests/models/tiny.py NAME... --out DIR
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512
HIDDEN = 64
SLIDING, FULL = "sliding_attention", "full_attention"

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPECIAL_FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_ADDED = (*SPECIAL, *SPECIAL_FIM, *PLAIN)
TOKEN_IDS = {token: VOCAB_SIZE - len(_ADDED) + i for i, token in enumerate(_ADDED)}

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}
_LLAMA = _COMMON | {
    "model_type": "llama",
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}

CONFIGS: dict[str, dict[str, Any]] = {
    # Full attention: KVCache.
    "tiny-llama": _LLAMA,
    "tiny-llama-4bit": _LLAMA | {"quantization": {"group_size": 32, "bits": 4}},
    "tiny-qwen3": _COMMON | {"model_type": "qwen3"},
    # Two layers of three see 16 tokens: RotatingKVCache beside KVCache.
    "tiny-gemma3": _COMMON
    | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 16,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
    },
    # As above with attention sinks and experts.
    "tiny-gpt-oss": _COMMON
    | {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "sliding_window": 16,
        "layer_types": [SLIDING, FULL] * 2,
        "rope_scaling": None,
    },
    # As gemma3; the last two layers read the keys and values of layers before them.
    "tiny-gemma4": _COMMON
    | {
        "model_type": "gemma4_text",
        "num_hidden_layers": 6,
        "global_head_dim": 32,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "sliding_window": 16,
        "sliding_window_pattern": 3,
        "layer_types": [SLIDING, SLIDING, FULL] * 2,
    },
    # Full attention and experts: KVCache.
    "tiny-qwen3-moe": _COMMON
    | {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    # Three recurrent layers, then one of attention: ArraysCache beside KVCache.
    "tiny-qwen3-5": {
        "model_type": "qwen3_5",
        "text_config": _COMMON
        | {
            "model_type": "qwen3_5_text",
            "num_hidden_layers": 4,
            "full_attention_interval": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [2, 1, 1],
            },
        },
    },
    # State space alone: ArraysCache and nothing else.
    "tiny-mamba2": {
        "model_type": "mamba2",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": False,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": 4,
        "max_position_embeddings": 8192,
    },
    # Both in every layer: CacheList(ArraysCache, KVCache).
    "tiny-falcon-h1": _COMMON
    | {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 128,
        "mamba_d_head": 32,
        "mamba_n_heads": 4,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 32,
    },
    # Latent attention (MLA) and experts: KVCache of latents.
    "tiny-deepseek-v3": _COMMON
    | {
        "model_type": "deepseek_v3",
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
    },
}
NAMES = tuple(CONFIGS)

# What the vocabulary is trained on: prose, code, JSON, and scripts of several bytes a letter.
_TEXT = """\
The harbour was quiet when the first boat came in. Its captain asked the keeper of the light
for the time, and the keeper answered that it was early, and that the others were still at sea.
"How many are there?" she asked. "There were seven of them this morning," said the keeper.
They waited together, and before long the other boats came home, one after another.
What should I do next? Tell me about the town, please. You are a guide; answer in one line.
The user writes a question and the assistant writes an answer. Hello! Thank you, that is all.
def total(prices, rate=0.25):
    result = [price * (1 + rate) for price in prices if price > 0]
    return sum(result)

class Boat:
    def __init__(self, name):
        self.name = name

import sys
for line in sys.stdin:
    print(line.strip(), file=sys.stdout)
{"type": "function", "function": {"name": "find_harbour", "parameters": {"type": "object"}}}
{"name": "find_harbour", "arguments": {"town": "Brest", "limit": 3, "open": true}}
[1, 2, 3, 10, 20, 30, 100, 250, 1999, 2048] -> 3.5 + 0.5 == 4.0; 100% of $12,000
Zwölf Boote fuhren über das Meer. Où sont les bateaux ? Ça va très bien. ¿Dónde está el niño?
港に船が戻った。船长说：谢谢。 Корабль вернулся домой. ⛵🙂
"""


def make(name: str, folder: Path) -> Path:
    """Make the model `name` at `folder`, which appears whole or not at all; keep it if there."""
    if folder.exists():
        return folder
    config = json.loads(json.dumps(CONFIGS[name]))
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        write_tokenizer(aside, config)
        write_weights(aside, config, seed=NAMES.index(name))
        aside.chmod(0o755)
        aside.rename(folder)
    except OSError:
        if not folder.exists():  # else somebody else was faster, with the same bytes
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def write_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _TEXT.splitlines(keepends=True),
        BpeTrainer(
            vocab_size=VOCAB_SIZE - len(_ADDED),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    added = [AddedToken(t, special=t not in PLAIN, normalized=False) for t in _ADDED]
    tokenizer.add_tokens(added)
    assert {t: tokenizer.token_to_id(t) for t in _ADDED} == TOKEN_IDS
    tokenizer.save(str(folder / "tokenizer.json"))
    text_config = config.get("text_config", config)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": text_config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
        },
    )
    _write_json(
        folder / "generation_config.json",
        {"eos_token_id": [TOKEN_IDS["<|im_end|>"], TOKEN_IDS["<|endoftext|>"]]},
    )
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), folder)


def write_weights(
    folder: Path, config: dict[str, Any], seed: int, fixed: Mapping[str, Any] | None = None
) -> None:
    """Write random weights, but for those that are `fixed`, numpy arrays, and the config."""
    import mlx.core as mx
    import numpy as np
    from mlx.utils import tree_flatten, tree_unflatten

    nn: Any = importlib.import_module("mlx.nn")
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(seed)  # a few vectors start from a draw of MLX
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    rng = np.random.Generator(np.random.PCG64(seed))
    weights = {
        name: mx.array(_weight(name, np.array(start.astype(mx.float32)), rng))
        for name, start in sorted(dict(tree_flatten(model.parameters())).items())
    }
    weights |= {name: mx.array(value) for name, value in (fixed or {}).items()}
    model.update(tree_unflatten(list(weights.items())))
    if quantization := config.get("quantization"):
        nn.quantize(model, **quantization)
    mx.save_safetensors(
        str(folder / "model.safetensors"),
        dict(tree_flatten(model.parameters())),
        metadata={"format": "mlx"},
    )
    config |= {"eos_token_id": TOKEN_IDS["<|im_end|>"], "torch_dtype": "float32"}
    _write_json(folder / "config.json", config)


def _weight(name: str, start: Any, rng: Any) -> Any:
    """Return a random array like `start`, scaled so that signals keep their size.

    `start` and the result are float32 numpy arrays.
    """
    noise = rng.standard_normal(start.shape, dtype="float32")
    if name.endswith("dt_bias"):  # small time steps: the state remembers some tens of tokens
        return start - 4.0 + 0.1 * noise
    if start.ndim < 2:  # norms, gates, biases: near what the architecture starts from
        return start + 0.1 * noise
    if "embed_tokens" in name or "embeddings" in name:
        # Tied to the head, a normed state of length 8 gives logits that spread by 4.
        return 0.5 * noise
    gain = 4.0 if "lm_head" in name else 1.5
    fan_in = math.prod(start.shape[1:]) if "conv" in name else start.shape[-1]
    return noise * (gain / math.sqrt(fan_in))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    for name in arguments.names or NAMES:
        sys.stdout.write(f"{make(name, arguments.out / name)}\n")


if __name__ == "__main__":
    main()
