"""Responses that go on without their client, as OpenAI's official SDK asks for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from doubles import server
from doubles.carrier import Carrier, Reply, running
from mlxbun.adapters.http.front import Opened
from mlxbun.adapters.http.request import Head, Request
from mlxbun.domain.refusal import Refused
from mlxbun.domain.scheduling import Limits

pytestmark = pytest.mark.anyio
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SAID = "one two three"
CUT = Refused("draining", "the server shut down before the answer was complete")


async def create(carrier: Carrier, said: Any = f"[say:{SAID}]", **fields: Any) -> Reply:
    body = {"input": said, "temperature": 0, "background": True, **fields}
    return await carrier.post("/v1/responses", body)


def whole(reply: Reply) -> Response:
    assert reply.status == 200, reply.body
    return Response.model_validate_json(reply.body, strict=True)


def events(body: bytes) -> list[Any]:
    """Return a stream's events, checked by the official types; heartbeats are left out."""
    records = [record.split("\n") for record in body.decode().split("\n\n")[:-1]]
    said = [data.removeprefix("data: ") for name, data in records if name != "event: keepalive"]
    return [EVENT.validate_json(data, strict=True) for data in said]


async def over(carrier: Carrier, response_id: str) -> Response:
    """Poll a response until it is not under way any more."""
    with anyio.fail_after(20):
        while True:
            found = whole(await carrier.get(f"/v1/responses/{response_id}"))
            if found.status not in ("queued", "in_progress"):
                return found
            await anyio.lowlevel.checkpoint()


async def opened(carrier: Carrier, method: str, path: str, body: Any = None) -> Opened:
    """Begin a stream; whoever asks reads it, or leaves it."""
    path, _, query = path.partition("?")
    head = Head(method, path, {}, "req", query)
    handler: Any = carrier.front.open(head)
    stream = await carrier.front.respond(handler, Request(head, json.dumps(body).encode()))
    assert isinstance(stream, Opened), stream
    return stream


async def rest(stream: Opened) -> bytes:
    with anyio.fail_after(20):
        return b"".join([stream.first, *[record async for record in stream.rest]])


async def test_a_response_is_there_at_once_and_complete_later(carrier: Carrier) -> None:
    begun = whole(await create(carrier, metadata={"a": "b"}))
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    found = await over(carrier, begun.id)
    assert (found.status, found.output_text, found.background) == ("completed", SAID, True)
    assert (found.id, found.created_at, found.metadata) == (begun.id, begun.created_at, {"a": "b"})
    alike = whole(await create(carrier, background=False))
    assert found.usage == alike.usage


async def test_what_it_was_made_from_is_listed_while_it_runs(carrier: Carrier) -> None:
    begun = whole(await create(carrier, "[forever]"))
    listed = await carrier.get(f"/v1/responses/{begun.id}/input_items")
    assert listed.json["data"][0]["content"][0]["text"] == "[forever]"
    await carrier.post(f"/v1/responses/{begun.id}/cancel", {})
    assert (await over(carrier, begun.id)).status == "cancelled"


async def test_it_is_continued_when_it_is_over_and_not_before(carrier: Carrier) -> None:
    begun = whole(await create(carrier, "[forever]"))
    early = await create(carrier, "and?", previous_response_id=begun.id)
    assert (early.status, early.error["param"]) == (400, "previous_response_id")
    assert "in progress" in early.error["message"]
    await carrier.post(f"/v1/responses/{begun.id}/cancel", {})
    await over(carrier, begun.id)
    late = whole(await create(carrier, "[say:x]", previous_response_id=begun.id))
    assert (await over(carrier, late.id)).output_text == "x"


async def test_its_stream_is_read_again_from_any_event_word_for_word(carrier: Carrier) -> None:
    reply = await create(carrier, f"[say:<think>hm</think>{SAID}]", stream=True)
    said = events(reply.body)
    assert [event.sequence_number for event in said] == list(range(len(said)))
    assert said[0].response.background is True and said[-1].type == "response.completed"
    path = f"/v1/responses/{said[0].response.id}?stream=true"
    assert (await carrier.get(path)).body == reply.body
    for after in range(len(said)):
        again = await carrier.get(f"{path}&starting_after={after}")
        assert again.headers["content-type"].startswith("text/event-stream")
        assert events(again.body) == said[after + 1 :]
    assert (await carrier.get(f"{path}&starting_after=9999")).body == b""
    kept = whole(await carrier.get(path.partition("?")[0]))
    assert kept == Response.model_validate(said[-1].response.model_dump())


async def test_a_client_that_leaves_finds_it_complete_and_reads_on_where_it_was(
    carrier: Carrier,
) -> None:
    body = {"input": f"[say:{SAID}]", "temperature": 0, "background": True, "stream": True}
    stream = await opened(carrier, "POST", "/v1/responses", body)
    seen = events(stream.first)
    await stream.rest.aclose()
    assert seen[-1].type != "response.completed"
    path = f"/v1/responses/{seen[0].response.id}?stream=true"
    last = seen[-1].sequence_number
    again = await opened(carrier, "GET", f"{path}&starting_after={last}")
    others = events(await rest(again))
    assert [e.sequence_number for e in others] == list(range(last + 1, last + 1 + len(others)))
    text = "".join(e.delta for e in [*seen, *others] if e.type == "response.output_text.delta")
    assert text == SAID
    assert others[-1].response.output_text == SAID


