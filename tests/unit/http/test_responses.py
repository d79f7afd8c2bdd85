from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import openai
import pytest
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

from doubles import server
from doubles.carrier import Carrier, Reply, running
from doubles.compute import GREETING
from mlxbun.adapters.http.front import Opened
from mlxbun.adapters.http.request import Head, Request
from mlxbun.domain.scheduling import Limits

pytestmark = pytest.mark.anyio
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOL = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}
WAIT = {"type": "function", "name": "wait", "parameters": {"type": "object"}}
GROUP = {"type": "namespace", "name": "agents", "description": "d", "tools": [WAIT]}
PATCH = {"type": "custom", "name": "patch", "description": "d"}
FOREVER = {"input": "[forever]", "stream": True}


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


TALK = f"""[say:<think>hm</think>Let's see.{call("run", '{"a": 1}')}]"""


async def create(carrier: Carrier, said: Any = "hi", **fields: Any) -> Reply:
    return await carrier.post("/v1/responses", {"input": said, "temperature": 0, **fields})


async def opened(carrier: Carrier, body: Any) -> Opened:
    """Begin a stream; whoever asks reads it, or leaves it."""
    head = Head("POST", "/v1/responses", {}, "req")
    handler: Any = carrier.front.open(head)
    stream = await carrier.front.respond(handler, Request(head, json.dumps(body).encode()))
    assert isinstance(stream, Opened), stream
    return stream


def id_of(stream: Opened) -> str:
    response_id: str = json.loads(stream.first.split(b"data: ")[1].split(b"\n")[0])["response"][
        "id"
    ]
    return response_id


def whole(reply: Reply) -> Response:
    """Parse an answer with the official types, strictly: a missing field is an error."""
    assert reply.status == 200, reply.body
    return Response.model_validate_json(reply.body, strict=True)


def events(reply: Reply) -> list[Any]:
    """Return a stream's events, each as the official types have it and named by its type."""
    assert reply.status == 200, reply.body
    records = reply.body.decode().split("\n\n")
    assert records.pop() == ""
    said = []
    for record in records:
        name, data = record.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
        said.append(EVENT.validate_json(data.removeprefix("data: "), strict=True))
    assert [event.sequence_number for event in said] == list(range(len(said)))
    return said


def gather(reply: Reply) -> Any:
    """Gather a stream as the official SDK does; return its last response."""
    state: Any = ResponseStreamState(input_tools=[], text_format=openai.omit)
    for event in events(reply):
        state.handle_event(event)
    return state._completed_response


def plain(response: Any) -> Any:
    """Return what two answers to one request have in common."""
    said = response.model_dump(exclude_none=True)
    for name in ("id", "created_at", "completed_at"):
        said.pop(name)
    for item in said["output"]:
        item.pop("id")
        item.pop("call_id", None)
        item.pop("parsed_arguments", None)
        for part in item.get("content", ()):
            part.pop("parsed", None)
    return said


async def test_an_answer_is_a_response_of_the_official_types(carrier: Carrier) -> None:
    asked: Any = {"instructions": "be brief", "metadata": {"a": "b"}, "prompt_cache_key": "k"}
    response = whole(await create(carrier, **asked))
    assert response.prompt_cache_key == "k"
    assert response.output_text == GREETING
    assert (response.status, response.error, response.incomplete_details) == ("completed",) + (
        None,) * 2  # fmt: skip
    assert (response.model, response.instructions) == (server.MODEL_ID, "be brief")
    assert response.metadata == {"a": "b"}
    (message,) = response.output
    assert message.id is not None and message.id.startswith("msg_")
    usage = response.usage
    assert usage is not None
    assert usage.input_tokens == len(b"system: be brief\nuser: hi\nassistant: ")
    assert usage.output_tokens == len(GREETING.encode()) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_a_stream_gathers_to_the_whole_answer(carrier: Carrier) -> None:
    tools = [TOOL, GROUP]
    streamed = gather(await create(carrier, TALK, tools=tools, stream=True))
    answer = whole(await create(carrier, TALK, tools=tools))
    assert plain(streamed) == plain(answer)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]


