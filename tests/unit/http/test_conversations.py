"""Conversations, as OpenAI's official SDK asks for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest
from jsonschema_rs import Draft202012Validator
from openai.types.conversations import Conversation, ConversationItem, ConversationItemList
from openai.types.responses import Response
from pydantic import TypeAdapter

from doubles.carrier import Carrier, Reply
from mlxbun.adapters.http.openapi import document

pytestmark = pytest.mark.anyio
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)
DOCUMENT = json.loads(json.dumps(document()))
TOOL = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": False}
CALL = '<tool_call>{"name": "run", "arguments": {"a": 1}}</tool_call>'


async def begin(carrier: Carrier, *items: Any, **fields: Any) -> Conversation:
    reply = await carrier.post("/v1/conversations", {"items": list(items), **fields})
    assert reply.status == 200, reply.body
    return Conversation.model_validate_json(reply.body, strict=True)


async def respond(carrier: Carrier, talk: Any, said: Any, **fields: Any) -> Response:
    body = {"input": said, "conversation": talk, "temperature": 0, **fields}
    reply = await carrier.post("/v1/responses", body)
    assert reply.status == 200, reply.body
    return Response.model_validate_json(reply.body, strict=True)


async def listed(carrier: Carrier, talk: str, query: str = "?order=asc") -> Any:
    reply = await carrier.get(f"/v1/conversations/{talk}/items{query}")
    return ConversationItemList.model_validate_json(reply.body, strict=True)


async def texts(carrier: Carrier, talk: str) -> list[str]:
    return [item.content[0].text for item in (await listed(carrier, talk)).data]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_a_response_begins_with_its_conversation_and_is_added_to_it(
    carrier: Carrier,
) -> None:
    talk = await begin(carrier, {"role": "system", "content": "be brief"}, metadata={"a": "b"})
    assert talk.metadata == {"a": "b"} and talk.id.startswith("conv_")
    first = await respond(carrier, talk.id, "[say:one]")
    assert first.conversation is not None and first.conversation.id == talk.id
    second = await respond(carrier, {"id": talk.id}, "[say:two]")
    said = "system: be brief\nuser: [say:one]\nassistant: one\nuser: [say:two]\nassistant: "
    assert second.usage is not None and second.usage.input_tokens == len(said)
    assert await texts(carrier, talk.id) == ["be brief", "[say:one]", "one", "[say:two]", "two"]
    counted = await carrier.post(
        "/v1/responses/input_tokens", {"input": "x", "conversation": talk.id}
    )
    assert counted.json["input_tokens"] == len(said) + len("two\nuser: x\nassistant: ")


async def test_calls_thoughts_and_results_stand_in_it_as_the_official_types_have_them(
    carrier: Carrier,
) -> None:
    talk = await begin(carrier)
    said = f"[say:<think>hm</think>so{CALL}]"
    made: Any = await respond(carrier, talk.id, said, tools=[TOOL])
    result = {"type": "function_call_output", "call_id": made.output[-1].call_id,
              "output": "[say:done]"}  # fmt: skip
    after = await respond(carrier, talk.id, [result], tools=[TOOL])
    assert after.output_text == "done"
    kinds = [item.type for item in (await listed(carrier, talk.id)).data]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output",
                     "message"]  # fmt: skip


@pytest.mark.parametrize("fields", [{"stream": True}, {"background": True}])
async def test_streams_and_the_background_are_added_too(carrier: Carrier, fields: Any) -> None:
    talk = await begin(carrier)
    body = {"input": "[say:one]", "conversation": talk.id, **fields}
    assert (await carrier.post("/v1/responses", body)).status == 200
    with anyio.fail_after(20):
        while len(await texts(carrier, talk.id)) < 2:
            await anyio.lowlevel.checkpoint()
    assert await texts(carrier, talk.id) == ["[say:one]", "one"]


async def test_what_broke_or_was_cancelled_is_no_part_of_it(carrier: Carrier) -> None:
    talk = await begin(carrier)
    body = {"input": "[break step]", "conversation": talk.id}
    assert (await carrier.post("/v1/responses", body)).status == 500
    await carrier.post("/v1/responses", {**body, "stream": True})
    made = await carrier.post("/v1/responses", {**body, "input": "[forever]", "background": True})
    await carrier.post(f"/v1/responses/{made.json['id']}/cancel", {})
    with anyio.fail_after(20):
        while (await carrier.get("/stats")).json["active_rows"]:
            await anyio.lowlevel.checkpoint()
    assert await texts(carrier, talk.id) == []


async def test_a_prompt_that_is_only_read_is_no_part_of_it(carrier: Carrier) -> None:
    talk = await begin(carrier)
    warm = await respond(carrier, talk.id, "[say:one]", generate=False)
    assert (warm.status, await texts(carrier, talk.id)) == ("completed", [])
    assert (await respond(carrier, talk.id, "[say:one]")).output_text == "one"
    assert await texts(carrier, talk.id) == ["[say:one]", "one"]


async def test_items_are_added_read_listed_and_removed(carrier: Carrier) -> None:
    talk = await begin(carrier, {**user("a"), "id": "msg_a"})
    path = f"/v1/conversations/{talk.id}/items"
    twice = {"items": [user("b"), {**user("a"), "id": "msg_a"}]}
    added = await carrier.post(path, twice)
    assert ConversationItemList.model_validate_json(added.body, strict=True).has_more is False
    assert await texts(carrier, talk.id) == ["a", "b"], "one item has one place"
    page = await listed(carrier, talk.id, "?limit=1")
    assert (page.data[0].content[0].text, page.has_more) == ("b", True)
    assert (await listed(carrier, talk.id, f"?after={page.last_id}")).data[0].id == "msg_a"
    one = await carrier.get(f"{path}/msg_a")
    assert ITEM.validate_json(one.body, strict=True).content[0].text == "a"
    gone = await carrier.send("DELETE", f"{path}/msg_a", b"", {})
    assert Conversation.model_validate_json(gone.body, strict=True) == talk
    assert await texts(carrier, talk.id) == ["b"]
    for method in ("GET", "DELETE"):
        missing = await carrier.send(method, f"{path}/msg_a", b"", {})
        assert (missing.status, missing.error["param"]) == (404, "item_id")


async def test_a_conversation_is_read_changed_and_deleted_and_its_responses_stay(
    carrier: Carrier,
) -> None:
    talk = await begin(carrier, metadata={"a": "b"})
    made = await respond(carrier, talk.id, "[say:one]")
    path = f"/v1/conversations/{talk.id}"
    changed = await carrier.post(path, {"metadata": {"c": "d"}})
    assert Conversation.model_validate_json(changed.body, strict=True).metadata == {"c": "d"}
    assert (await carrier.get(path)).json == changed.json
    deleted = await carrier.send("DELETE", path, b"", {})
    assert deleted.json == {"id": talk.id, "object": "conversation.deleted", "deleted": True}
    for reply in (await carrier.get(path), await carrier.send("DELETE", path, b"", {})):
        assert (reply.status, reply.error["code"]) == (404, "not_found")
    refused = await carrier.post("/v1/responses", {"input": "x", "conversation": talk.id})
    assert (refused.status, refused.error["param"]) == (404, "conversation")
    assert (await carrier.get(f"/v1/responses/{made.id}")).status == 200


async def test_a_response_is_no_conversation_and_a_conversation_no_response(
    carrier: Carrier,
) -> None:
    talk = await begin(carrier)
    made = await respond(carrier, talk.id, "[say:one]")
    for method, path in (("GET", f"/v1/responses/{talk.id}"),
                         ("DELETE", f"/v1/responses/{talk.id}"),
                         ("GET", f"/v1/conversations/{made.id}"),
                         ("DELETE", f"/v1/conversations/{made.id}")):  # fmt: skip
        assert (await carrier.send(method, path, b"", {})).status == 404
    body = {"input": "x", "previous_response_id": talk.id}
    assert (await carrier.post("/v1/responses", body)).status == 404
    both = {**body, "previous_response_id": made.id, "conversation": talk.id}
    refused = await carrier.post("/v1/responses", both)
    assert (refused.status, refused.error["param"]) == (400, "conversation")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"role": "user"}, {"type": 3}]}, "items[1].type"),
        ({"items": ["x"]}, "items[0]"),
        ({"items": [{"type": "item_reference", "id": "nobody"}]}, "items[0].id"),
        ({"items": [{"type": "function_call"}]}, "items[0].name"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_what_is_no_item_is_refused_by_its_place(
    carrier: Carrier, body: Any, param: str
) -> None:
    refused = await carrier.post("/v1/conversations", body)
    assert refused.status in (400, 404)
    assert refused.error["param"] == param


async def test_answers_are_as_described(carrier: Carrier) -> None:
    def check(path: str, method: str, reply: Reply) -> None:
        content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]
        schema = content["application/json"]["schema"] | {"components": DOCUMENT["components"]}
        Draft202012Validator(schema).validate(reply.json)

    one = "/v1/conversations/{id}"
    talk = await carrier.post("/v1/conversations", b"")
    check("/v1/conversations", "post", talk)
    path = f"/v1/conversations/{talk.json['id']}"
    check(one, "get", await carrier.get(path))
    added = await carrier.post(f"{path}/items", {"items": [user("a")]})
    check(f"{one}/items", "post", added)
    check(f"{one}/items", "get", await carrier.get(f"{path}/items"))
    item = f"{path}/items/{added.json['first_id']}"
    check(f"{one}/items/{{item}}", "get", await carrier.get(item))
    check(f"{one}/items/{{item}}", "delete", await carrier.send("DELETE", item, b"", {}))
    check(one, "delete", await carrier.send("DELETE", path, b"", {}))


@pytest.fixture
async def client(carrier: Carrier) -> AsyncIterator[openai.AsyncOpenAI]:
    async def carry(request: httpx2.Request) -> httpx2.Response:
        path = request.url.raw_path.decode()
        headers = dict(request.headers)
        reply = await carrier.send(request.method, path, await request.aread(), headers)
        return httpx2.Response(reply.status, headers=dict(reply.headers), content=reply.body)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(carry))
    async with openai.AsyncOpenAI(
        api_key="k", base_url="http://server/v1", http_client=http, max_retries=0
    ) as client:
        yield client


async def test_the_sdk_talks(client: openai.AsyncOpenAI) -> None:
    talk = await client.conversations.create()
    first: Any = {"type": "message", "role": "user", "content": "[say:one]"}
    added = await client.conversations.items.create(talk.id, items=[first])
    made = await client.responses.create(conversation=talk.id, input=[])
    assert made.output_text == "one"
    assert [item.id async for item in client.conversations.items.list(talk.id, limit=1)] == [
        made.output[0].id, added.data[0].id,
    ]  # fmt: skip
    await client.conversations.items.delete(made.output[0].id or "", conversation_id=talk.id)
    found = client.conversations.items.retrieve
    with pytest.raises(openai.NotFoundError):
        await found(made.output[0].id or "", conversation_id=talk.id)
    await client.conversations.delete(talk.id)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(talk.id)