async def test_many_read_what_still_comes_and_who_asks_for_the_future_waits_with_a_heartbeat(
    carrier: Carrier,
) -> None:
    begun = whole(await create(carrier, "[forever]"))
    path = f"/v1/responses/{begun.id}"
    readers = [await opened(carrier, "GET", f"{path}?stream=true") for _ in range(3)]
    future = await opened(carrier, "GET", f"{path}?stream=true&starting_after=999999")
    assert future.first.startswith(b"event: keepalive\n")
    await carrier.post(f"{path}/cancel", {})
    first, *others = [await rest(reader) for reader in readers]
    assert others == [first] * 2
    last = events(first)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert await rest(future) == future.first
    assert (await over(carrier, begun.id)).status == "cancelled"


async def test_who_finds_the_queue_full_is_told_and_nothing_is_kept() -> None:
    full = server.service(limits=Limits(max_rows=1, max_waiting=0))
    async with running(full) as service:
        await service.model()
        carrier = Carrier(service)
        begun = whole(await create(carrier, "[forever]"))
        for stream in (False, True):
            refused = await create(carrier, stream=stream)
            assert (refused.status, refused.error["code"]) == (429, "queue_full")
        await carrier.post(f"/v1/responses/{begun.id}/cancel", {})
        await over(carrier, begun.id)
        assert len(carrier.in_flight) <= 1
        assert (await carrier.get("/stats")).json["response_store"]["entries"] == 1


async def test_one_that_breaks_is_failed_and_its_stream_says_so_to_the_end(
    carrier: Carrier,
) -> None:
    reply = await create(carrier, "[break step]", stream=True)
    last = events(reply.body)[-1]
    assert (last.type, last.response.error.code) == ("response.failed", "server_error")
    found = await over(carrier, last.response.id)
    assert (found.status, found.error) == ("failed", last.response.error)
    again = await carrier.get(f"/v1/responses/{found.id}?stream=true")
    assert again.body == reply.body


async def test_a_server_that_stops_ends_it_as_failed_and_says_so_to_its_readers(
    carrier: Carrier,
) -> None:
    begun = whole(await create(carrier, "[forever]"))
    path = f"/v1/responses/{begun.id}"
    reader = await opened(carrier, "GET", f"{path}?stream=true")
    assert len(carrier.in_flight) == 1
    carrier.in_flight.end(CUT)
    last = events(await rest(reader))[-1]
    assert (last.type, last.response.error.message) == ("response.failed", CUT.message)
    with anyio.fail_after(20):
        await carrier.in_flight.wait_empty()
    found = whole(await carrier.get(path))
    assert (found.status, found.error and found.error.message) == ("failed", CUT.message)
    assert (
        reader.broken(CUT)
        == (await carrier.get(f"{path}?stream=true")).body[-len(reader.broken(CUT)) :]
    )


async def test_two_requests_under_one_key_are_two_responses_with_one_answer(
    carrier: Carrier,
) -> None:
    body = {"input": "hi", "background": True}
    key = {"idempotency_key": "k"}
    both = [whole(await carrier.post("/v1/responses", body, **key)) for _ in range(2)]
    first, second = [await over(carrier, begun.id) for begun in both]
    assert first.id != second.id and first.output_text == second.output_text != ""


async def test_a_head_has_no_stream(carrier: Carrier) -> None:
    made = whole(await create(carrier))
    await over(carrier, made.id)
    reply = await carrier.get(f"/v1/responses/{made.id}?stream=true", "HEAD")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")


async def test_only_events_of_the_background_are_read_again(carrier: Carrier) -> None:
    plain = whole(await create(carrier, background=False))
    refused = await carrier.get(f"/v1/responses/{plain.id}?stream=true")
    assert (refused.status, refused.error["param"]) == (400, "stream")
    assert "background" in refused.error["message"]
    made = whole(await create(carrier))
    await over(carrier, made.id)
    odd = await carrier.get(f"/v1/responses/{made.id}?stream=true&starting_after=x")
    assert (odd.status, odd.error["param"]) == (400, "starting_after")
    gone = await carrier.get("/v1/responses/resp_gone?stream=true")
    assert gone.status == 404 and "restart" in gone.error["message"]


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


async def test_the_sdk_polls_streams_again_and_cancels(client: openai.AsyncOpenAI) -> None:
    begun = await client.responses.create(input=f"[say:{SAID}]", background=True)
    with anyio.fail_after(20):
        while (found := await client.responses.retrieve(begun.id)).status == "in_progress":
            await anyio.lowlevel.checkpoint()
    assert found.output_text == SAID
    stream = await client.responses.retrieve(begun.id, stream=True, starting_after=3)
    said = [event async for event in stream]
    assert said[0].sequence_number == 4 and said[-1].type == "response.completed"
    async with client.responses.stream(response_id=begun.id) as helper:
        kinds = [event.type async for event in helper]
        assert (await helper.get_final_response()).output_text == SAID
    assert kinds[0] == "response.created"
    runs = await client.responses.create(input="[forever]", background=True)
    assert (await client.responses.cancel(runs.id)).status == "cancelled"
