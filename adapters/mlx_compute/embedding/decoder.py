"""mlx-lm's decoders without their heads: what is before the logits is what embeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.embedding.forwards import Forwards
from mlxbun.adapters.mlx_compute.model_layer import mlx_lm_cache, mlx_lm_utils


class Decoder:
    """Reads ids [rows, columns], padded on the right, to states [rows, columns, hidden].

    Attention is causal, so no text sees what pads it.  A long one is read bit by bit.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._body = _body(model)
        self.forwards = Forwards(getattr(self._body, "layers", ()))

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        states: mx.array = self._body(ids, cache=cache)
        return states

    def fresh_cache(self) -> Any:
        return mlx_lm_cache().make_prompt_cache(self.model)


def load_decoder(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Return mlx-lm's model without its head, its weights not read yet, and its config.

    Raises what mlx-lm raises for a folder that it cannot read.
    """
    utils = mlx_lm_utils()

    def classes(config: dict[str, Any]) -> tuple[type, type]:
        model_class, arguments = utils._get_classes(config)
        return _headless(model_class), arguments

    # Tied, it has no head of its own to be loaded.
    tied = {"tie_word_embeddings": True}
    loaded: tuple[Any, dict[str, Any]] = utils.load_model(
        folder, lazy=True, model_config=tied, get_model_classes=classes
    )
    return loaded


def _headless(model_class: Any) -> type:
    class Headless(model_class):  # type: ignore[misc]
        def sanitize(self, weights: dict[str, Any]) -> dict[str, Any]:
            if not any(name.startswith(("model.", "language_model.")) for name in weights):
                # A checkpoint of the body alone, as Qwen3-Embedding's.
                weights = {f"model.{name}": weight for name, weight in weights.items()}
            weights = {n: w for n, w in weights.items() if not n.startswith("lm_head.")}
            made: Any = getattr(super(), "sanitize", lambda kept: kept)(weights)
            return dict(made)

    return Headless


def _body(model: Any) -> Any:
    for holder in (model, getattr(model, "language_model", None)):
        body = getattr(holder, "model", None)
        if callable(body):
            return body
    raise ValueError(f"{type(model).__module__} has no body without its head that could embed")
