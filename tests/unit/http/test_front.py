from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

import pytest

from doubles import server
from doubles.carrier import Carrier, running
from mlxbun.adapters.http.access import Access
from mlxbun.adapters.http.answers import Answer, EventStream
from mlxbun.adapters.http.front import Front, Opened, request_id
from mlxbun.adapters.http.request import Head, Request
from mlxbun.adapters.http.routing import Router
from mlxbun.domain.refusal import Refused

pytestmark = pytest.mark.anyio
ORIGIN = {"origin": "http://page"}


async def test_every_answer_carries_its_id_under_both_names(carrier: Carrier) -> None:
    replies = [
        await carrier.get("/health"),
        await carrier.get("/nowhere"),
        await carrier.post("/v1/chat/completions", b"{"),
        await carrier.chat(),
        await carrier.chat(stream=True),
    ]
    ids = [reply.headers["x-request-id"] for reply in replies]
    assert ids == [reply.headers["request-id"] for reply in replies]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("said", "kept"), [("abc-1.2:x_9", True), ("a b", False), ("é", False), ("x" * 129, False)]
)
async def test_a_clients_own_id_is_kept_if_it_is_one(said: str, kept: bool) -> None:
    assert (request_id({"x-request-id": said}) == said) == kept


async def test_pages_that_may_read_may_read_errors_and_streams_too() -> None:
    async with running(server.service()) as service:
        carrier = Carrier(service, Access(allow_origins=("*",)))
        body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
        replies = [
            await carrier.get("/v1/models", **ORIGIN),
            await carrier.get("/nowhere", **ORIGIN),
            await carrier.post("/v1/chat/completions", b"{", **ORIGIN),
            await carrier.post("/v1/chat/completions", body, **ORIGIN),
            await carrier.get("/v1/models", method="OPTIONS", **ORIGIN),
        ]
    assert [r.headers.get("access-control-allow-origin") for r in replies] == ["*"] * 5
    assert [r.status for r in replies] == [200, 404, 400, 200, 204]


async def test_the_key_guards_all_but_the_probes() -> None:
    async with running(server.service()) as service:
        carrier = Carrier(service, Access(api_key="k"))
        await service.model()
        bare = [await carrier.get(path) for path in ("/", "/health", "/v1/models", "/nowhere")]
        keyed = await carrier.get("/v1/models", authorization="Bearer k")
    assert [reply.status for reply in bare] == [200, 200, 401, 401]
    assert bare[2].error["code"] == "unauthorized"
    assert keyed.status == 200


async def test_a_draining_server_answers_but_takes_nothing_new(carrier: Carrier) -> None:
    carrier.front.draining = True
    reply = await carrier.chat()
    assert (reply.status, reply.error["code"]) == (503, "draining")
    assert "retry-after" in reply.headers
    assert (await carrier.get("/stats")).status == 200


async def broken(request: Request) -> Answer:
    raise ZeroDivisionError("a secret")


async def broken_stream(request: Request) -> EventStream:
    async def records() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        raise ZeroDivisionError("a secret")

    return EventStream(records())


async def refused_stream(request: Request) -> EventStream:
    async def records() -> AsyncGenerator[bytes, None]:
        raise Refused("queue_full", "full")
        yield b""

    return EventStream(records())


FRONT = Front(Router({"/": {"GET": broken}}), Access())
HEADERS: dict[str, str] = {}
HEAD = Head("GET", "/", HEADERS, "req_1")
REQUEST = Request(HEAD, b"")


async def test_a_bug_is_a_500_that_says_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await FRONT.respond(broken, REQUEST)
    assert isinstance(answer, Answer)
    assert answer.status == 500
    assert b"req_1" in answer.body and b"secret" not in answer.body
    assert "req_1" in caplog.text and "ZeroDivisionError: a secret" in caplog.text


async def test_a_bug_in_mid_stream_is_a_last_record(caplog: pytest.LogCaptureFixture) -> None:
    opened = await FRONT.respond(broken_stream, REQUEST)
    assert isinstance(opened, Opened)
    records = [record async for record in FRONT.records(HEAD, opened)]
    assert records[0] == b"data: 1\n\n"
    assert b"req_1" in records[1] and b"secret" not in records[1]
    assert len(records) == 2
    assert "ZeroDivisionError: a secret" in caplog.text


async def test_a_stream_that_is_refused_has_a_status_of_its_own() -> None:
    answer = await FRONT.respond(refused_stream, REQUEST)
    assert isinstance(answer, Answer)
    assert answer.status == 429
