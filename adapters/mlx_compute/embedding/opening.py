"""Opening an embedding model: its weights, in the precision that runs well here, and a trial.

Called on the engine's thread, which owns everything that comes out of here.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from msgspec import Struct

from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.embedding.batches import MlxEmbedder
from mlxbun.adapters.mlx_compute.embedding.bert import load_bert
from mlxbun.adapters.mlx_compute.embedding.decoder import Decoder, load_decoder
from mlxbun.adapters.mlx_compute.embedding.recipe import Recipe
from mlxbun.adapters.mlx_compute.opening import Note, settle_device
from mlxbun.domain.sampling import TokenId


class OpenedEmbedder(Struct, frozen=True):
    """`dimensions` are those of the vectors that came out of a trial, `num_bytes` the weights'."""

    embedder: MlxEmbedder
    dimensions: int
    num_bytes: int
    notes: tuple[Note, ...]


def open_embedder(folder: Path, recipe: Recipe, dtype: loading.DType) -> OpenedEmbedder:
    """Open the model in `folder`.  Raises what its loader raises for one that it cannot load."""
    started = time.monotonic()
    settle_device()
    if recipe.encoder:
        config = json.loads((folder / "config.json").read_bytes())
        loaded = loading.settled(load_bert(folder, config), dtype, exact=False, config=config)
        reader = loaded.model
    else:
        model, config = load_decoder(folder)
        loaded = loading.settled(model, dtype, exact=False, config=config)
        reader = Decoder(loaded.model)
    embedder = MlxEmbedder(reader, recipe.pooling, normalise=recipe.normalise)
    _, complete = embedder.begin([[TokenId(0)]]).advance(1)
    dimensions = len(complete[0][1])
    weights = next((note for note in loaded.notes if note[0] == "weights"), ("", "", ""))
    length = "scaled to length 1" if recipe.normalise else "as they come"
    notes = (
        Note("embedding_pooling", recipe.pooling, f"{recipe.why}; {length}"),
        Note("embedding_dimensions", str(dimensions), "of a vector"),
        Note("embedding_weights", weights[1], weights[2]),
        Note("embedding_weights_bytes", str(loaded.num_bytes), "in memory"),
        Note("embedding_load_seconds", f"{time.monotonic() - started:.2f}", "and a trial"),
    )
    return OpenedEmbedder(embedder, dimensions, loaded.num_bytes, notes)