async def test_a_stream_has_the_protocols_order(carrier: Carrier) -> None:
    reply = await create(carrier, TALK, tools=[TOOL], stream=True)
    kinds = [event.type.removeprefix("response.") for event in events(reply)]
    once = [kind for i, kind in enumerate(kinds) if kind != kinds[i - 1] or i == 0]
    assert once == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    added = [e for e in events(reply) if e.type == "response.output_item.added"]
    assert [e.output_index for e in added] == [0, 1, 2]
    assert added[2].item.arguments == "" and added[2].item.status == "in_progress"
    assert reply.headers["content-type"].startswith("text/event-stream")


async def test_the_first_record_says_that_it_began_before_anything_was_generated(
    carrier: Carrier,
) -> None:
    first = (await create(carrier, stream=True)).records[0].decode()
    assert first.count("event: ") == 2
    assert first.startswith("event: response.created\n")
    assert "event: response.in_progress\n" in first


async def test_a_call_of_a_group_and_a_call_of_free_text_come_back_as_their_clients_know_them(
    carrier: Carrier,
) -> None:
    say = f"""[say:{call("wait")}{call("patch", '{"input": "*** a"}')}]"""
    for stream in (False, True):
        reply = await create(carrier, say, tools=[GROUP, PATCH], stream=stream)
        response: Any = (gather if stream else whole)(reply)
        wait, patch = response.output
        assert (wait.type, wait.name, wait.namespace) == ("function_call", "wait", "agents")
        assert wait.arguments == "{}" and wait.call_id.startswith("call_")
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** a")


SHELLS: list[Any] = [{"type": "local_shell"}, {"type": "shell", "environment": {"type": "local"}},
                     {"type": "apply_patch"}]  # fmt: skip
SHELL_CALLS = (
    call("local_shell", '{"command": "ls"}')  # a ] would end what is said
    + call("shell", '{"commands": "pwd"}')
    + call("apply_patch", '{"type": "update_file", "path": "a", "diff": "-a\\n+b"}')
)


