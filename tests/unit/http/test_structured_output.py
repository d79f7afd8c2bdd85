"""Answers of a form that was asked for, in every protocol, whole and streamed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.grammar import TextsCompiler
from mlxbun.application.service import Service

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'
LOOSE = {"properties": {"a": {"items": {}, "uniqueItems": True}}}


@asynccontextmanager
async def carried(service: Service) -> AsyncGenerator[Carrier]:
    async with running(service):
        yield Carrier(service)


def content(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    said: str = reply.json["choices"][0]["message"]["content"]
    return said


async def test_an_answer_is_what_it_may_be_and_ends_there(carrier: Carrier) -> None:
    reply = await carrier.chat("[say:no way]", guided_choice=["yes", "no", "maybe"])
    assert content(reply) == "no"
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert reply.json["usage"]["completion_tokens"] == 2, "nothing follows, so nothing is drawn"


async def test_a_stream_says_what_the_whole_says(carrier: Carrier) -> None:
    asked: dict[str, Any] = {"guided_choice": ["yes", "nowhere else"]}
    whole = content(await carrier.chat("[say:nowhere]", **asked))
    streamed = await carrier.chat("[say:nowhere]", stream=True, **asked)
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in streamed.chunks]
    assert "".join(deltas) == whole == "nowhere else"


async def test_every_choice_of_n_keeps_to_it(carrier: Carrier) -> None:
    reply = await carrier.chat(n=3, guided_choice=["left", "right"], temperature=1)
    said = {choice["message"]["content"] for choice in reply.json["choices"]}
    assert len(reply.json["choices"]) == 3 and said <= {"left", "right"}


async def test_completions_keep_to_it_too(carrier: Carrier) -> None:
    body = {"prompt": "[say:x]", "guided_choice": ["x1", "x2"], "max_tokens": 1}
    reply = await carrier.post("/v1/completions", body)
    choice = reply.json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("x", "length"), "cut off, and says so"
    whole = await carrier.post("/v1/completions", body | {"max_tokens": 9})
    assert whole.json["choices"][0]["text"] == "x1"


async def test_what_ends_with_the_last_token_allowed_ends_by_itself(carrier: Carrier) -> None:
    reply = await carrier.chat("[say:ab]", guided_choice=["ab"], max_tokens=2)
    assert reply.json["choices"][0]["finish_reason"] == "stop"


async def test_a_stop_string_is_found_within_it(carrier: Carrier) -> None:
    reply = await carrier.chat("[say:abcd]", guided_choice=["abcd"], stop=["c"])
    assert content(reply) == "ab"


@pytest.mark.parametrize("fields", [{"response_format": FORM}, {"guided_json": SCHEMA}])
async def test_a_schema_is_enforced(fields: dict[str, Any]) -> None:
    grammars = TextsCompiler(['{"a":1}'])
    async with carried(server.service(grammars=grammars)) as carrier:
        assert content(await carrier.chat("[say:I think]", **fields)) == '{"a":1}'
    assert '\\"a\\"' in grammars.compiled[0].ebnf


async def test_responses_and_messages_go_the_same_way() -> None:
    async with carried(server.service(grammars=TextsCompiler(['{"a":1}']))) as carrier:
        form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
        responses = await carrier.post("/v1/responses", {"input": "hi", "text": {"format": form}})
        assert responses.json["output"][0]["content"][0]["text"] == '{"a":1}'
        asked = {"max_tokens": 99, "messages": [{"role": "user", "content": "hi"}]}
        messages = await carrier.post("/v1/messages", asked | {"output_config": {"format": form}})
        assert messages.json["content"] == [{"type": "text", "text": '{"a":1}'}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}])
async def test_a_call_that_is_forced_is_made(choice: Any) -> None:
    async with carried(server.service(grammars=TextsCompiler([CALL]))) as carrier:
        reply = await carrier.chat("[say:Hello]", tools=[TOOL], tool_choice=choice)
    answer = reply.json["choices"][0]
    assert answer["finish_reason"] == "tool_calls" and answer["message"]["content"] is None
    called = answer["message"]["tool_calls"][0]["function"]
    assert called == {"name": "look", "arguments": '{"a": 1}'}


async def test_a_forced_call_is_one_in_the_other_protocols_too() -> None:
    async with carried(server.service(grammars=TextsCompiler([CALL]))) as carrier:
        tool = {"type": "function", "name": "look", "parameters": SCHEMA}
        responses = await carrier.post(
            "/v1/responses", {"input": "hi", "tools": [tool], "tool_choice": "required"}
        )
        assert [item["type"] for item in responses.json["output"]] == ["function_call"]
        messages = await carrier.post(
            "/v1/messages",
            {
                "max_tokens": 200,
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"name": "look", "input_schema": SCHEMA}],
                "tool_choice": {"type": "tool", "name": "look"},
            },
        )
        assert [block["type"] for block in messages.json["content"]] == ["tool_use"]
        assert messages.json["stop_reason"] == "tool_use"


async def test_a_thought_comes_before_it() -> None:
    async with carried(server.service()) as carrier:
        reply = await carrier.chat(
            "[say:Hm, well.</think>no way]",
            guided_choice=["yes", "no"],
            chat_template_kwargs={"opens_thought": True},
        )
    message = reply.json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, well.", "no")


async def test_what_is_not_enforced_is_said_in_a_warning() -> None:
    async with carried(server.service(grammars=TextsCompiler(["{}"]))) as carrier:
        reply = await carrier.chat(guided_json=LOOSE)
        streamed = await carrier.chat(guided_json=LOOSE, stream=True)
    said = '199 - "guided_json: not enforced: /properties/a/uniqueItems"'
    assert reply.headers["warning"] == said == streamed.headers["warning"]


async def test_strictness_refuses_it_before_any_status(carrier: Carrier) -> None:
    strict = {"type": "json_schema", "json_schema": {"schema": LOOSE, "strict": True}}
    for stream in (False, True):
        reply = await carrier.chat(response_format=strict, stream=stream)
        at = "response_format.json_schema.schema/properties/a/uniqueItems"
        assert (reply.status, reply.error["param"]) == (400, at)


async def test_where_nothing_is_enforced_the_model_is_told_and_a_warning_says_so() -> None:
    async with carried(server.service(enforces=False)) as carrier:
        free = await carrier.chat("[say:as I like]")
        reply = await carrier.chat("[say:as I like]", response_format=FORM)
        forced = await carrier.chat("[say:as I like]", tools=[TOOL], tool_choice="required")
    assert content(reply) == "as I like"
    assert "grammar not enforced: response_format" in reply.headers["warning"]
    assert reply.json["usage"]["prompt_tokens"] > free.json["usage"]["prompt_tokens"]
    assert "grammar not enforced: tool_choice" in forced.headers["warning"]
    assert "warning" not in free.headers


async def test_without_the_library_it_is_refused_and_all_else_is_served() -> None:
    async with carried(server.service(grammars=TextsCompiler(missing=True))) as carrier:
        reply = await carrier.chat(guided_choice=["a"])
        assert (reply.status, reply.error["code"]) == (400, "unsupported")
        assert (await carrier.chat()).status == 200
