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
from mlxbun.adapters.http.errors import MESSAGES_RULES, RULES, ErrorEnvelope, MessagesError, Rule
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
_ALWAYS = (400, 401, 404, 405, 408, 413, 500)
_TRY_AGAIN = (429, 503)
_MESSAGES_TRY_AGAIN = (429, 529)


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
        "order": _query("order", "asc or desc, the default"),
        "after": _query("after", "An item's id"),
        "limit": _query("limit", "1 to 100; 20 if it is not said"),
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
                "post": _generation(
                    "Answer a conversation", refs, ChatRequest, ChatCompletion, ChatChunk
                )
            },
            "/v1/completions": {
                "post": _generation(
                    "Continue a text", refs, CompletionRequest, TextCompletion, TextCompletion
                )
            },
            "/v1/embeddings": {"post": _embedding("Turn texts into vectors", refs)},
            "/v1/responses": {
                "post": _response("Answer a conversation, as OpenAI's Responses", refs, Response)
            },
            "/v1/responses/input_tokens": {
                "post": _response("Count a prompt's tokens", refs, InputTokens)
            },
            "/v1/responses/{id}": {
                "get": _read(
                    "Read a response",
                    refs,
                    Response,
                    id=response_id,
                    stream=_query("stream", "true: its events, if it was made with background"),
                    starting_after=_query("starting_after", "The number of the last event known"),
                ),
                "delete": _read("Forget a response", refs, Deleted, id=response_id),
            },
            "/v1/responses/{id}/cancel": {
                "post": _read("End a response that is under way", refs, Response, id=response_id)
            },
            "/v1/responses/{id}/input_items": {
                "get": _read(
                    "List what a response was made from",
                    refs,
                    ItemList,
                    id=response_id,
                    **pages,
                )
            },
            "/v1/conversations": {
                "post": _read("Begin a conversation", refs, ConversationAnswer)
                | {"requestBody": _json("What it begins with", refs[ConversationRequest])}
            },
            "/v1/conversations/{id}": {
                "get": _read("Read a conversation", refs, ConversationAnswer, id=conversation_id),
                "post": _read("Replace its metadata", refs, ConversationAnswer, id=conversation_id)
                | {"requestBody": _json("The metadata", refs[MetadataRequest])},
                "delete": _read(
                    "Forget a conversation", refs, ConversationDeleted, id=conversation_id
                ),
            },
            "/v1/conversations/{id}/items": {
                "get": _read("List its items", refs, ItemList, id=conversation_id, **pages),
                "post": _read("Add items", refs, ItemList, id=conversation_id)
                | {"requestBody": _json("The items", refs[ItemsRequest])},
            },
            "/v1/conversations/{id}/items/{item}": {
                "get": _read(
                    "Read an item", refs, dict[str, Any], id=conversation_id, item=item_id
                ),
                "delete": _read(
                    "Forget an item", refs, ConversationAnswer, id=conversation_id, item=item_id
                ),
            },
            "/v1/messages": {
                "post": _messages("Answer a conversation", refs, MessagesRequest, Message)
            },
            "/v1/messages/count_tokens": {
                "post": _messages("Count a prompt's tokens", refs, CountRequest, TokenCount)
            },
            "/v1/models": {"get": _read("List the served model", refs, ModelList)},
            "/v1/models/{id}": {
                "get": _read("Describe the served model", refs, ModelEntry)
                | {"parameters": [model_id]}
            },
            "/v1": {"get": _read("Say what this server is", refs, About)},
            "/": {"get": _read("Say what this server is", refs, About)},
            "/health": {
                "get": _read("Say whether it is well", refs, HealthReport, failure=HealthReport)
            },
            "/stats": {"get": _read("Count what it does", refs, StatsReport)},
            "/v1/effective-config": {"get": _read("Show its settings", refs, ConfigReport)},
            "/v1/cache/explain": {
                "get": _read(
                    "Say what was reused for a request, and why no more", refs, CacheReport
                )
                | {"parameters": [answer_id]}
            },
            "/admin/cache/flush": {
                "post": _read(
                    "Make the prefix cache durable", refs, FlushAnswer, failure=FlushAnswer
                )
            },
            "/admin/cache/session/close": {
                "post": _read("Let a session's state leave memory", refs, SessionClosed)
                | {"requestBody": _json("The session", refs[CloseRequest])}
            },
            "/openapi.json": {
                "get": {
                    "summary": "This document",
                    "responses": {"200": _json("The document", {"type": "object"})}
                    | _errors(refs, _ALWAYS),
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


Refs = Mapping[Any, Mapping[str, Any]]


def _generation(
    summary: str, refs: Refs, body: type[Struct], answer: type[Struct], chunk: type[Struct]
) -> dict[str, Any]:
    record = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [refs[chunk], refs[ErrorEnvelope]]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, record]}
    events = {
        "schema": {"type": "object", "required": ["data"], "properties": {"data": data}},
        "description": "Events without a name; the last one's data is [DONE]",
    }
    ok = _json("The answer; with stream, its records", refs[answer])
    ok["content"]["text/event-stream"] = events
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": refs[body]}},
        },
        "responses": {"200": ok} | _errors(refs, _ALWAYS + _TRY_AGAIN),
    }


