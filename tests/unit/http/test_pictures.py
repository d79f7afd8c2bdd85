"""Pictures for a model that reads text: refused in the question, a note where they came before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Struct

from doubles import server
from doubles.carrier import running
from field_cases import ENDPOINTS, Desk, Endpoint

pytestmark = pytest.mark.anyio
NOTE = "[image left out: this model reads text only]"
URL = "data:image/png;base64,iVBORw0KGgo="
PART = {"type": "image_url", "image_url": {"url": URL}}
ITEM = {"type": "input_image", "image_url": URL, "detail": "auto"}
BLOCK = {
    "type": "image",
    "source": {"type": "base64", "data": "iVBORw0KGgo=", "media_type": "image/png"},
}


class Spelling(Struct, frozen=True):
    """How a protocol says it: the field of the turns, a picture, a call, and its result."""

    turns: str
    picture: dict[str, Any]
    call: dict[str, Any]
    result: dict[str, Any]
    at: str  # of a picture that is the second part of the first turn


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": content}


CHAT = Spelling(
    "messages",
    PART,
    {"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen:"}, PART]},
    "messages[0].content[1]",
)  # fmt: skip
RESPONSES = Spelling(
    "input",
    ITEM,
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c",
     "output": [{"type": "input_text", "text": "seen:"}, ITEM]},
    "input[0].content[1]",
)  # fmt: skip
MESSAGES = Spelling(
    "messages",
    BLOCK,
    {"role": "assistant",
     "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
    {"role": "user", "content": [result([{"type": "text", "text": "seen:"}, BLOCK])]},
    "messages[0].content[1]",
)  # fmt: skip
PROTOCOLS = [
    (endpoint, {"chat": CHAT, "response": RESPONSES, "messages": MESSAGES, "count": MESSAGES}[name])
    for endpoint in ENDPOINTS
    if (name := endpoint.name) in ("chat", "response", "messages", "count")
]
each = pytest.mark.parametrize(
    ("endpoint", "spelling"), PROTOCOLS, ids=[endpoint.name for endpoint, _ in PROTOCOLS]
)


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with running(server.service()) as service:
        await service.model()
        yield Desk(service)


def asked(spelling: Spelling) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "see:"}, spelling.picture]}


ANSWERED = {"role": "assistant", "content": "I see"}
NEXT = {"role": "user", "content": "go on"}


@each
@pytest.mark.parametrize("stream", [False, True])
async def test_in_the_question_it_is_refused_with_the_name_of_the_model(
    desk: Desk, endpoint: Endpoint, spelling: Spelling, stream: bool
) -> None:
    body = {**endpoint.needed, spelling.turns: [asked(spelling)], "stream": stream}
    reply = await desk.post(endpoint, body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    said = f"{server.MODEL_ID} reads text only, and {spelling.at} is an image"
    assert reply.error["message"] == said
    assert reply.error.get("param", spelling.at) == spelling.at


@each
async def test_in_history_and_in_a_result_the_session_goes_on(
    desk: Desk, endpoint: Endpoint, spelling: Spelling
) -> None:
    turns = [asked(spelling), ANSWERED, NEXT, spelling.call, spelling.result]
    outcome = await desk.send(endpoint, {**endpoint.needed, spelling.turns: turns})
    assert outcome.status == 200
    if outcome.specs:  # all but a count
        assert f"user: see:{NOTE}\nassistant: I see\n" in outcome.prompt
        assert f"tool: seen:{NOTE}\n" in outcome.prompt
        assert URL not in outcome.prompt


@each
async def test_a_result_that_is_nothing_but_a_picture_is_the_note(
    desk: Desk, endpoint: Endpoint, spelling: Spelling
) -> None:
    if endpoint.name == "response":
        alone: dict[str, Any] = {**spelling.result, "output": [spelling.picture]}
    elif endpoint.name == "chat":
        alone = {**spelling.result, "content": [spelling.picture]}
    else:
        alone = {"role": "user", "content": [result([spelling.picture])]}
    turns = [NEXT, spelling.call, alone]
    outcome = await desk.send(endpoint, {**endpoint.needed, spelling.turns: turns})
    assert outcome.status == 200
    assert not outcome.specs or f"tool: {NOTE}\n" in outcome.prompt


@each
async def test_the_next_question_with_a_picture_is_refused_where_it_stands(
    desk: Desk, endpoint: Endpoint, spelling: Spelling
) -> None:
    turns = [asked(spelling), ANSWERED, asked(spelling)]
    reply = await desk.post(endpoint, {**endpoint.needed, spelling.turns: turns})
    assert reply.status == 400
    assert spelling.at.replace("[0]", "[2]", 1) in reply.error["message"]


async def test_a_picture_of_a_response_that_is_continued_is_history(desk: Desk) -> None:
    [endpoint] = [e for e in ENDPOINTS if e.name == "response"]
    turns = [asked(RESPONSES), ANSWERED, NEXT]
    made = await desk.post(endpoint, {"input": turns})
    assert made.status == 200
    again = {"previous_response_id": made.json["id"], "input": "and now?"}
    outcome = await desk.send(endpoint, again)
    assert f"user: see:{NOTE}\n" in outcome.prompt
    fresh = await desk.post(endpoint, {**again, "input": [asked(RESPONSES)]})
    assert (fresh.status, fresh.error["param"]) == (400, "input[0].content[1]")
