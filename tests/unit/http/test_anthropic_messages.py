from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from pydantic import TypeAdapter

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.compute import GREETING
from mlxbun.adapters.http.access import Access
from mlxbun.domain.scheduling import Limits

pytestmark = pytest.mark.anyio
EVENT = TypeAdapter[Any](RawMessageStreamEvent)
TOOL = {"name": "get_weather", "description": "w", "input_schema": {"type": "object"}}
VERSION = {"anthropic_version": "2023-06-01"}


async def ask(carrier: Carrier, content: Any = "hi", **fields: Any) -> Reply:
    body = {
        "model": server.MODEL_ID, "max_tokens": 200, "temperature": 0,
        "messages": [{"role": "user", "content": content}], **fields,
    }  # fmt: skip
    return await carrier.post("/v1/messages?beta=true", body, **VERSION)


async def ask_with_tools(carrier: Carrier, content: str, **fields: Any) -> Reply:
    tools = [{**TOOL, "name": name} for name in ("f", "g", "get_weather")]
    return await ask(carrier, content, tools=tools, **fields)


def call(name: str, **arguments: Any) -> str:
    """Return a call as the scripted model writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def count(carrier: Carrier, content: Any = "hi", **fields: Any) -> int:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    reply = await carrier.post("/v1/messages/count_tokens?beta=true", body, **VERSION)
    assert reply.status == 200, reply.body
    return MessageTokensCount.model_validate_json(reply.body, strict=True).input_tokens


def whole(reply: Reply) -> Message:
    """Parse an answer with the official types, strictly: a missing field is an error."""
    assert reply.status == 200, reply.body
    return Message.model_validate_json(reply.body, strict=True)


def events(reply: Reply) -> list[Any]:
    """Parse a stream's records with the official types; each must name its own type."""
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    parsed: list[Any] = []
    for record in reply.body.decode().split("\n\n")[:-1]:
        name, data = record.split("\n")
        said = json.loads(data.removeprefix("data: "))
        assert name == f"event: {said['type']}"
        parsed.append(EVENT.validate_python(said, strict=True))
    return parsed


def gather(reply: Reply) -> Message:
    """Gather a stream as the official SDK does."""
    events(reply)

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=reply.body, headers=dict(reply.headers))

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        anthropic.Anthropic(api_key="k", base_url="http://x", http_client=http) as client,
        client.messages.stream(max_tokens=1, messages=[], model="m") as stream,
    ):
        return stream.get_final_message()


def alike(message: Message) -> Any:
    """Return what of an answer does not change from one to the next."""
    said = message.model_dump(exclude_none=True)
    for block in said["content"]:
        block.pop("id", None)
        for key in ("parsed_output", "caller"):
            block.pop(key, None)
    return {key: value for key, value in said.items() if key != "id"}


async def test_an_answer_is_a_message_of_the_official_types(carrier: Carrier) -> None:
    message = whole(await ask(carrier))
    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [
        ("text", GREETING)
    ]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.id.startswith("msg_")
    assert message.model == server.MODEL_ID
    assert message.usage.output_tokens == len(GREETING.encode()) + 1  # and the end token


@pytest.mark.parametrize(
    "said",
    [
        "",
        "plain añb",
        "<think>so so</think>then",
        "<think>only",
        call("get_weather", city="Rome"),
        f"<think>a</think>b{call('f', x=1)}{call('g')}",
        'text<tool_call>{"name": "f", "arguments": {"x":',
    ],
)
async def test_a_stream_gathers_to_the_whole_answer(carrier: Carrier, said: str) -> None:
    streamed = gather(await ask_with_tools(carrier, f"[say:{said}]", stream=True))
    assert alike(streamed) == alike(whole(await ask_with_tools(carrier, f"[say:{said}]")))


async def test_blocks_are_numbered_and_never_overlap(carrier: Carrier) -> None:
    said = f"<think>a</think>b{call('f', x=1)}c{call('g')}"
    parsed = events(await ask_with_tools(carrier, f"[say:{said}]", stream=True))
    assert [event.type for event in parsed[-2:]] == ["message_delta", "message_stop"]
    open_: int | None = None
    kinds: list[str] = []
    for event in parsed[1:-2]:
        match event.type:
            case "content_block_start":
                assert open_ is None and event.index == len(kinds)
                open_ = event.index
                kinds.append(event.content_block.type)
            case "content_block_delta":
                assert event.index == open_
            case _:
                assert event.type == "content_block_stop" and event.index == open_
                open_ = None
    assert kinds == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert open_ is None


