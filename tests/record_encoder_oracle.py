"""Records what Hugging Face's encoders (in JAX) make of ids: the oracle of test_embedders.py.

    pip install "transformers==4.49.0" "flax<0.11" "jax<0.7" safetensors tokenizers
    python tests/record_encoder_oracle.py FOLDER_OF_MINILM > tests/integration/encoder_oracle.json

transformers 5, which comes with mlx-lm, has no models without torch; so this runs elsewhere, and
its numbers are kept.
"""

from __future__ import annotations

import base64
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from embedding_folders import CONFIGS, MINILM, encoder_weights

TEXTS = (
    "This is an example sentence",
    "Each sentence is converted",
    "Zwölf Boote fuhren über das Meer.",
    "def total(prices, rate=0.25): return sum(p * (1 + rate) for p in prices)",
    "?",
    "The harbour was quiet when the first boat came in. " * 20,
)
IDS = ([5], [7, 8, 9, 10, 11], [2, *range(40, 80), 3], [299, 6, 6, 4])


def states(config: dict[str, Any], weights: dict[str, Any], ids: list[int]) -> Any:
    """Return Hugging Face's states of one text [tokens, hidden]."""
    transformers: Any = importlib.import_module("transformers")
    numpy: Any = importlib.import_module("jax.numpy")
    kind = "Bert" if config["model_type"] == "bert" else "XLMRoberta"
    made = getattr(transformers, f"{kind}Config")(**config)
    model = getattr(transformers, f"Flax{kind}Model")(made, add_pooling_layer=False)
    parameters: dict[str, Any] = {}
    for name, weight in weights.items():
        *path, last = name.split(".")
        if "embeddings" in path[-1]:
            last = "embedding"
        elif last == "weight":
            last = "scale" if path[-1] == "LayerNorm" else "kernel"
        inner = parameters
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = numpy.asarray(weight.T if last == "kernel" else weight)
    row = numpy.asarray([ids])
    return np.asarray(model(row, numpy.ones_like(row), params=parameters)[0])[0]


def packed(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


def main() -> None:
    from tokenizers import Tokenizer

    folder = Path(sys.argv[1])
    said: dict[str, list[dict[str, Any]]] = {}
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    weights = {n: w for n, w in weights.items() if "pooler" not in n and "position_ids" not in n}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    said[MINILM] = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        mean = states(config, weights, ids).mean(axis=0)
        vector = packed(mean / np.linalg.norm(mean))
        said[MINILM].append({"text": text, "ids": ids, "mean": vector})
    for name, config in CONFIGS.items():
        said[name] = []
        for ids in IDS:
            found = states(config, encoder_weights(config), ids)
            said[name].append(
                {"ids": ids, "mean": packed(found.mean(axis=0)), "cls": packed(found[0])}
            )
    lines = [
        f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(case)}" for case in cases) + "\n ]"
        for name, cases in said.items()
    ]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
