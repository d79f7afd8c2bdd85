from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from doubles.carrier import Carrier
from mlxbun.adapters.http.fields import CHAT, COMPLETIONS, COUNT_TOKENS, MESSAGES, RESPONSES
from mlxbun.adapters.http.openapi import document
from mlxbun.adapters.http.routes import ENDPOINTS

pytestmark = pytest.mark.anyio
DOCUMENT = json.loads(json.dumps(document()))


def validator(path: str, method: str, status: str) -> Draft202012Validator:
    content = DOCUMENT["paths"][path][method]["responses"][status]["content"]
    schema = content["application/json"]["schema"] | {"components": DOCUMENT["components"]}
    return Draft202012Validator(schema)


async def test_the_document_is_served_and_covers_every_endpoint(carrier: Carrier) -> None:
    assert (await carrier.get("/openapi.json")).json == DOCUMENT
    described = {
        f"{method.upper()} {path}"
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
        if method in ("get", "post", "delete")
    }
    assert described - {"GET /"} == set(ENDPOINTS)


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1", "/", "/health", "/stats", "/v1/effective-config"]
)
async def test_what_is_read_is_as_described(carrier: Carrier, path: str) -> None:
    validator(path, "get", "200").validate((await carrier.get(path)).json)


async def test_a_flush_without_an_ssd_tier_is_as_described_and_misses_nothing(
    carrier: Carrier,
) -> None:
    reply = await carrier.post("/admin/cache/flush", b"")
    validator("/admin/cache/flush", "post", "200").validate(reply.json)
    said = {name: value for name, value in reply.json.items() if value}
    assert (reply.status, said) == (200, {"durable": True, "ssd_tier": "off"})


async def test_an_explanation_is_as_described(carrier: Carrier) -> None:
    answer = await carrier.chat()
    found = await carrier.get(f"/v1/cache/explain?request={answer.json['id']}")
    validator("/v1/cache/explain", "get", "200").validate(found.json)
    unknown = await carrier.get("/v1/cache/explain?request=nobody")
    validator("/v1/cache/explain", "get", "404").validate(unknown.json)


async def test_answers_and_errors_are_as_described(carrier: Carrier) -> None:
    chat = await carrier.chat(logprobs=True, top_logprobs=1)
    validator("/v1/chat/completions", "post", "200").validate(chat.json)
    text = await carrier.complete(logprobs=1)
    validator("/v1/completions", "post", "200").validate(text.json)
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    message = await carrier.post("/v1/messages", body)
    validator("/v1/messages", "post", "200").validate(message.json)
    counted = await carrier.post("/v1/messages/count_tokens", body)
    validator("/v1/messages/count_tokens", "post", "200").validate(counted.json)
    refused = await carrier.post("/v1/messages", {**body, "messages": []})
    validator("/v1/messages", "post", "400").validate(refused.json)
    said = {"input": "hi", "top_logprobs": 1}
    response = await carrier.post("/v1/responses", said)
    validator("/v1/responses", "post", "200").validate(response.json)
    path = "/v1/responses/{id}"
    one = path.replace("{id}", response.json["id"])
    validator(path, "get", "200").validate((await carrier.get(one)).json)
    items = await carrier.get(f"{one}/input_items")
    validator(f"{path}/input_items", "get", "200").validate(items.json)
    counted = await carrier.post("/v1/responses/input_tokens", said)
    validator("/v1/responses/input_tokens", "post", "200").validate(counted.json)
    gone = await carrier.send("DELETE", one, b"", {})
    validator(path, "delete", "200").validate(gone.json)
    validator(path, "get", "404").validate((await carrier.get(one)).json)
    error = await carrier.chat(messages=[])
    validator("/v1/chat/completions", "post", "400").validate(error.json)


@pytest.mark.parametrize(("name", "fields"), [("ChatRequest", CHAT),
                                              ("CompletionRequest", COMPLETIONS),
                                              ("MessagesRequest", MESSAGES),
                                              ("CountRequest", COUNT_TOKENS),
                                              ("ResponsesRequest", RESPONSES)])  # fmt: skip
def test_every_field_says_what_becomes_of_it(name: str, fields: Any) -> None:
    properties = DOCUMENT["components"]["schemas"][name]["properties"]
    for field in fields:
        assert properties[field.name]["description"].startswith(field.stance)
