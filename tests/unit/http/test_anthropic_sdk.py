"""Anthropic's official SDK against the front, without a socket: what it does by itself works."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import beta_async_tool
from anthropic.lib.tools import BetaAsyncAbstractMemoryTool

from doubles import server
from doubles.carrier import Carrier, running
from doubles.compute import GREETING

pytestmark = pytest.mark.anyio
MODEL = server.MODEL_ID
TOOL: Any = {"name": "get_weather", "input_schema": {"type": "object"}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'


class Sdk:
    """The SDK's client, and what it sent and got."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self.statuses: list[int] = []
        self.bodies: list[Any] = []
        self._http = httpx2.AsyncClient(transport=httpx2.MockTransport(self._carry))
        self.client = anthropic.AsyncAnthropic(
            api_key="k", base_url="http://server", http_client=self._http, max_retries=0
        )

    async def _carry(self, request: httpx2.Request) -> httpx2.Response:
        reply = await self._carrier.send(
            request.method,
            request.url.raw_path.decode(),
            await request.aread(),
            dict(request.headers),
        )
        self.statuses.append(reply.status)
        self.bodies.append(json.loads(await request.aread()))
        return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body)


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    async with running(server.service()) as service:
        await service.model()
        made = Sdk(Carrier(service))
        yield made
        await made.client.close()


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


async def test_its_stream_helper_gathers_text_thoughts_and_calls(sdk: Sdk) -> None:
    said = f"<think>so</think>it is{CALL}"
    async with sdk.client.messages.stream(
        model=MODEL, max_tokens=200, messages=[user(f"[say:{said}]")], tools=[TOOL]
    ) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert text == "it is"
    thoughts, shown, call = message.content
    assert thoughts.type == "thinking" and thoughts.thinking == "so" and thoughts.signature
    assert shown.type == "text" and shown.text == "it is"
    assert call.type == "tool_use" and call.input == {"city": "Rome"}
    assert message.stop_reason == "tool_use"


async def test_an_answer_can_be_sent_back_as_it_came(sdk: Sdk) -> None:
    said = f"<think>so</think>it is{CALL}"
    first = await sdk.client.messages.create(
        model=MODEL, max_tokens=200, messages=[user(f"[say:{said}]")], tools=[TOOL]
    )
    call = first.content[-1]
    assert call.type == "tool_use"
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "[say:done]"}
    second = await sdk.client.messages.create(
        model=MODEL, max_tokens=200,
        messages=[user("x"), {"role": "assistant", "content": first.content}, user([result])],
    )  # fmt: skip
    assert second.content[0].type == "text" and second.content[0].text == "done"
    sent = [block["type"] for block in sdk.bodies[-1]["messages"][1]["content"]]
    assert sent == ["thinking", "text", "tool_use"]


async def test_its_tool_loop_sends_the_whole_history_when_told_that_there_are_no_threads(
    sdk: Sdk,
) -> None:
    asked: list[str] = []

    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Say how the weather is in a city."""
        asked.append(city)
        return "[say:It is sunny]"

    runner = sdk.client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        max_iterations=3,
        tools=[get_weather],
        messages=[user(f"[say:{CALL}]")],
    )
    messages = [message async for message in runner]
    assert asked == ["Rome"]
    assert [message.stop_reason for message in messages] == ["tool_use", "end_turn"]
    last = messages[-1].content[0]
    assert last.type == "text" and last.text == "It is sunny"
    assert [message["role"] for message in sdk.bodies[-1]["messages"]] == [
        "user", "assistant", "user",
    ]  # fmt: skip
    assert sdk.statuses == [400, 200, 200]


class Notes(BetaAsyncAbstractMemoryTool):
    """A memory in which nothing is, and what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Any] = []

    async def view(self, command: Any) -> str:
        self.asked.append(command)
        return "[say:It is empty]"

    async def create(self, command: Any) -> str:
        raise AssertionError

    str_replace = insert = delete = rename = create


async def test_its_memory_is_asked_by_a_model_that_was_never_told_of_it(sdk: Sdk) -> None:
    notes = Notes()
    call = '{"name": "memory", "arguments": {"command": "view", "path": "/memories"}}'
    runner = sdk.client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        max_iterations=3,
        tools=[notes],
        messages=[user(f"[say:<tool_call>{call}</tool_call>]")],
    )
    *_, last = [message async for message in runner]
    assert [(said.command, said.path) for said in notes.asked] == [("view", "/memories")]
    assert last.content[0].type == "text" and last.content[0].text == "It is empty"


async def test_raised_errors_have_the_servers_words(sdk: Sdk) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await sdk.client.messages.create(model=MODEL, max_tokens=5, messages=[])
    assert caught.value.request_id
    body: Any = caught.value.body
    assert body["error"]["message"] == "messages: at least one message is required"


async def test_a_plain_answer_is_the_greeting(sdk: Sdk) -> None:
    message = await sdk.client.messages.create(
        model="claude-opus-4-8", max_tokens=100, messages=[user("hi")],
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        extra_body={"temperature": 0},
    )  # fmt: skip
    assert message.content[0].type == "text" and message.content[0].text == GREETING