async def test_tools_that_clients_run_are_called_as_their_clients_know_them(
    carrier: Carrier,
) -> None:
    for stream in (False, True):
        reply = await create(carrier, f"[say:{SHELL_CALLS}]", tools=SHELLS, stream=stream)
        assert "warning" not in reply.headers
        response: Any = (gather if stream else whole)(reply)
        local, shell, patch = response.output
        assert local.type == "local_shell_call"
        assert local.action.command == ["bash", "-lc", "ls"]
        assert (shell.type, shell.action.commands) == ("shell_call", ["pwd"])
        assert (patch.type, patch.operation.diff) == ("apply_patch_call", "-a\n+b")
        assert {item.status for item in response.output} == {"completed"}
    outputs = [
        {"type": "local_shell_call_output", "id": local.call_id, "output": "a"},
        {"type": "shell_call_output", "call_id": shell.call_id, "output": [
            {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "apply_patch_call_output", "call_id": patch.call_id, "status": "completed",
         "output": "[say:done]"},
    ]  # fmt: skip
    after = await create(carrier, outputs, tools=SHELLS, previous_response_id=response.id)
    assert whole(after).output_text == "done"


async def test_a_call_of_a_clients_tool_that_is_cut_off_is_not_told(carrier: Carrier) -> None:
    said = f"[say:{SHELL_CALLS}]"
    fields: Any = {"tools": SHELLS[:1], "max_output_tokens": 30}
    response = whole(await create(carrier, said, **fields))
    assert [item.type for item in response.output] == ["message"]
    streamed = events(await create(carrier, said, stream=True, **fields))
    added = [e.item.type for e in streamed if e.type == "response.output_item.added"]
    assert (added, streamed[-1].type) == (["message"], "response.incomplete")


async def test_a_clients_own_function_stands_in_the_place_of_a_tool_of_its_name(
    carrier: Carrier,
) -> None:
    own = {"type": "function", "name": "apply_patch", "parameters": {"type": "object"}}
    reply = await create(
        carrier, f"[say:{call('apply_patch')}]", tools=[{"type": "apply_patch"}, own]
    )
    assert "apply_patch" in reply.headers["warning"]
    assert [item.type for item in whole(reply).output] == ["function_call"]


async def test_an_answer_cut_in_its_text_is_incomplete_and_says_why(carrier: Carrier) -> None:
    response = whole(await create(carrier, max_output_tokens=2))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == GREETING[:2]
    assert events(await create(carrier, max_output_tokens=2, stream=True))[-1].type == (
        "response.incomplete"
    )


async def test_a_call_that_is_cut_off_is_never_done_and_no_item(carrier: Carrier) -> None:
    say = f"""[say:{call("run", '{"a": 1}')}]"""
    fields: Any = {"tools": [TOOL], "max_output_tokens": len(say) - 20}
    response = whole(await create(carrier, say, **fields))
    assert [item.type for item in response.output] == ["message"]
    reply = await create(carrier, say, stream=True, **fields)
    done = [e for e in events(reply) if e.type == "response.output_item.done"]
    assert [event.item.type for event in done] == ["message"]
    assert "response.function_call_arguments.done" not in {e.type for e in events(reply)}


async def test_one_call_at_most_when_calls_may_not_be_parallel(carrier: Carrier) -> None:
    say = f"[say:{call('run')}{call('run')} and more]"
    many = whole(await create(carrier, say, tools=[TOOL]))
    one = whole(await create(carrier, say, tools=[TOOL], parallel_tool_calls=False))
    assert [i.type for i in many.output] == ["function_call", "function_call", "message"]
    assert [i.type for i in one.output] == ["function_call"]
    assert (one.status, one.parallel_tool_calls) == ("completed", False)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_of_nothing_is_an_empty_message(carrier: Carrier, stream: bool) -> None:
    for say in ("[say:]", "[say:<think>hm</think>]"):
        response: Any = (gather if stream else whole)(await create(carrier, say, stream=stream))
        assert response.output_text == ""
        assert response.output[-1].type == "message"


async def test_thoughts_are_counted_and_given_back_sealed_when_asked_for(carrier: Carrier) -> None:
    say = "[say:<think>hmmm</think>yes]"
    response = whole(await create(carrier, say, include=["reasoning.encrypted_content"],
                                  reasoning={"summary": "auto", "effort": "max"}))  # fmt: skip
    thoughts: Any = response.output[0]
    assert thoughts.summary[0].text == "hmmm"
    assert response.usage is not None
    assert 4 <= response.usage.output_tokens_details.reasoning_tokens <= 4 + len("</think>")
    bare: Any = whole(await create(carrier, say)).output[0]
    assert bare.encrypted_content is None
    items = [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": [],
             "encrypted_content": thoughts.encrypted_content}]  # fmt: skip
    assert whole(await create(carrier, items)).status == "completed"


@pytest.mark.parametrize("asked", [{"top_logprobs": 2},
                                   {"include": ["message.output_text.logprobs"]}])  # fmt: skip
async def test_logprobs_have_an_entry_for_each_token_of_the_text(
    carrier: Carrier, asked: Any
) -> None:
    say = "[say:<think>hm</think>yes]"
    response: Any = whole(await create(carrier, say, **asked))
    (text,) = response.output[-1].content
    assert "".join(entry.token for entry in text.logprobs) == "yes"
    assert {len(entry.top_logprobs) for entry in text.logprobs} == {asked.get("top_logprobs", 0)}
    said = events(await create(carrier, say, stream=True, **asked))
    deltas = [e.logprobs for e in said if e.type == "response.output_text.delta"]
    assert "".join(entry.token for logprobs in deltas for entry in logprobs) == "yes"
    assert all(not t.logprobs for t in whole(await create(carrier, say)).output[-1].content)  # type: ignore[union-attr]


async def test_a_response_is_continued_by_its_id(carrier: Carrier) -> None:
    first = whole(await create(carrier, "[say:one]", instructions="be brief"))
    both = await create(carrier, "[say:two]", previous_response_id=first.id)
    second = whole(both)
    said = "system: be brief\nuser: [say:one]\nassistant: one\nuser: [say:two]\nassistant: "
    assert second.usage is not None and second.usage.input_tokens == len(said.encode())
    assert second.previous_response_id == first.id
    assert second.instructions == "be brief"
    third = whole(await create(carrier, [], previous_response_id=second.id, instructions="long"))
    assert third.instructions == "long"
    assert third.usage is not None
    said = said.replace("brief", "long") + "two\nassistant: "
    assert third.usage.input_tokens == len(said.replace("be long", "long").encode())


async def test_a_tool_loop_goes_on_by_id_and_with_the_whole_history_alike(carrier: Carrier) -> None:
    first = whole(await create(carrier, TALK, tools=[TOOL]))
    call: Any = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "ok [say:done]"}
    by_id = whole(await create(carrier, [result], tools=[TOOL], previous_response_id=first.id))
    own = [item.model_dump(exclude_none=True) for item in first.output]
    history = [{"role": "user", "content": TALK}, *own, result]
    sent = whole(await create(carrier, history, tools=[TOOL]))
    assert by_id.output_text == sent.output_text == "done"
    assert by_id.usage == sent.usage