async def test_thoughts_are_signed_and_calls_have_ids_of_their_own(carrier: Carrier) -> None:
    said = f"<think>t</think>{call('f', a=1)}{call('f')}"
    message = whole(await ask_with_tools(carrier, f"[say:{said}]"))
    thoughts, first, second = message.content
    assert thoughts.type == "thinking" and thoughts.thinking == "t" and thoughts.signature
    assert first.type == "tool_use" and first.input == {"a": 1}
    assert second.type == "tool_use" and second.input == {}
    assert first.id.startswith("toolu_") and first.id != second.id
    assert message.stop_reason == "tool_use"


async def test_thoughts_can_be_left_out_of_the_answer_but_for_their_signature(
    carrier: Carrier,
) -> None:
    omitted = {"type": "adaptive", "display": "omitted"}
    thoughts, text = whole(
        await ask_with_tools(carrier, "[say:<think>t</think>x]", thinking=omitted)
    ).content
    assert thoughts.type == "thinking" and thoughts.thinking == "" and thoughts.signature
    assert text.type == "text" and text.text == "x"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_off_is_not_told_by_half(carrier: Carrier, stream: bool) -> None:
    reply = await ask_with_tools(carrier, f"[say:ab{call('f', x=1)}]", max_tokens=40, stream=stream)
    message = gather(reply) if stream else whole(reply)
    assert [block.type for block in message.content] == ["text"]
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_ends_after_its_first_call_if_one_is_all(
    carrier: Carrier, stream: bool
) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    said = f"[say:a{call('f', x=1)}b{call('g')}{'z' * 500}]"
    reply = await ask_with_tools(carrier, said, tool_choice=choice, stream=stream, max_tokens=1000)
    message = gather(reply) if stream else whole(reply)
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.stop_reason == "tool_use"
    assert message.usage.output_tokens < 500


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_named_and_never_shown(carrier: Carrier, stream: bool) -> None:
    reply = await ask(carrier, stop_sequences=["nope", " wörld"], stream=stream)
    message = gather(reply) if stream else whole(reply)
    assert message.content[0].type == "text" and message.content[0].text == "Hello,"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " wörld")


@pytest.mark.parametrize(
    ("window", "max_tokens", "reason"),
    [(4096, 3, "max_tokens"), (128, 10_000, "model_context_window_exceeded")],
)
async def test_what_cut_an_answer_off_is_told(window: int, max_tokens: int, reason: str) -> None:
    async with running(server.service(context_window=window)) as service:
        message = whole(await ask(Carrier(service), "[forever]", max_tokens=max_tokens))
    assert message.stop_reason == reason


async def test_an_answer_of_no_tokens_only_reads_its_prompt(carrier: Carrier) -> None:
    message = whole(await ask(carrier, max_tokens=0, thinking={"type": "adaptive"}))
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert message.usage.output_tokens == 0
    assert message.usage.input_tokens == await count(carrier, thinking={"type": "adaptive"})
    said = events(await ask(carrier, max_tokens=0, stream=True))
    assert [event.type for event in said] == ["message_start", "message_delta", "message_stop"]
    assert (said[1].delta.stop_reason, said[1].usage.output_tokens) == ("max_tokens", 0)
    assert said[0].message.usage.output_tokens == 0


async def test_a_stream_begins_with_its_message_before_any_token(carrier: Carrier) -> None:
    start = events(await ask(carrier, stream=True))[0]
    assert start.type == "message_start"
    assert start.message.content == [] and start.message.stop_reason is None
    assert start.message.usage.input_tokens > 0 and start.message.usage.output_tokens == 0


async def test_the_three_counts_of_input_add_up_to_what_was_counted(carrier: Carrier) -> None:
    tokens = await count(carrier)
    for reply in [await ask(carrier), await ask(carrier)]:
        usage = whole(reply).usage
        assert tokens == (
            usage.input_tokens
            + (usage.cache_read_input_tokens or 0)
            + (usage.cache_creation_input_tokens or 0)
        )


