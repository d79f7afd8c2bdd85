"""Fields together: what one asks for is not lost where another is asked for, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from doubles.carrier import Carrier, Reply

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "look", "parameters": SCHEMA}
CLAUDE = {"name": "look", "input_schema": SCHEMA}


def call(value: str) -> str:
    return f'<tool_call>{{"name": "look", "arguments": {{"a": "{value}"}}}}</tool_call>'


def joined(chunks: Sequence[Any]) -> Any:
    """Return the answer that the official client makes of a stream."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    return state.get_final_completion().model_dump()


def choice(said: Any) -> Any:
    """Return what must be the same, however it was sent."""
    message = said["message"]
    calls = [c["function"] for c in message.get("tool_calls") or ()]
    logprobs = (said["logprobs"] or {}).get("content") or []  # none of nothing
    return (
        said["index"],
        message["content"] or "",
        message.get("reasoning_content"),
        [(c["name"], c["arguments"]) for c in calls],
        said["finish_reason"],
        logprobs,
    )


SAYS = ("<think>hm, wörld</think>Let me see 👋." + call("x") + call("y"), "plain", call("z"), "")


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("asked", [{"logprobs": True}, {"top_logprobs": 2}, {}], ids=str)
async def test_a_stream_of_all_that_can_be_asked_for_is_what_the_whole_answer_is(
    carrier: Carrier, says: str, asked: dict[str, Any]
) -> None:
    fields = {"n": 2, "tools": [TOOL], **asked}
    whole = (await carrier.chat(f"[say:{says}]", **fields)).json
    usage = {"include_usage": True}
    streamed = await carrier.chat(f"[say:{says}]", stream=True, stream_options=usage, **fields)
    told = joined(streamed.chunks)
    assert [*map(choice, told["choices"])] == [*map(choice, whole["choices"])]
    assert streamed.chunks[-1]["usage"] == whole["usage"]
    entries = whole["choices"][0]["logprobs"]
    assert (entries is not None) == bool(asked)
    if entries is not None:  # the end token has none
        text = b"".join(bytes(entry["bytes"]) for entry in entries["content"])
        assert text.decode() == says, "an entry a token, markup and thoughts included"


@pytest.mark.parametrize("asked", [True, False, None])
async def test_usage_comes_once_where_it_is_asked_for_and_else_never(
    carrier: Carrier, asked: bool | None
) -> None:
    options = None if asked is None else {"include_usage": asked}
    fields = {"n": 2, "tools": [TOOL], "logprobs": True, "stream_options": options}
    reply = await carrier.chat(f"[say:{call('x')}]", stream=True, **fields)
    with_usage = [chunk for chunk in reply.chunks if chunk.get("usage")]
    assert [chunk["choices"] for chunk in with_usage] == ([[]] if asked else [])
    assert all(("usage" in chunk) == bool(asked) for chunk in reply.chunks)
    finishes = [c["finish_reason"] for chunk in reply.chunks for c in chunk["choices"]]
    assert [finish for finish in finishes if finish] == ["tool_calls"] * 2


async def test_the_calls_of_all_choices_have_ids_of_their_own(carrier: Carrier) -> None:
    reply = await carrier.chat(f"[say:{call('x') + call('y')}]", n=3, tools=[TOOL])
    calls = [c for said in reply.json["choices"] for c in said["message"]["tool_calls"]]
    assert len(calls) == len({c["id"] for c in calls}) == 6


async def test_one_call_is_one_in_every_choice(carrier: Carrier) -> None:
    fields = {"n": 2, "tools": [TOOL], "parallel_tool_calls": False, "logprobs": True}
    reply = await carrier.chat(f"[say:{call('x') + call('y')}]", **fields)
    for said in reply.json["choices"]:
        assert len(said["message"]["tool_calls"]) == 1
        assert said["finish_reason"] == "tool_calls"
        text = b"".join(bytes(entry["bytes"]) for entry in said["logprobs"]["content"])
        assert text.decode() == call("x"), "nothing is told of what is not shown"


def events(reply: Reply) -> list[Any]:
    lines = reply.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


async def test_a_response_has_the_log_probabilities_of_its_text_beside_thoughts_and_calls(
    carrier: Carrier,
) -> None:
    says = "<think>hm</think>Look: 👋" + call("x")
    body = {"input": f"[say:{says}]", "tools": [FLAT], "top_logprobs": 1, "temperature": 0}
    made = (await carrier.post("/v1/responses", body)).json
    thoughts, message, called = made["output"]
    assert (thoughts["type"], called["name"]) == ("reasoning", "look")
    part = message["content"][0]
    spoken = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
    assert spoken.decode() == part["text"] == "Look: 👋"
    streamed = events(await carrier.post("/v1/responses", body | {"stream": True}))
    deltas = [e for e in streamed if e["type"] == "response.output_text.delta"]
    assert [entry for e in deltas for entry in e["logprobs"]] == part["logprobs"]
    assert streamed[-1]["response"]["usage"] == made["usage"]