async def test_an_item_is_named_by_its_id(carrier: Carrier) -> None:
    first = whole(await create(carrier, "[say:one]"))
    items = [{"role": "user", "content": "a"}, {"type": "item_reference", "id": first.output[0].id},
             {"role": "user", "content": "b"}]  # fmt: skip
    usage = whole(await create(carrier, items)).usage
    assert usage is not None
    assert usage.input_tokens == len(b"user: a\nassistant: one\nuser: b\nassistant: ")
    items[1] = {"type": "item_reference", "id": "msg_missing"}
    refused = await create(carrier, items)
    assert (refused.status, refused.error["param"]) == (404, "input[1].id")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_not_kept_cannot_be_continued(carrier: Carrier, stream: bool) -> None:
    gone = whole(await create(carrier, store=False))
    for response_id in (gone.id, "resp_missing"):
        refused = await create(carrier, previous_response_id=response_id, stream=stream)
        assert (refused.status, refused.error["code"]) == (404, "previous_response_not_found")
        assert refused.error["param"] == "previous_response_id"
        found = await carrier.get(f"/v1/responses/{response_id}")
        assert (found.status, found.error["code"]) == (404, "not_found")


async def test_a_response_is_read_and_deleted_by_its_id(carrier: Carrier) -> None:
    made = await create(carrier)
    path = f"/v1/responses/{made.json['id']}"
    assert (await carrier.get(path)).json == made.json
    streamed = await carrier.get(f"{path}?stream=true")
    assert (streamed.status, streamed.error["param"]) == (400, "stream")
    assert (await carrier.get("/stats")).json["response_store"]["entries"] == 1
    deleted = await carrier.send("DELETE", path, b"", {})
    assert deleted.json == {"id": made.json["id"], "object": "response", "deleted": True}
    for again in (await carrier.get(path), await carrier.send("DELETE", path, b"", {})):
        assert again.status == 404
    store = (await carrier.get("/stats")).json["response_store"]
    assert store == {"entries": 0, "bytes": 0, "max_bytes": 32 << 20, "ttl_ms": 3_600_000}


async def test_input_items_are_listed_page_by_page(carrier: Carrier) -> None:
    items = [{"role": "user", "content": str(i)} for i in range(5)]
    path = f"/v1/responses/{(await create(carrier, items)).json['id']}/input_items"

    async def page(query: str) -> tuple[list[str], ResponseItemList]:
        said = ResponseItemList.model_validate_json((await carrier.get(path + query)).body,
                                                    strict=True)  # fmt: skip
        return [item.content[0].text for item in said.data], said  # type: ignore[union-attr,index]

    assert (await page(""))[0] == list("43210")
    texts, first = await page("?order=asc&limit=2")
    assert (texts, first.has_more) == (["0", "1"], True)
    texts, rest = await page(f"?order=asc&limit=3&after={first.last_id}")
    assert (texts, rest.has_more) == (["2", "3", "4"], False)
    for query, field in (("?limit=0", "limit"), ("?order=up", "order"), ("?after=x", "after")):
        refused = await carrier.get(path + query)
        assert (refused.status, refused.error["param"]) == (400, field)