async def test_a_count_covers_the_system_and_the_tools(carrier: Carrier) -> None:
    bare = await count(carrier)
    assert await count(carrier, tools=[]) == bare
    assert await count(carrier, system="be brief") == bare + len("system: be brief\n")
    assert await count(carrier, tools=[TOOL]) > bare + len(json.dumps(TOOL))
    assert await count(carrier, tools=[TOOL], tool_choice={"type": "none"}) == bare


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "between_tools"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"enable_thinking": True},
        ),
        (
            {"output_config": {"effort": "max"}},
            {"enable_thinking": False, "reasoning_effort": "xhigh"},
        ),
        (
            {"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}},
            {"enable_thinking": False},
        ),
    ],
)
async def test_the_template_hears_of_thinking_and_effort(
    carrier: Carrier, fields: dict[str, Any], shown: dict[str, Any]
) -> None:
    turn = len("user: hi\nassistant: ")
    assert await count(carrier, **fields) == turn + len(f"arguments: {json.dumps(shown)}\n")


async def test_what_the_server_was_told_wins_over_silence_and_a_request_over_both() -> None:
    async with running(server.service()) as service:
        carrier = Carrier(service, template_arguments={"enable_thinking": True})
        silent = await count(carrier)
        off = await count(carrier, thinking={"type": "disabled"})
    assert off - silent == len("false") - len("true")


@pytest.mark.parametrize("name", [None, server.MODEL_ID, "scripted", "claude-opus-4-8"])
async def test_every_claude_is_the_served_model(carrier: Carrier, name: str | None) -> None:
    assert whole(await ask(carrier, model=name)).model == server.MODEL_ID


async def test_what_is_not_kept_to_is_told_in_a_warning(carrier: Carrier) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = await ask(carrier, tools=[search, TOOL], thinking=thinking)
    for said in ("web_search_20250305", "budget_tokens"):
        assert said in reply.headers["warning"]
    assert "warning" not in (await ask(carrier)).headers


async def test_clients_words_cannot_break_a_header(carrier: Carrier) -> None:
    kinds = ["é\r\nx: y", "z" * 5000, *(f"kind_{i}" for i in range(20))]
    reply = await ask(carrier, tools=[{"type": kind, "name": "x"} for kind in kinds])
    said = reply.headers["warning"]
    assert said.isascii() and said.isprintable() and len(said) < 600
    assert said.endswith(' and 14 more"')


