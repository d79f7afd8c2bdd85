"""The operations of the OpenAPI document: what is sent, what may come back, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mlxbun.adapters.http.anthropic_types import Message, MessageEvent
from mlxbun.adapters.http.errors import MESSAGES_RULES, RULES, ErrorEnvelope, MessagesError, Rule
from mlxbun.adapters.http.openai_embeddings import EmbeddingList, EmbeddingsRequest
from mlxbun.adapters.http.responses_events import AnyEvent
from mlxbun.adapters.http.responses_types import Response, ResponsesRequest

ALWAYS = (400, 401, 404, 405, 408, 413, 500)
_TRY_AGAIN = (429, 503)
_MESSAGES_TRY_AGAIN = (429, 529)

Refs = Mapping[Any, Mapping[str, Any]]


def generation(
    summary: str, refs: Refs, body: type[Struct], answer: type[Struct], chunk: type[Struct]
) -> dict[str, Any]:
    """Return the operation of an endpoint that generates: an answer, or records of `chunk`."""
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
    ok = as_json("The answer; with stream, its records", refs[answer])
    ok["content"]["text/event-stream"] = events
    return _posted(summary, refs[body], {"200": ok} | errors(refs, ALWAYS + _TRY_AGAIN))


def embedding(summary: str, refs: Refs) -> dict[str, Any]:
    """Return the operation of embeddings."""
    return {
        "summary": summary,
        "requestBody": as_json("The texts", refs[EmbeddingsRequest]) | {"required": True},
        "responses": {"200": as_json("The vectors", refs[EmbeddingList])}
        | errors(refs, ALWAYS + _TRY_AGAIN),
    }


def messages(summary: str, refs: Refs, body: type[Struct], answer: type[Struct]) -> dict[str, Any]:
    """Return an operation of Anthropic's protocol."""
    ok = as_json("The answer", refs[answer])
    if answer is Message:
        data = {"anyOf": [refs[MessageEvent], refs[MessagesError]]}
        ok["content"]["text/event-stream"] = _events(data)
    failures = errors(refs, ALWAYS + _MESSAGES_TRY_AGAIN, MESSAGES_RULES, MessagesError)
    return _posted(summary, refs[body], {"200": ok} | failures)


def response(summary: str, refs: Refs, answer: type[Struct]) -> dict[str, Any]:
    """Return an operation on a Responses request."""
    ok = as_json("The answer", refs[answer])
    if answer is Response:
        ok["content"]["text/event-stream"] = _events(refs[AnyEvent])
    answers = {"200": ok} | errors(refs, ALWAYS + _TRY_AGAIN)
    return _posted(summary, refs[ResponsesRequest], answers)


def _posted(summary: str, body: Mapping[str, Any], answers: Mapping[str, Any]) -> dict[str, Any]:
    sent = {"required": True, "content": {"application/json": {"schema": body}}}
    return {"summary": summary, "requestBody": sent, "responses": answers}


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


def query(name: str, description: str) -> dict[str, Any]:
    """Return an optional parameter of the query."""
    said = {"name": name, "in": "query", "required": False, "description": description}
    return {**said, "schema": {"type": "string"}}


def read(
    summary: str,
    refs: Refs,
    answer: Any,
    failure: type[Struct] = ErrorEnvelope,
    **parameters: dict[str, Any],
) -> dict[str, Any]:
    """Return an operation that reads, or changes what its path names."""
    responses = {"200": as_json("Read", refs.get(answer, {"type": "object"}))} | errors(
        refs, ALWAYS
    )
    if "stream" in parameters:
        responses["200"]["content"]["text/event-stream"] = _events(refs[AnyEvent])
    responses["503"] = as_json("Not now", refs[failure])
    said: dict[str, Any] = {"parameters": list(parameters.values())} if parameters else {}
    return {"summary": summary, **said, "responses": responses}


def as_json(description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return content of JSON."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def errors(
    refs: Refs,
    statuses: tuple[int, ...],
    rules: Mapping[str, Rule] = RULES,
    envelope: type[Struct] = ErrorEnvelope,
) -> dict[str, Any]:
    """Return what failures look like, by status: the codes that have it."""
    codes = {
        status: [code for code, rule in rules.items() if rule.status == status]
        for status in statuses
    }
    return {str(s): as_json(", ".join(names), refs[envelope]) for s, names in codes.items()}