async def test_items_of_every_kind_are_listed_as_the_official_types_have_them(
    carrier: Carrier,
) -> None:
    said = {"type": "function_call", "call_id": "c", "name": "run", "arguments": "{}"}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        said,
        {"type": "function_call_output", "call_id": "c", "output": "x", "status": None},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "summary": []},
        {**said, "type": "custom_tool_call", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
        {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
    ]
    made = whole(await create(carrier, items, tools=[TOOL]))
    reply = await carrier.get(f"/v1/responses/{made.id}/input_items?order=asc")
    listed = ResponseItemList.model_validate_json(reply.body, strict=True).data
    assert [item.type for item in listed] == [item.get("type", "message") for item in items]


async def test_nothing_is_compacted_and_who_asks_is_told(carrier: Carrier) -> None:
    refused = await carrier.post("/v1/responses/compact", {"input": "x"})
    assert (refused.status, refused.error["code"]) == (400, "unsupported")
    assert "not compacted" in refused.error["message"]


async def test_the_count_of_tokens_is_that_of_the_answers_usage(carrier: Carrier) -> None:
    body = {"input": [{"role": "user", "content": "hi"}], "tools": [TOOL], "instructions": "b"}
    counted = await carrier.post("/v1/responses/input_tokens", body)
    assert counted.json["object"] == "response.input_tokens"
    usage = whole(await carrier.post("/v1/responses", body)).usage
    assert usage is not None and counted.json["input_tokens"] == usage.input_tokens


async def test_a_prompt_that_is_too_long_is_counted_all_the_same(carrier: Carrier) -> None:
    counted = await carrier.post("/v1/responses/input_tokens", {"input": "x" * 5000})
    assert counted.json["input_tokens"] == len("user: \nassistant: ") + 5000


@pytest.mark.parametrize("asked", [{"generate": False},
                                   {"prompt_cache_options": {"prewarm": True}}])  # fmt: skip
async def test_a_prompt_is_read_for_who_comes_next_and_nothing_is_answered(
    carrier: Carrier, asked: Any
) -> None:
    warm = whole(await create(carrier, "[say:one]", max_output_tokens=9, **asked))
    assert (warm.status, warm.output, warm.max_output_tokens) == ("completed", [], 9)
    assert warm.usage is not None
    assert (warm.usage.output_tokens, warm.usage.total_tokens) == (0, warm.usage.input_tokens)
    said = events(await create(carrier, "[say:one]", stream=True, **asked))
    kinds = [event.type for event in said]
    assert kinds == ["response.created", "response.in_progress", "response.completed"]
    assert whole(await create(carrier, [], previous_response_id=warm.id)).output_text == "one"


async def test_a_running_response_is_read_and_cancelled_by_its_id(carrier: Carrier) -> None:
    stream = await opened(carrier, FOREVER)
    records = [stream.first, *[await anext(stream.rest) for _ in range(3)]]
    path = f"/v1/responses/{id_of(stream)}"
    running = whole(await carrier.get(path))
    assert running.status == "in_progress" and running.output_text[:1] == "t"
    assert (await carrier.send("DELETE", path, b"", {})).status == 400
    cancelled = whole(await carrier.post(f"{path}/cancel", {}))
    assert cancelled.status == "cancelled"
    records += [record async for record in stream.rest]
    last = events(Reply(200, {}, b"".join(records)))[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    kept = whole(await carrier.get(path))
    assert (kept.status, kept.output_text) == ("cancelled", last.response.output_text)
    assert whole(await carrier.post(f"{path}/cancel", {})) == kept
    assert kept.output_text.startswith(cancelled.output_text)
    await idle(carrier)


async def test_a_completed_response_cannot_be_cancelled(carrier: Carrier) -> None:
    path = f"/v1/responses/{(await create(carrier)).json['id']}"
    refused = await carrier.post(f"{path}/cancel", {})
    assert refused.status == 400
    assert "completed" in refused.error["message"]


async def test_a_client_that_leaves_ends_its_response_which_is_kept_as_cancelled(
    carrier: Carrier,
) -> None:
    stream = await opened(carrier, FOREVER)
    await anext(stream.rest)
    await stream.rest.aclose()
    assert whole(await carrier.get(f"/v1/responses/{id_of(stream)}")).status == "cancelled"
    await idle(carrier)


async def idle(carrier: Carrier) -> None:
    """Wait until no row lives."""
    with anyio.fail_after(20):
        while (await carrier.get("/stats")).json["active_rows"]:
            await anyio.lowlevel.checkpoint()


async def test_a_stream_that_breaks_ends_with_a_failed_response(carrier: Carrier) -> None:
    last = events(await create(carrier, "[break step]", stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error.code == "server_error"
    kept = whole(await carrier.get(f"/v1/responses/{last.response.id}"))
    assert kept == Response.model_validate(last.response.model_dump())
    refused = await create(carrier, "[break step]")
    assert (refused.status, refused.error["code"]) == (500, "engine_failed")


async def test_who_finds_the_queue_full_is_told_before_the_stream() -> None:
    full = server.service(limits=Limits(max_rows=1, max_waiting=0))
    async with running(full) as service:
        await service.model()
        carrier = Carrier(service)
        stream = await opened(carrier, FOREVER)
        refused = await create(carrier, stream=True)
        assert (refused.status, refused.error["code"]) == (429, "queue_full")
        await stream.rest.aclose()


async def test_hosted_tools_are_left_out_with_a_warning(carrier: Carrier) -> None:
    tools = [TOOL, {"type": "web_search"}, {"type": "image_generation"}]
    for stream in (False, True):
        reply = await create(carrier, tools=tools, stream=stream)
        assert reply.status == 200
        assert "web_search, image_generation" in reply.headers["warning"]
    assert "warning" not in (await create(carrier, tools=[TOOL])).headers
    odd = [{"type": f"wéb {i}\n"} for i in range(99)]
    said = (await create(carrier, tools=odd)).headers["warning"]
    assert said.isascii() and said.isprintable() and "and 91 more" in said


@pytest.mark.parametrize(
    ("choice", "shown"),
    [("auto", "ab"), ("none", ""), (None, "ab"),
     ({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "b"}]}, "b")],
)  # fmt: skip
async def test_tool_choice_says_which_tools_are_shown(
    carrier: Carrier, choice: Any, shown: str
) -> None:
    tools = [{"type": "function", "name": name} for name in "ab"]
    usage = whole(await create(carrier, tools=tools, tool_choice=choice)).usage
    alike = [tool for tool in tools if tool["name"] in shown]
    assert usage == whole(await create(carrier, tools=alike)).usage


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": 1}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0]"),
        ({"input": 3}, "input"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"input": "[template refuses]"}, "input"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ],
)  # fmt: skip
async def test_what_cannot_be_honoured_is_refused_by_name(
    carrier: Carrier, fields: Any, param: str
) -> None:
    for stream in (False, True):
        refused = await carrier.post("/v1/responses", {"input": "hi", "stream": stream, **fields})
        assert refused.status == 400
        assert refused.error["param"].startswith(param)


