"""Models as they are found and named: the store, and what a server says of a model's card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxbun.adapters.hub.demo import WeightType
    from mlxbun.application.model_store import ModelStore
    from mlxbun.application.settings import Settings
    from mlxbun.domain.sampling import TokenId


def model_store(settings: Settings) -> ModelStore:
    from mlxbun.adapters.hub.store import HubModelStore

    # numpy, which writes the demo's weights, has no bfloat16: loading casts to that.
    demo: WeightType | None = settings.dtype if settings.dtype in ("float32", "float16") else None
    return HubModelStore(Path(settings.cache), demo)


def with_stops(card: Any, stop_ids: set[TokenId]) -> Any:
    import msgspec

    return msgspec.structs.replace(card, stop_ids=card.stop_ids | stop_ids)


def capped(card: Any, context_length: int | None) -> Any:
    import msgspec

    if context_length is None:
        return card
    window = min(card.context_window, context_length)
    return msgspec.structs.replace(card, context_window=window)
