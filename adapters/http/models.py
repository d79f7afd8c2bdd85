"""GET /v1/models and /v1/models/{id}: what is served, in the words of several protocols.

One shape serves OpenAI's clients, Anthropic's (type, display_name, created_at), and agents
that look for the size of the window under any of its names.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.application.prepare import Preparer
from mlxbun.application.service import EmbeddingModel
from mlxbun.domain.text import ModelCard

PREFIX = "/v1/models/"


class Meta(Struct, frozen=True):
    """`n_embd` is the size of a model's vectors, where it embeds."""

    n_ctx: int
    n_vocab: int
    n_embd: int | UnsetType = UNSET


class Capabilities(Struct, frozen=True):
    """What the server does with this model."""

    chat_completions: bool = True
    text_completions: bool = True
    anthropic_messages: bool = True
    responses: bool = True
    streaming: bool = True
    logprobs: bool = True
    tools: bool = True
    structured_output: bool = True
    embeddings: bool = False
    vision: bool = False
    audio: bool = False


EMBEDS = Capabilities(
    chat_completions=False,
    text_completions=False,
    anthropic_messages=False,
    responses=False,
    streaming=False,
    logprobs=False,
    tools=False,
    structured_output=False,
    embeddings=True,
)


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
        """Answer with the model that writes, first, and the one that embeds."""
        model, embedding = await self._preparer.loaded()
        data = [entry(model.card)] if model.answers else []
        data += [embedding_entry(embedding)] if embedding is not None else []
        return json_answer(ModelList(data=data, first_id=data[0].id, last_id=data[-1].id))

    async def retrieve(self, request: Request) -> Answer:
        """Answer for the id that the path ends in, slashes and all."""
        name = request.head.path.removeprefix(PREFIX)
        _, embedding = await self._preparer.loaded()
        if embedding is not None and embedding.is_called(name):
            return json_answer(embedding_entry(embedding))
        return json_answer(entry((await self._preparer.model(name)).card))


def embedding_entry(model: EmbeddingModel) -> ModelEntry:
    said = entry(model.card)
    meta = replace(said.meta, n_embd=model.sizes.dimensions)
    return replace(said, capabilities=EMBEDS, meta=meta)


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
