"""Small models of the common kind of decoder, and running them by a row layout."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_map

from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_utils
from mlxbun.adapters.mlx_compute.row_states import RowStates
from mlxbun.domain.sampling import RequestId

QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
# What some files ask for, at values that change nothing.
MORE = {
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "attention_out_bias": False,
    "bias": False,
    "qkv_bias": False,
    "num_nextn_predict_layers": 0,
}
LLAMA = QWEN2 | {"model_type": "llama", "head_dim": 16, "tie_word_embeddings": False}
SCALED = LLAMA | {
    "max_position_embeddings": 64,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


def made(config: dict[str, Any]) -> Any:
    classes = mlx_lm_utils()._get_classes(config)
    mx.random.seed(3)
    model = classes[0](classes[1].from_dict(config))
    mx.eval(model.parameters())
    return model


def decoded(states: RowStates, prompts: list[list[int]], num_steps: int) -> mx.array:
    """Prefill rows, then feed each its number; return the logits of every step."""
    rows = [RequestId(f"row-{i}") for i in range(len(prompts))]
    for row, prompt in zip(rows, prompts, strict=True):
        states.open(row)
        mx.eval(states.extend(row, mx.array([prompt])))
    fed = mx.array([5 + i for i in range(len(rows))])
    found = [states.forward((), None, rows, fed).logits]
    for _ in range(num_steps - 1):
        slots = len(states.batch)
        mx.eval(found[-1])
        found.append(states.forward(rows, mx.array([7] * slots), (), None).logits)
    where = mx.array([states.batch.index(row) for row in rows])
    return mx.stack([logits[where] for logits in found])


def large(model: Any) -> Any:
    model.update(tree_map(lambda a: 3 * a if a.ndim > 1 else a, model.parameters()))
    return model
