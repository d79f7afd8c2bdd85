from __future__ import annotations

from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.compute import GREETING
from mlxbun.domain.scheduling import Limits

pytestmark = pytest.mark.anyio
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}

CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'


def whole(reply: Reply) -> ChatCompletion:
    """Parse an answer with the official types, strictly: a missing field is an error."""
    assert reply.status == 200, reply.body
    return ChatCompletion.model_validate_json(reply.body, strict=True)


def gather(reply: Reply) -> ChatCompletion:
    """Gather a stream as the official SDK does."""
    assert reply.status == 200, reply.body
    state: Any = ChatCompletionStreamState()
    for chunk in reply.chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    completion: ChatCompletion = state.get_final_completion()
    return completion


async def test_an_answer_is_a_completion_of_the_official_types(carrier: Carrier) -> None:
    completion = whole(await carrier.chat())
    choice = completion.choices[0]
    assert choice.message.content == GREETING
    assert choice.finish_reason == "stop"
    assert completion.id.startswith("chatcmpl-")
    assert completion.model == server.MODEL_ID
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(GREETING.encode()) + 1  # and the end token
    prompt = len(b"user: hi\nassistant: ")
    assert completion.usage.prompt_tokens == prompt
    assert completion.usage.total_tokens == prompt + completion.usage.completion_tokens


async def test_a_stream_gathers_to_the_whole_answer(carrier: Carrier) -> None:
    streamed = gather(await carrier.chat(stream=True, stream_options={"include_usage": True}))
    plain = whole(await carrier.chat())
    own: Any = {"exclude": {"id", "created"}, "exclude_none": True}
    assert streamed.model_dump(**own) == plain.model_dump(**own)


async def test_a_stream_is_a_role_then_texts_then_a_finish(carrier: Carrier) -> None:
    reply = await carrier.chat("[say:añb]", stream=True)
    deltas = [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in reply.chunks]
    assert deltas[0] == ({"role": "assistant", "content": ""}, None)
    texts = [delta["content"] for delta, _ in deltas[1:-1]]
    assert "".join(texts) == "añb"
    assert all(texts)
    assert deltas[-1] == ({}, "stop")
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in reply.chunks}) == 1
    assert not any("usage" in c for c in reply.chunks)
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_usage_comes_once_and_last_when_asked_for(carrier: Carrier) -> None:
    chunks = (await carrier.chat(stream=True, stream_options={"include_usage": True})).chunks
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_n_answers_have_seeds_of_their_own(carrier: Carrier, stream: bool) -> None:
    """Answer i is what seed + i alone gives, and a stream interleaves the same answers."""
    alone = [
        whole(await carrier.chat(temperature=1, seed=7 + i)).choices[0].message.content
        for i in range(3)
    ]
    reply = await carrier.chat(temperature=1, seed=7, n=3, stream=stream)
    completion = gather(reply) if stream else whole(reply)
    assert [c.index for c in completion.choices] == [0, 1, 2]
    assert [c.message.content for c in completion.choices] == alone
    assert len(set(alone)) == 3


async def test_without_a_seed_every_request_draws_anew(carrier: Carrier) -> None:
    texts = {whole(await carrier.chat(temperature=1)).choices[0].message.content for _ in range(4)}
    assert len(texts) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", [" wörld", ["nope", " wörld"]])
async def test_a_stop_string_ends_an_answer_unseen(
    carrier: Carrier, stream: bool, stop: Any
) -> None:
    reply = await carrier.chat(stop=stop, stream=stream)
    completion = gather(reply) if stream else whole(reply)
    assert completion.choices[0].message.content == "Hello,"
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 3}, 3),
        ({"max_tokens": 2, "max_completion_tokens": 3}, 2),
        ({"max_tokens": 3, "max_completion_tokens": 2}, 2),
        ({"max_tokens": 3, "max_completion_tokens": None}, 3),
    ],
)
async def test_the_smaller_limit_wins(
    carrier: Carrier, limits: dict[str, Any], tokens: int
) -> None:
    completion = whole(await carrier.chat(**limits))
    assert completion.choices[0].message.content == GREETING[:tokens]
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_cover_the_text_and_only_when_asked(carrier: Carrier, stream: bool) -> None:
    reply = await carrier.chat("[say:añb]", logprobs=True, top_logprobs=2, stream=stream)
    completion = gather(reply) if stream else whole(reply)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert b"".join(bytes(e.bytes or ()) for e in logprobs.content) == "añb".encode()
    assert [len(e.top_logprobs) for e in logprobs.content] == [2] * 4
    plain = await carrier.chat("[say:añb]", stream=stream)
    assert (gather(plain) if stream else whole(plain)).choices[0].logprobs is None


