"""GET /v1/models and /v1/models/{id}: the served model, in the words of several protocols.

One shape serves OpenAI's clients, Anthropic's (type, display_name, created_at), and agents
that look for the size of the window under any of its names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.application.prepare import Preparer
from mlxbun.domain.text import ModelCard

PREFIX = "/v1/models/"


class Meta(Struct, frozen=True):
    n_ctx: int
    n_vocab: int


class Capabilities(Struct, frozen=True):
    """What the server does with this model."""

    chat_completions: bool = True
    text_completions: bool = True
    anthropic_messages: bool = True
    streaming: bool = True
    logprobs: bool = True
    tools: bool = False
    structured_output: bool = True
    embeddings: bool = False
    vision: bool = False
    audio: bool = False


class GenDefaults(Struct, frozen=True):
    temperature: float | None
    top_p: float | None
    top_k: int | None


class ModelEntry(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mlxbun"
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    model_type: str
    context_window: int
    context_length: int
    max_model_len: int
    max_input_tokens: int
    max_tokens: int
    meta: Meta
    capabilities: Capabilities = Capabilities()
    gen_defaults: GenDefaults


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelEntry]
    has_more: bool = False
    first_id: str
    last_id: str


class Models:
    def __init__(self, preparer: Preparer) -> None:
        self._preparer = preparer

    async def list(self, request: Request) -> Answer:
        card = (await self._preparer.model()).card
        return json_answer(ModelList(data=[entry(card)], first_id=card.id, last_id=card.id))

    async def retrieve(self, request: Request) -> Answer:
        """Answer for the id that the path ends in, slashes and all."""
        model = await self._preparer.model(request.head.path.removeprefix(PREFIX))
        return json_answer(entry(model.card))


def entry(card: ModelCard) -> ModelEntry:
    window = card.context_window
    defaults = card.defaults
    return ModelEntry(
        id=card.id,
        created=card.created,
        display_name=card.id.rsplit("/", 1)[-1],
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        model_type=card.model_type,
        context_window=window,
        context_length=window,
        max_model_len=window,
        max_input_tokens=window,
        max_tokens=window,
        meta=Meta(window, card.vocab_size),
        gen_defaults=GenDefaults(defaults.temperature, defaults.top_p, defaults.top_k),
    )
