"""GET /openapi.json: the interface, generated from the types that decode and encode it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from mlxbun.adapters.http.anthropic_types import (
    CountRequest,
    Message,
    MessageEvent,
    MessagesRequest,
    TokenCount,
)
from mlxbun.adapters.http.cache import CacheReport, FlushAnswer
from mlxbun.adapters.http.cache_sessions import CloseRequest, SessionClosed
from mlxbun.adapters.http.conversations import (
    ConversationAnswer,
    ConversationDeleted,
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
)
from mlxbun.adapters.http.errors import ErrorEnvelope, MessagesError
from mlxbun.adapters.http.fields import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Field,
)
from mlxbun.adapters.http.item_pages import ItemList
from mlxbun.adapters.http.models import ModelEntry, ModelList
from mlxbun.adapters.http.openai_embeddings import EmbeddingList, EmbeddingsRequest
from mlxbun.adapters.http.openai_types import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    TextCompletion,
)
from mlxbun.adapters.http.openapi_operations import (
    ALWAYS,
    as_json,
    embedding,
    errors,
    generation,
    messages,
    query,
    read,
    response,
)
from mlxbun.adapters.http.responses_events import AnyEvent
from mlxbun.adapters.http.responses_types import (
    Deleted,
    InputTokens,
    Response,
    ResponsesRequest,
)
from mlxbun.adapters.http.status import VERSION, About, ConfigReport, HealthReport, ServerStats
from mlxbun.application.responses_store import StoreReport
from mlxbun.application.stats import EngineStats
from mlxbun.domain.sampling_policy import RANGES

_REF = "#/components/schemas/{name}"


class StatsReport(EngineStats):
    """The engine's counts, the server they belong to, and what it keeps of responses."""

    server: ServerStats | None = None
    response_store: StoreReport | None = None