async def test_top_logprobs_alone_ask_for_logprobs(carrier: Carrier) -> None:
    logprobs = whole(await carrier.chat(top_logprobs=1)).choices[0].logprobs
    assert logprobs is not None and logprobs.content


async def test_tools_are_shown_and_none_hides_them(carrier: Carrier) -> None:
    with_tools = await carrier.chat(tools=[TOOL])
    hidden = await carrier.chat(tools=[TOOL], tool_choice="none")
    without = await carrier.chat()
    tokens = [reply.json["usage"]["prompt_tokens"] for reply in (with_tools, hidden, without)]
    assert tokens[0] > tokens[1] == tokens[2]
    reply = await carrier.chat(f"[say:{CALL}]", tools=[TOOL], tool_choice="none")
    assert whole(reply).choices[0].message.content == CALL


async def test_thoughts_and_calls_have_places_of_their_own(carrier: Carrier) -> None:
    said = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    reply = await carrier.chat(f"[say:{said}]", tools=[TOOL])
    choice = whole(reply).choices[0]
    message = reply.json["choices"][0]["message"]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert message["reasoning_content"] == "Hm." and "reasoning" not in message
    calls: Any = choice.message.tool_calls
    assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
        ("function", "get_weather", '{"city": "Rome"}')
    ] * 2
    details: Any = whole(reply).usage
    assert 0 < details.completion_tokens_details.reasoning_tokens < details.completion_tokens


async def test_an_answer_of_calls_alone_has_no_content(carrier: Carrier) -> None:
    message = (await carrier.chat(f"[say:{CALL}]", tools=[TOOL])).json["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 1
    assert "reasoning_content" not in message


async def test_ids_of_calls_are_unlike_all_others(carrier: Carrier) -> None:
    ids: list[str] = []
    for _ in range(2):
        reply = await carrier.chat(f"[say:{CALL}{CALL}]", tools=[TOOL], n=2)
        for choice in reply.json["choices"]:
            ids += [call["id"] for call in choice["message"]["tool_calls"]]
    assert len(ids) == len(set(ids)) == 8 and all(i.startswith("call_") for i in ids)


@pytest.mark.parametrize("logprobs", [False, True])
async def test_a_stream_of_calls_gathers_to_the_whole_answer(
    carrier: Carrier, logprobs: bool
) -> None:
    said = f"<think>Hm.</think>I look.{CALL}{CALL}"
    asked: Any = {"tools": [TOOL], "n": 2, "seed": 1, "logprobs": logprobs}
    plain = whole(await carrier.chat(f"[say:{said}]", **asked)).model_dump()
    streamed = gather(await carrier.chat(f"[say:{said}]", stream=True, **asked)).model_dump()
    for one, other in zip(plain["choices"], streamed["choices"], strict=True):
        for call in (*one["message"]["tool_calls"], *other["message"]["tool_calls"]):
            assert call.pop("id").startswith("call_")
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
        one["message"].pop("parsed", None)
        other["message"].pop("parsed", None)
        assert other == one


async def test_the_first_record_of_a_call_has_its_id_type_and_name(carrier: Carrier) -> None:
    """Clients lose a call without them, and double a name that comes twice."""
    reply = await carrier.chat(f"[say:{CALL}{CALL}]", tools=[TOOL], stream=True)
    deltas = [d for c in reply.chunks for d in c["choices"][0]["delta"].get("tool_calls", ())]
    first, arguments = deltas[0], deltas[1]
    assert first.keys() == {"index", "id", "type", "function"}
    assert first["function"] == {"name": "get_weather", "arguments": ""}
    assert arguments == {"index": 0, "function": {"arguments": '{"city": "Rome"}'}}
    assert [d["index"] for d in deltas] == [0, 0, 1, 1]
    assert reply.chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_thoughts_of_a_stream_come_before_the_text(carrier: Carrier) -> None:
    reply = await carrier.chat("[say:<think>Hm.</think>Yes]", stream=True)
    deltas = [c["choices"][0]["delta"] for c in reply.chunks]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "Hm."
    assert "".join(d.get("content", "") for d in deltas) == "Yes"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_cut_off_is_neither_a_call_nor_text(
    carrier: Carrier, stream: bool
) -> None:
    reply = await carrier.chat(f"[say:{CALL}]", tools=[TOOL], max_tokens=40, stream=stream)
    said = [c["choices"][0] for c in (reply.chunks if stream else [reply.json])]
    messages = [choice["delta" if stream else "message"] for choice in said]
    assert not any("tool_calls" in message for message in messages)
    assert "".join(message.get("content") or "" for message in messages) == ""
    assert said[-1]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
async def test_without_parallel_calls_an_answer_ends_after_its_first(
    carrier: Carrier, stream: bool
) -> None:
    reply = await carrier.chat(
        f"[say:Well.{CALL}{CALL} and more]",
        tools=[TOOL],
        parallel_tool_calls=False,
        stream=stream,
        stream_options={"include_usage": True} if stream else None,
    )
    completion = gather(reply) if stream else whole(reply)
    choice, usage = completion.choices[0], completion.usage
    assert choice.message.content == "Well." and len(choice.message.tool_calls or ()) == 1
    assert choice.finish_reason == "tool_calls"
    assert usage is not None and usage.completion_tokens < len(f"Well.{CALL}{CALL}")


async def test_stop_strings_do_not_cut_calls(carrier: Carrier) -> None:
    reply = await carrier.chat(f"[say:{CALL}]", tools=[TOOL], stop=["Rome", "city"])
    assert whole(reply).choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"reasoning_effort": "none"}, '{"enable_thinking": false, "reasoning_effort": "none"}'),
        ({"reasoning": {"effort": "low"}}, '{"enable_thinking": true, "reasoning_effort": "low"}'),
        ({"chat_template_kwargs": {"enable_thinking": False}}, '{"enable_thinking": false}'),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
            '{"enable_thinking": true, "reasoning_effort": "none"}',
        ),
    ],
)
async def test_the_template_hears_of_effort_and_of_its_own_arguments(
    carrier: Carrier, fields: dict[str, Any], shown: str
) -> None:
    bare = whole(await carrier.chat()).usage
    told = whole(await carrier.chat(**fields)).usage
    assert bare is not None and told is not None
    assert told.prompt_tokens - bare.prompt_tokens == len(f"arguments: {shown}\n")


