"""What a model is only told of its answer's form: the words count, and move nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from doubles import server
from doubles.carrier import Carrier, running

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "name": "x", "schema": SCHEMA}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
FORMED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"response_format": {"type": "json_schema", "json_schema": FORM}},
    "/v1/responses": {"text": {"format": FORM}},
    "/v1/messages": {"output_config": {"format": FORM}, "max_tokens": 9},
}


@pytest.fixture
async def telling() -> AsyncIterator[Carrier]:
    """A front over a service that enforces nothing."""
    async with running(server.service(enforces=False)) as service:
        await service.model()
        yield Carrier(service)


@pytest.mark.parametrize("path", FORMED)
async def test_a_refusal_names_the_place_in_the_request(telling: Carrier, path: str) -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "see:"}, IMAGE]}]
    name = "input" if path == "/v1/responses" else "messages"
    reply = await telling.post(path, {name: turns, **FORMED[path]})
    assert reply.status == 400
    assert f"{server.MODEL_ID} reads text only, and {name}[0].content[1]" in reply.error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_conversation_of_nothing_is_refused(telling: Carrier, path: str) -> None:
    reply = await telling.post(path, {"messages": [], **FORMED[path]})
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("enforces", [True, False])
async def test_a_count_is_that_of_the_request(enforces: bool) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": "[say:x]"}]
    async with running(server.service(enforces=enforces)) as service:
        carrier = Carrier(service)
        messages = {"messages": said, "output_config": {"format": FORM}}
        counted = await carrier.post("/v1/messages/count_tokens", messages)
        asked = await carrier.post("/v1/messages", {**messages, "max_tokens": 9})
        response = {"input": said, "text": {"format": FORM}}
        listed = await carrier.post("/v1/responses/input_tokens", response)
        made = await carrier.post("/v1/responses", {**response, "max_output_tokens": 9})
    usage = asked.json["usage"]
    whole = usage["input_tokens"] + usage["cache_creation_input_tokens"]
    assert counted.json["input_tokens"] == whole
    assert listed.json["input_tokens"] == made.json["usage"]["input_tokens"]
    assert ("warning" in asked.headers) is not enforces


async def test_a_format_is_judged_where_tokens_are_only_counted(carrier: Carrier) -> None:
    said = [{"role": "user", "content": "hi"}]
    wrong = {"messages": said, "output_config": {"format": {"type": "xml"}}}
    reply = await carrier.post("/v1/messages/count_tokens", wrong)
    assert reply.status == 400 and "output_config.format.type" in reply.error["message"]
