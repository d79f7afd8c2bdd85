"""Opening a model that embeds, beside one that answers or alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mlxbun.composition_root.models import capped

if TYPE_CHECKING:
    from mlxbun.application.model_store import LocalModel
    from mlxbun.application.options import Setting
    from mlxbun.application.service import EmbeddingModel
    from mlxbun.application.settings import Settings


def open_embedding(
    settings: Settings,
    found: LocalModel,
    called: str,
    alias: str,
    context_length: int | None = None,
) -> tuple[EmbeddingModel, int, list[Setting]]:
    """Open the embedding model `found` on the engine's thread.

    Returns its weights' bytes, too, and what was decided.  Raises LoadFailed, naming its folder.
    """
    from mlxbun.application.model_store import LoadFailed

    try:
        return _open_embedding(settings, found, called, alias, context_length)
    except (LoadFailed, MemoryError):
        raise
    except Exception as error:  # loaders raise what they like for a folder that they cannot read
        why = f"{type(error).__name__}: {error}"
        raise LoadFailed(f"the embedding model {found.path} cannot be loaded: {why}") from error


def _open_embedding(
    settings: Settings,
    found: LocalModel,
    called: str,
    alias: str,
    context_length: int | None = None,
) -> tuple[EmbeddingModel, int, list[Setting]]:
    import msgspec

    from mlxbun.adapters.mlx_compute.embedding.opening import open_embedder
    from mlxbun.adapters.mlx_compute.embedding.recipe import read_recipe
    from mlxbun.adapters.tokenizer.folder import open_tokenizer
    from mlxbun.adapters.tokenizer.model_card import read_card
    from mlxbun.application.options import Setting
    from mlxbun.application.service import EmbeddingModel
    from mlxbun.domain.embedding import EmbeddingCard

    folder = Path(found.path)
    recipe, tokenizer = read_recipe(folder), open_tokenizer(folder)
    card = capped(read_card(folder, called), context_length)
    max_tokens = min(card.context_window, recipe.max_tokens or card.context_window)
    opened = open_embedder(folder, recipe, settings.dtype)
    end = tokenizer.token_id(recipe.suffix_token or "")
    ends_itself = end in tokenizer.encode("", add_special=True)[-1:]
    embedding = EmbeddingModel(
        msgspec.structs.replace(card, context_window=max_tokens),
        EmbeddingCard(opened.dimensions, max_tokens, recipe.instructed),
        tokenizer,
        opened.embedder,
        (alias,),
        recipe.prefix,
        () if end is None or ends_itself else (end,),
        recipe.lower_case,
        settings.batch + settings.max_waiting,
    )
    decided = [
        Setting("embedding_folder", found.path, "model", found.weights),
        Setting("embedding_max_tokens", max_tokens, "model", "of one text"),
        *(Setting(n.name, n.value, "machine", n.why) for n in opened.notes),
    ]
    return embedding, opened.num_bytes, decided