async def test_a_request_wins_over_the_servers_template_arguments() -> None:
    async with running(server.service()) as service:
        carrier = Carrier(service, template_arguments={"enable_thinking": False})
        tokens = [
            (await carrier.chat(chat_template_kwargs=kwargs)).json["usage"]["prompt_tokens"]
            for kwargs in (None, {"enable_thinking": True})
        ]
    assert tokens[0] - tokens[1] == len("false") - len("true")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "alien", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        ({"temperature": 9}, "temperature", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
        ({"stop": ["x"] * 257}, "stop", "invalid_value"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"guided_regex": "(a"}, "guided_regex", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name", "invalid_value"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages",
         "invalid_value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_served_is_refused_by_name_before_any_status(
    carrier: Carrier, fields: dict[str, Any], param: str, code: str, stream: bool
) -> None:
    reply = await carrier.chat(**{"stream": stream, **fields})
    assert reply.status == 400
    assert (reply.error["param"], reply.error["code"]) == (param, code)
    assert reply.headers["content-type"] == "application/json"


async def test_a_template_that_refuses_is_quoted(carrier: Carrier) -> None:
    reply = await carrier.chat("[template refuses]")
    assert reply.status == 400
    assert "the chat template says: no" in reply.error["message"]


@pytest.mark.parametrize("name", [None, server.MODEL_ID, "scripted"])
async def test_the_served_model_answers_to_its_id_its_last_part_and_none(
    carrier: Carrier, name: str | None
) -> None:
    assert whole(await carrier.chat(model=name)).model == server.MODEL_ID


async def test_another_model_is_not_found(carrier: Carrier) -> None:
    reply = await carrier.chat(model="gpt-5")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_told_before_any_status(stream: bool) -> None:
    async with running(server.service(limits=Limits(max_rows=1, max_waiting=0))) as service:
        reply = await Carrier(service).chat(n=2, stream=stream)
    assert (reply.status, reply.error["code"]) == (429, "queue_full")
    assert int(reply.headers["retry-after"]) > 0


async def test_a_row_that_breaks_ends_its_stream_with_an_error_record(carrier: Carrier) -> None:
    reply = await carrier.chat("[break step]", stream=True)
    assert reply.status == 200
    assert b'"code":"engine_failed"' in reply.records[-1]
    assert b"[DONE]" not in reply.body
    assert (await carrier.chat("[break step]")).status == 500
    assert whole(await carrier.chat()).choices[0].message.content == GREETING