def _embedding(summary: str, refs: Refs) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": _json("The texts", refs[EmbeddingsRequest]) | {"required": True},
        "responses": {"200": _json("The vectors", refs[EmbeddingList])}
        | _errors(refs, _ALWAYS + _TRY_AGAIN),
    }


def _messages(summary: str, refs: Refs, body: type[Struct], answer: type[Struct]) -> dict[str, Any]:
    ok = _json("The answer", refs[answer])
    if answer is Message:
        data = {"anyOf": [refs[MessageEvent], refs[MessagesError]]}
        ok["content"]["text/event-stream"] = _events(data)
    failures = _errors(refs, _ALWAYS + _MESSAGES_TRY_AGAIN, MESSAGES_RULES, MessagesError)
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": refs[body]}},
        },
        "responses": {"200": ok} | failures,
    }


def _response(summary: str, refs: Refs, answer: type[Struct]) -> dict[str, Any]:
    ok = _json("The answer", refs[answer])
    if answer is Response:
        ok["content"]["text/event-stream"] = _events(refs[AnyEvent])
    return {
        "summary": summary,
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": refs[ResponsesRequest]}},
        },
        "responses": {"200": ok} | _errors(refs, _ALWAYS + _TRY_AGAIN),
    }


def _events(data: Mapping[str, Any]) -> dict[str, Any]:
    event = {
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"type": "string"},
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": data,
            },
        },
    }
    return {
        "schema": event,
        "description": "With stream; an event is named as its data's type",
    }


def _query(name: str, description: str) -> dict[str, Any]:
    said = {"name": name, "in": "query", "required": False, "description": description}
    return {**said, "schema": {"type": "string"}}


def _read(
    summary: str,
    refs: Refs,
    answer: Any,
    failure: type[Struct] = ErrorEnvelope,
    **parameters: dict[str, Any],
) -> dict[str, Any]:
    responses = {"200": _json("Read", refs.get(answer, {"type": "object"}))} | _errors(
        refs, _ALWAYS
    )
    if "stream" in parameters:
        responses["200"]["content"]["text/event-stream"] = _events(refs[AnyEvent])
    responses["503"] = _json("Not now", refs[failure])
    said: dict[str, Any] = {"parameters": list(parameters.values())} if parameters else {}
    return {"summary": summary, **said, "responses": responses}


def _json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(
    refs: Refs,
    statuses: tuple[int, ...],
    rules: Mapping[str, Rule] = RULES,
    envelope: type[Struct] = ErrorEnvelope,
) -> dict[str, Any]:
    codes = {
        status: [code for code, rule in rules.items() if rule.status == status]
        for status in statuses
    }
    return {str(s): _json(", ".join(names), refs[envelope]) for s, names in codes.items()}


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