@pytest.mark.parametrize("stop", ["STOP", "ñS", "👋", "never"])
async def test_the_bytes_of_all_log_probabilities_are_the_text_that_a_stop_string_leaves(
    carrier: Carrier, stop: str
) -> None:
    says = "añSTO añSTOP 👋 on"
    expected = says.partition(stop)[0]

    def joined_bytes(entries: Sequence[Any]) -> str:
        return b"".join(bytes(entry["bytes"]) for entry in entries).decode()

    for stream in (False, True):
        chat = await carrier.chat(f"[say:{says}]", stop=stop, logprobs=True, stream=stream)
        said = (joined(chat.chunks) if stream else chat.json)["choices"][0]
        entries = said["logprobs"]["content"]
        assert joined_bytes(entries) == said["message"]["content"] == expected
        if stream:
            text, told = "", b""
            for chunk in chat.chunks:
                choice = chunk["choices"][0]
                text += choice["delta"].get("content") or ""
                for entry in (choice["logprobs"] or {}).get("content") or ():
                    told += bytes(entry["bytes"])
                assert text.encode().startswith(told), "no entry comes before its text"
    body = {"input": f"[say:{says}]", "stop": stop, "top_logprobs": 1}
    part = (await carrier.post("/v1/responses", body)).json["output"][0]["content"][0]
    assert joined_bytes(part["logprobs"]) == part["text"] == expected
    completed = (await carrier.complete(f"[say:{says}]", stop=stop, logprobs=0)).json
    lists = completed["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == len(lists["text_offset"]) == len(expected.encode())


STOPPED = "<think>one STOP</think>two" + call("a STOP") + "three STOP four"


async def test_a_stop_string_ends_text_and_cuts_neither_thoughts_nor_calls(
    carrier: Carrier,
) -> None:
    chat = await carrier.chat(f"[say:{STOPPED}]", stop="STOP", tools=[TOOL], n=2)
    for said in chat.json["choices"]:
        message = said["message"]
        assert message["reasoning_content"] == "one STOP"
        assert message["content"] == "twothree "
        assert message["tool_calls"][0]["function"]["arguments"] == '{"a": "a STOP"}'
        assert said["finish_reason"] == "stop"
    response = {"input": f"[say:{STOPPED}]", "stop": "STOP", "tools": [FLAT]}
    made = (await carrier.post("/v1/responses", response)).json
    assert [item["type"] for item in made["output"]] == [
        "reasoning", "message", "function_call", "message",
    ]  # fmt: skip
    assert made["output"][-1]["content"][0]["text"] == "three "
    messages = {
        "messages": [{"role": "user", "content": f"[say:{STOPPED}]"}],
        "stop_sequences": ["STOP"],
        "tools": [CLAUDE],
        "max_tokens": 300,
    }
    told = (await carrier.post("/v1/messages", messages)).json
    assert [block["type"] for block in told["content"]] == ["thinking", "text", "tool_use", "text"]
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "STOP")


async def test_a_call_that_is_cut_off_ends_with_length_in_every_protocol(carrier: Carrier) -> None:
    says, enough = f"[say:ok{call('x')}]", 30
    chat = await carrier.chat(says, tools=[TOOL], max_tokens=enough, n=2, logprobs=True)
    for said in chat.json["choices"]:
        assert said["finish_reason"] == "length" and "tool_calls" not in said["message"]
        assert said["message"]["content"] == "ok"  # and no markup
        assert len(said["logprobs"]["content"]) == enough
    body = {"tools": [FLAT], "max_output_tokens": enough, "input": says}
    made = (await carrier.post("/v1/responses", body)).json
    assert made["status"] == "incomplete"
    assert {item["type"] for item in made["output"]} == {"message"}
    asked = {"messages": [{"role": "user", "content": says}], "max_tokens": enough}
    told = (await carrier.post("/v1/messages", asked | {"tools": [CLAUDE]})).json
    assert told["stop_reason"] == "max_tokens"
    assert {block["type"] for block in told["content"]} == {"text"}


@pytest.mark.parametrize("logprobs", [None, 0, 2])
async def test_completions_of_several_prompts_stream_what_they_answer_whole(
    carrier: Carrier, logprobs: int | None
) -> None:
    prompts = ["[say:ab👋STOP no]", "[say:c]"]
    fields = {"n": 2, "logprobs": logprobs, "stop": ["STOP"], "echo": logprobs is None}
    whole = (await carrier.complete(prompts, **fields)).json
    usage = {"include_usage": True}
    chunks = (await carrier.complete(prompts, stream=True, stream_options=usage, **fields)).chunks
    assert [chunk["usage"] for chunk in chunks if chunk["usage"]] == [whole["usage"]]
    for i, said in enumerate(whole["choices"]):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == i]
        assert "".join(c["text"] for c in mine) == said["text"]
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [said["finish_reason"]]
        told = [c["logprobs"] for c in mine if c["logprobs"]]
        for name in ("tokens", "token_logprobs", "text_offset"):
            entries = [entry for lists in told for entry in lists[name]]
            assert entries == ((said["logprobs"] or {}).get(name) or [])