async def test_an_earlier_answer_that_is_not_known_is_told_in_diagnostics(
    carrier: Carrier,
) -> None:
    first = whole(await ask(carrier, diagnostics={"previous_message_id": None}))
    assert first.diagnostics is None
    same = whole(await ask(carrier, diagnostics={"previous_message_id": first.id}))
    assert same.diagnostics is None
    lost = whole(await ask(carrier, diagnostics={"previous_message_id": "msg_other"}))
    assert lost.diagnostics is not None and lost.diagnostics.cache_miss_reason is not None
    assert lost.diagnostics.cache_miss_reason.type == "previous_message_not_found"
    assert "diagnostics" not in (await ask(carrier)).json


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": "hi"}, "messages: expected"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"effort": "heroic"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "yaml"}}, "output_format.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nobody"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
        ({"container": "container_1"}, "container"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_by_name_before_any_status(
    carrier: Carrier, fields: dict[str, Any], said: str, stream: bool
) -> None:
    reply = await ask(carrier, **{"stream": stream, **fields})
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"
    assert said in reply.error["message"]
    assert reply.json["type"] == "error"
    assert reply.json["request_id"] == reply.headers["request-id"]


# How deep is too deep depends on Python: 3.11 does not read 320, 3.13 does.
@pytest.mark.parametrize(("depth", "statuses"), [(100, [200]), (320, [200, 400]), (5000, [400])])
async def test_documents_in_documents_are_read_or_refused(
    carrier: Carrier, depth: int, statuses: list[int]
) -> None:
    opening = '{"type":"document","source":{"type":"content","content":['
    nested = opening * depth + '{"type":"text","text":"x"}' + "]}}" * depth
    body = f'{{"max_tokens":1,"messages":[{{"role":"user","content":[{nested}]}}]}}'
    reply = await carrier.post("/v1/messages", body.encode())
    assert reply.status in statuses


async def test_a_missing_limit_is_refused(carrier: Carrier) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    reply = await carrier.post("/v1/messages", body)
    assert (reply.status, reply.error["message"]) == (400, "max_tokens is missing")


async def test_a_picture_names_the_model_and_where_it_stands(carrier: Carrier) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    for reply in (await ask(carrier, [image]), await ask(carrier, [image], stream=True)):
        assert reply.status == 400
        assert server.MODEL_ID in reply.error["message"]
        assert "messages[0].content[0]" in reply.error["message"]


@pytest.mark.parametrize(
    ("service", "fields", "status", "kind"),
    [
        ({}, {"model": "gpt-5"}, 404, "not_found_error"),
        ({"limits": Limits(max_rows=1, max_waiting=-1)}, {}, 429, "rate_limit_error"),
        ({"context_window": 16}, {}, 400, "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_have_anthropics_statuses_and_types(
    service: dict[str, Any], fields: dict[str, Any], status: int, kind: str, stream: bool
) -> None:
    async with running(server.service(**service)) as running_service:
        await running_service.model()
        reply = await ask(Carrier(running_service), stream=stream, **fields)
    assert (reply.status, reply.error["type"]) == (status, kind)


async def test_a_prompt_that_is_too_long_says_by_how_much(carrier: Carrier) -> None:
    reply = await ask(carrier, "x" * 5000)
    assert reply.status == 400
    assert "prompt is too long: 50" in reply.error["message"]
    assert "tokens > 4095 maximum" in reply.error["message"]


def begun(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]}


@pytest.mark.parametrize("tools", [[], [TOOL]])
async def test_an_answer_goes_on_from_its_beginning(carrier: Carrier, tools: list[Any]) -> None:
    said = begun("[say: Paris]", "It is")
    message = whole(await ask(carrier, tools=tools, **said))
    (block,) = message.content
    assert block.type == "text" and block.text == " Paris"
    (streamed,) = gather(await ask(carrier, tools=tools, stream=True, **said)).content
    assert streamed.type == "text" and streamed.text == " Paris"
    bare = whole(await ask(carrier, "[say: Paris]", tools=tools))
    assert message.usage.input_tokens == bare.usage.input_tokens + len("It is")


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"output_config": {"format": {"type": "json_object"}}},
        {"chat_template_kwargs": {"opens_thought": True}},
    ],
)
async def test_where_its_beginning_would_not_be_its_text_an_answer_is_not_begun(
    carrier: Carrier, fields: Any
) -> None:
    refused = await ask(carrier, **begun("hi", "It is"), **fields)
    assert refused.status == 400
    assert "must end with a user message" in refused.error["message"]


async def test_a_prompt_that_is_too_long_is_counted_all_the_same(carrier: Carrier) -> None:
    bare = await count(carrier, "")
    assert await count(carrier, "x" * 5000) == bare + 5000


async def test_what_is_not_there_and_who_may_not_ask_are_told_in_the_same_words() -> None:
    async with running(server.service()) as service:
        await service.model()
        carrier = Carrier(service, Access(api_key="k"))
        bare = await ask(carrier)
        keyed = await carrier.get("/v1/messages/batches", x_api_key="k")
        method = await carrier.get("/v1/messages", x_api_key="k")
        broken = await carrier.post("/v1/messages", b"{", x_api_key="k")
        model = await carrier.get("/v1/models/other", x_api_key="k", **VERSION)
    assert (bare.status, bare.error["type"]) == (401, "authentication_error")
    assert (keyed.status, keyed.error["type"]) == (404, "not_found_error")
    assert (method.status, method.error["type"]) == (405, "invalid_request_error")
    assert (broken.status, broken.error["type"]) == (400, "invalid_request_error")
    assert (model.status, model.error["type"]) == (404, "not_found_error")
    assert {reply.json["type"] for reply in (bare, keyed, method, broken, model)} == {"error"}


async def test_a_draining_server_is_overloaded(carrier: Carrier) -> None:
    carrier.front.draining = True
    reply = await ask(carrier)
    assert (reply.status, reply.error["type"]) == (529, "overloaded_error")
    assert "retry-after" in reply.headers


async def test_a_row_that_breaks_ends_its_stream_with_an_error_event(carrier: Carrier) -> None:
    reply = await ask(carrier, "[break step]", stream=True)
    assert reply.status == 200
    name, data = reply.records[-1].decode().rstrip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"
    assert b"message_stop" not in reply.body
    assert (await ask(carrier, "[break step]")).status == 500
