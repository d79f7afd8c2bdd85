"""BERT and RoBERTa: encoders, which mlx-lm does not have.

Source: Devlin et al., BERT, 2018.  Modules are named as Hugging Face's checkpoints name them, so
weights load as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import gelu, gelu_approx, relu, silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm
from mlx.nn.layers.quantized import quantize

from mlxbun.adapters.mlx_compute.embedding.forwards import Forwards

PART_TOKENS = 512  # of a longer text so many at a time go through a layer
Seen = tuple[mx.array, mx.array]  # keys and values [rows, heads, columns, head's width]

_PREFIXES = ("bert.", "roberta.")
# Heads of the tasks that a checkpoint was trained for, and buffers that are no weights.
_UNUSED = (
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "embeddings.position_ids",
    "embeddings.token_type_ids",
)
_ACTIVATIONS: dict[str, Any] = {
    "gelu": gelu,
    "gelu_new": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "relu": relu,
    "silu": silu,
}


class _Part(Module):
    """A module of MLX, whose own constructor has no types."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]


class Bert(_Part):
    """Reads ids [rows, columns], padded on the right, to states [rows, columns, hidden]."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = _Encoder(config)
        self.forwards = Forwards(self.encoder.layer)

    def __call__(self, ids: mx.array, lengths: mx.array | None = None) -> mx.array:
        """`lengths` [rows] are how many ids of each row are its text's; None: all."""
        mask = None
        if lengths is not None:
            mask = (mx.arange(ids.shape[1]) < lengths[:, None])[:, None, None, :]
        return self.encoder(self.embeddings(ids), mask)


class _Embeddings(_Part):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = Embedding(config["vocab_size"], width)
        self.position_embeddings = Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = Embedding(config.get("type_vocab_size", 2), width)
        self.LayerNorm = LayerNorm(width, eps=config.get("layer_norm_eps", 1e-12))
        # RoBERTa's positions begin after the padding's id.
        pad = config.get("pad_token_id") or 0
        self._first = 0 if config["model_type"] == "bert" else pad + 1

    def __call__(self, ids: mx.array) -> mx.array:
        positions = mx.arange(self._first, self._first + ids.shape[1])
        types = self.token_type_embeddings(mx.zeros((1,), dtype=mx.int32))
        added = self.word_embeddings(ids) + self.position_embeddings(positions) + types
        return _array(self.LayerNorm(added))


class _Encoder(_Part):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.layer = [_Layer(config) for _ in range(config["num_hidden_layers"])]

    def __call__(self, states: mx.array, mask: mx.array | None) -> mx.array:
        for layer in self.layer:
            states = layer(states, mask)
        return states


class _Layer(_Part):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.attention = _Attention(config)
        self.intermediate = _Dense(config["hidden_size"], config["intermediate_size"])
        self.output = _Output(config["intermediate_size"], config)
        self._activation = _ACTIVATIONS[config.get("hidden_act", "gelu")]

    def __call__(self, states: mx.array, mask: mx.array | None) -> mx.array:
        seen = self.attention.self.seen(states)
        if states.shape[1] <= PART_TOKENS:
            return self._part(states, seen, mask)
        begins = range(0, states.shape[1], PART_TOKENS)
        parts = [self._part(states[:, i : i + PART_TOKENS], seen, mask) for i in begins]
        return mx.concatenate(parts, axis=1)

    def _part(self, states: mx.array, seen: Seen, mask: mx.array | None) -> mx.array:
        """Return the next states of some tokens, which see all."""
        states = self.attention(states, seen, mask)
        return self.output(self._activation(self.intermediate.dense(states)), states)


class _Attention(_Part):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.self = _SelfAttention(config)
        self.output = _Output(config["hidden_size"], config)

    def __call__(self, states: mx.array, seen: Seen, mask: mx.array | None) -> mx.array:
        return self.output(self.self(states, seen, mask), states)


class _SelfAttention(_Part):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self._heads = config["num_attention_heads"]
        self._scale = (width // self._heads) ** -0.5
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))

    def seen(self, states: mx.array) -> Seen:
        return self._by_heads(self.key(states)), self._by_heads(self.value(states))

    def __call__(self, states: mx.array, seen: Seen, mask: mx.array | None) -> mx.array:
        keys, values = seen
        queries = self._by_heads(self.query(states))
        mixed = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=self._scale, mask=mask
        )
        return mixed.swapaxes(1, 2).reshape(states.shape)

    def _by_heads(self, made: mx.array) -> mx.array:
        rows, columns, _ = made.shape
        return made.reshape(rows, columns, self._heads, -1).swapaxes(1, 2)


class _Dense(_Part):
    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.dense = Linear(wide, narrow)


class _Output(_Part):
    """A product, then what came in added, then a norm."""

    def __init__(self, wide: int, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.dense = Linear(wide, width)
        self.LayerNorm = LayerNorm(width, eps=config.get("layer_norm_eps", 1e-12))

    def __call__(self, states: mx.array, before: mx.array) -> mx.array:
        return _array(self.LayerNorm(self.dense(states) + before))


def _array(made: Any) -> mx.array:
    """Say what a module of MLX returns, which has no type."""
    array: mx.array = made
    return array


def load_bert(folder: Path, config: dict[str, Any]) -> Bert:
    """Return the encoder in `folder`, its weights not read yet.

    Raises ValueError for what this is no code for, and for weights that do not fit.
    """
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(f"{folder / 'config.json'}: positions are {positions}, not absolute")
    if config.get("hidden_act", "gelu") not in _ACTIVATIONS:
        raise ValueError(f"{folder / 'config.json'}: hidden_act {config['hidden_act']} is unknown")
    model = Bert(config)
    weights: dict[str, mx.array] = {}
    for path in sorted(folder.glob("model*.safetensors")):
        loaded: Any = mx.load(str(path))
        weights |= {_named(name): weight for name, weight in loaded.items()}
    weights = {name: w for name, w in weights.items() if not name.startswith(_UNUSED)}
    if quantization := config.get("quantization"):
        quantize(
            model,
            group_size=quantization["group_size"],
            bits=quantization["bits"],
            class_predicate=lambda path, _: f"{path}.scales" in weights,
        )
    model.load_weights(list(weights.items()))
    model.eval()
    return model


def _named(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    # Checkpoints that came from TensorFlow.
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