_TYPES: tuple[Any, ...] = (
    CountRequest, Message, MessageEvent, MessagesError, MessagesRequest, TokenCount,
    About, CacheReport, ChatChunk, ChatCompletion, ChatRequest, CloseRequest, CompletionRequest,
    ConfigReport, SessionClosed, AnyEvent, Deleted, InputTokens, ItemList, Response,
    ResponsesRequest,
    ConversationAnswer, ConversationDeleted, ConversationRequest, ItemsRequest, MetadataRequest,
    EmbeddingList, EmbeddingsRequest,
    ErrorEnvelope, FlushAnswer, HealthReport, ModelEntry, ModelList, StatsReport, TextCompletion,
)  # fmt: skip
_FIELDS: Mapping[type[Struct], tuple[Field, ...]] = {
    ChatRequest: CHAT,
    CompletionRequest: COMPLETIONS,
    EmbeddingsRequest: EMBEDDINGS,
    MessagesRequest: MESSAGES,
    CountRequest: COUNT_TOKENS,
    ResponsesRequest: RESPONSES,
}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    schemas, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    refs = dict(zip(_TYPES, schemas, strict=True))
    for request, fields in _FIELDS.items():
        _describe(components[request.__name__], fields)
    model_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "May hold slashes, plain or as %2F.",
        "schema": {"type": "string", "minLength": 1},
    }
    response_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "resp_..., while it is kept",
        "schema": {"type": "string", "minLength": 1},
    }
    conversation_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "conv_..., while it is kept",
        "schema": {"type": "string", "minLength": 1},
    }
    item_id = {**conversation_id, "name": "item", "description": "The id of an item of it"}
    pages: Any = {
        "order": query("order", "asc or desc, the default"),
        "after": query("after", "An item's id"),
        "limit": query("limit", "1 to 100; 20 if it is not said"),
    }
    answer_id = {
        "name": "request",
        "in": "query",
        "required": True,
        "description": "The id of an answer, such as chatcmpl-...; the last 256 are known.",
        "schema": {"type": "string", "minLength": 1},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlxbun", "version": VERSION},
        "paths": {
            "/v1/chat/completions": {
                "post": generation(
                    "Answer a conversation", refs, ChatRequest, ChatCompletion, ChatChunk
                )
            },
            "/v1/completions": {
                "post": generation(
                    "Continue a text", refs, CompletionRequest, TextCompletion, TextCompletion
                )
            },
            "/v1/embeddings": {"post": embedding("Turn texts into vectors", refs)},
            "/v1/responses": {
                "post": response("Answer a conversation, as OpenAI's Responses", refs, Response)
            },
            "/v1/responses/input_tokens": {
                "post": response("Count a prompt's tokens", refs, InputTokens)
            },
            "/v1/responses/{id}": {
                "get": read(
                    "Read a response",
                    refs,
                    Response,
                    id=response_id,
                    stream=query("stream", "true: its events, if it was made with background"),
                    starting_after=query("starting_after", "The number of the last event known"),
                ),
                "delete": read("Forget a response", refs, Deleted, id=response_id),
            },
            "/v1/responses/{id}/cancel": {
                "post": read("End a response that is under way", refs, Response, id=response_id)
            },
            "/v1/responses/{id}/input_items": {
                "get": read(
                    "List what a response was made from",
                    refs,
                    ItemList,
                    id=response_id,
                    **pages,
                )
            },
            "/v1/conversations": {
                "post": read("Begin a conversation", refs, ConversationAnswer)
                | {"requestBody": as_json("What it begins with", refs[ConversationRequest])}
            },
            "/v1/conversations/{id}": {
                "get": read("Read a conversation", refs, ConversationAnswer, id=conversation_id),
                "post": read("Replace its metadata", refs, ConversationAnswer, id=conversation_id)
                | {"requestBody": as_json("The metadata", refs[MetadataRequest])},
                "delete": read(
                    "Forget a conversation", refs, ConversationDeleted, id=conversation_id
                ),
            },
            "/v1/conversations/{id}/items": {
                "get": read("List its items", refs, ItemList, id=conversation_id, **pages),
                "post": read("Add items", refs, ItemList, id=conversation_id)
                | {"requestBody": as_json("The items", refs[ItemsRequest])},
            },
            "/v1/conversations/{id}/items/{item}": {
                "get": read("Read an item", refs, dict[str, Any], id=conversation_id, item=item_id),
                "delete": read(
                    "Forget an item", refs, ConversationAnswer, id=conversation_id, item=item_id
                ),
            },
            "/v1/messages": {
                "post": messages("Answer a conversation", refs, MessagesRequest, Message)
            },
            "/v1/messages/count_tokens": {
                "post": messages("Count a prompt's tokens", refs, CountRequest, TokenCount)
            },
            "/v1/models": {"get": read("List the served model", refs, ModelList)},
            "/v1/models/{id}": {
                "get": read("Describe the served model", refs, ModelEntry)
                | {"parameters": [model_id]}
            },
            "/v1": {"get": read("Say what this server is", refs, About)},
            "/": {"get": read("Say what this server is", refs, About)},
            "/health": {
                "get": read("Say whether it is well", refs, HealthReport, failure=HealthReport)
            },
            "/stats": {"get": read("Count what it does", refs, StatsReport)},
            "/v1/effective-config": {"get": read("Show its settings", refs, ConfigReport)},
            "/v1/cache/explain": {
                "get": read("Say what was reused for a request, and why no more", refs, CacheReport)
                | {"parameters": [answer_id]}
            },
            "/admin/cache/flush": {
                "post": read(
                    "Make the prefix cache durable", refs, FlushAnswer, failure=FlushAnswer
                )
            },
            "/admin/cache/session/close": {
                "post": read("Let a session's state leave memory", refs, SessionClosed)
                | {"requestBody": as_json("The session", refs[CloseRequest])}
            },
            "/openapi.json": {
                "get": {
                    "summary": "This document",
                    "responses": {"200": as_json("The document", {"type": "object"})}
                    | errors(refs, ALWAYS),
                }
            },
        },
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _describe(schema: dict[str, Any], fields: tuple[Field, ...]) -> None:
    """Say of each property what becomes of it and what it may be; list what is ignored, too."""
    properties = schema["properties"]
    for field in fields:
        said = f"{field.stance}: {field.note}" if field.note else field.stance
        properties.setdefault(field.name, {})["description"] = said
        if field.stance == "refused":
            properties[field.name]["enum"] = [None, *field.harmless]
        for said in properties[field.name].get("anyOf", ()):
            if field.name in RANGES and said.get("type") in ("number", "integer"):
                low, high = RANGES[field.name]
                said.setdefault("minimum", low)
                said.setdefault("maximum", high)
