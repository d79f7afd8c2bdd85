"""The shapes in which real clients send Responses requests, made up anew and small."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import msgspec
import pytest

from doubles.carrier import Carrier
from mlxbun.adapters.http.responses_request import Asked, understand
from mlxbun.adapters.http.responses_types import ResponsesRequest
from mlxbun.application.responses_store import ResponsesStore
from mlxbun.domain.conversation import normalise

pytestmark = pytest.mark.anyio

EXEC: dict[str, Any] = {
    "type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}},
                   "required": ["cmd"], "additionalProperties": False},
}  # fmt: skip
AGENTS: dict[str, Any] = {
    "type": "namespace", "name": "agents_v1", "description": "Spawns agents.",
    "tools": [{"type": "function", "name": "wait", "strict": False,
               "parameters": {"type": "object", "properties": {}}}],
}  # fmt: skip
CODEX: dict[str, Any] = {
    "model": "doubles/scripted",
    "tools": [EXEC, AGENTS, {"type": "web_search", "external_web_access": True},
              {"type": "image_generation"}],
    "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"},
    "store": False, "stream": True, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "00000000-0000-4000-8000-000000000001",
    "client_metadata": {"x-codex-installation-id": "0"},
}  # fmt: skip


def said(role: str, *texts: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{role}-0000", "role": role, "content": parts}


CODEX_INPUT = [
    said("developer", "You are an agent."),
    said("developer", "<permissions>", "<apps>"),
    said("user", "<environment>"),
    said("user", '[say:<think>hm</think><tool_call>{"name": "exec_command", "arguments": '
                 '{"cmd": "ls"}}</tool_call>]'),
]  # fmt: skip


def asked(body: Any) -> Asked:
    ids = count()
    request = msgspec.convert(body, ResponsesRequest)
    return understand(request, ResponsesStore(), lambda prefix: f"{prefix}{next(ids)}")


def turns(body: Any) -> list[dict[str, Any]]:
    return normalise(asked(body).translation.messages, "some/model")


def done_items(body: bytes) -> list[Any]:
    """Return what Codex takes from a stream: the items that are done, and nothing else."""
    records = [r.split("\ndata: ")[1] for r in body.decode().split("\n\n")[:-1]]
    events = [json.loads(record) for record in records]
    assert events[-1]["type"] == "response.completed"
    assert {"id", "usage"} <= set(events[-1]["response"])
    assert "total_tokens" in events[-1]["response"]["usage"]
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


async def test_codex_runs_a_tool_and_goes_on_with_what_it_was_sent(carrier: Carrier) -> None:
    first = await carrier.post("/v1/responses", {**CODEX, "input": CODEX_INPUT})
    assert "web_search, image_generation" in first.headers["warning"]
    thoughts, call = done_items(first.body)
    assert thoughts["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert (call["name"], json.loads(call["arguments"])) == ("exec_command", {"cmd": "ls"})
    result = {"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"],
              "output": "Output:\na.txt [say:There is a.txt.]"}  # fmt: skip
    second = await carrier.post(
        "/v1/responses", {**CODEX, "input": [*CODEX_INPUT, thoughts, call, result]}
    )
    (message,) = done_items(second.body)
    assert message["content"][0]["text"] == "There is a.txt."


def test_what_codex_sends_are_the_turns_of_a_chat() -> None:
    call = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "call_1",
            "name": "wait", "namespace": "agents_v1", "arguments": "{}"}  # fmt: skip
    thoughts = {"type": "reasoning", "id": "rs_1", "encrypted_content": None,
                "summary": [{"type": "summary_text", "text": "hm"}],
                "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
    picture = {"type": "input_image", "image_url": "data:,", "detail": "auto"}
    seen = {"type": "function_call_output", "call_id": "call_1", "output": [picture]}
    body = {**CODEX, "input": [*CODEX_INPUT, thoughts, call, seen]}
    roles = [(turn["role"], turn["content"]) for turn in turns(body)]
    assert roles[:3] == [("system", "You are an agent."), ("system", "<permissions><apps>"),
                         ("user", "<environment>")]  # fmt: skip
    assistant, tool = turns(body)[-2:]
    assert assistant["reasoning_content"] == "hm"
    assert assistant["tool_calls"][0]["function"] == {"name": "wait", "arguments": {}}
    assert tool["content"] == "[image left out: this model reads text only]"
    shown = [tool["function"]["name"] for tool in asked(body).tools.shown]
    assert shown == ["exec_command", "wait"]


async def test_codex_asks_for_nothing_to_load_a_model(carrier: Carrier) -> None:
    body = {"model": "doubles/scripted", "input": "", "max_output_tokens": 1}
    assert (await carrier.post("/v1/responses", body)).status == 200


CALL = {"type": "function_call", "call_id": "call_1", "name": "weather",
        "arguments": '{"city":"Paris"}'}  # fmt: skip
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "w", "strict": True,
           "parameters": CITY}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        # The agents SDK: instructions, an empty include, items with an id and a status.
        {"include": [], "instructions": "be brief", "tools": [WEATHER],
         "input": [{"content": "weather?", "role": "user"},
                   {**CALL, "id": "fc_1", "status": "completed"}, RESULT]},
        # The AI SDK and opencode: system as an item without a type, parts, no ids.
        {"tools": [WEATHER], "tool_choice": "auto", "max_output_tokens": 4096, "store": False,
         "input": [{"role": "system", "content": "be brief"},
                   {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
                   CALL, RESULT]},
        # An SDK's own items, dumped and sent back.
        {"tools": [WEATHER], "input": [
            {"type": "message", "role": "developer", "content": "be brief"},
            {"type": "message", "role": "user", "status": "completed", "id": "msg_1",
             "content": [{"type": "input_text", "text": "weather?"}]},
            {**CALL, "id": "fc_1", "status": "completed", "parsed_arguments": None},
            {**RESULT, "output": [{"type": "input_text", "text": "sunny"}], "status": None}]},
    ],
)  # fmt: skip
async def test_whatever_its_spelling_a_history_is_the_same_prompt(
    carrier: Carrier, body: Any
) -> None:
    assert turns(body) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1", "name": "weather"},
    ]  # fmt: skip
    assert [tool["function"]["strict"] for tool in asked(body).tools.shown] == [True]
    assert (await carrier.post("/v1/responses", body)).status == 200