@pytest.mark.parametrize("name", ["input", "tools", "text"])
async def test_what_nests_too_deeply_is_refused_at_once(carrier: Carrier, name: str) -> None:
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    fields = {
        "input": [{"role": "user", "content": "a", "x": deep}],
        "tools": [{"type": "web_search", "x": deep}],
        "text": {"format": {"type": "text", "x": deep}},
    }
    refused = await carrier.post("/v1/responses", {"input": "hi", name: fields[name]})
    assert (refused.status, refused.error["param"][:4]) == (400, name[:4])


async def test_a_prompt_beyond_the_window_is_told_so(carrier: Carrier) -> None:
    refused = await create(carrier, "x" * 5000, stream=True)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 4096 tokens" in refused.error["message"]
    assert refused.error["param"] == "input"


async def test_null_is_absent_and_unknown_fields_are_ignored(carrier: Carrier) -> None:
    names = ("instructions", "tools", "tool_choice", "text", "reasoning", "include", "store",
             "previous_response_id", "metadata", "stream", "top_p", "max_output_tokens", "user",
             "background", "truncation", "parallel_tool_calls", "top_logprobs")  # fmt: skip
    response = whole(await create(carrier, **dict.fromkeys(names), client_metadata={"a": 1}))
    assert response.output_text == GREETING


async def test_an_empty_input_is_legal(carrier: Carrier) -> None:
    response = whole(await create(carrier, "", max_output_tokens=1))
    assert response.status == "incomplete"


async def test_a_heartbeat_is_an_event_that_repeats_the_last_number(carrier: Carrier) -> None:
    stream = await opened(carrier, FOREVER)
    name, data, *_ = stream.heartbeat().decode().split("\n")
    assert name == "event: keepalive"
    assert json.loads(data.removeprefix("data: ")) == {"type": "keepalive", "sequence_number": 1}
    await stream.rest.aclose()
