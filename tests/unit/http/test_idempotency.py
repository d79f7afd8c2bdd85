"""A request that comes twice under one key is answered once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from doubles import server
from doubles.carrier import Carrier, Reply, running
from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.request import Head, Request
from mlxbun.application.idempotency import Answers
from mlxbun.application.service import Service

pytestmark = pytest.mark.anyio

KEY = "stainless-python-retry-1"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with running(server.service(step_seconds=0.002)) as made:
        await made.model()
        yield made


@pytest.fixture
def carrier(service: Service) -> Carrier:
    return Carrier(service)


async def ask(carrier: Carrier, text: str = "hi", key: str = KEY, **fields: Any) -> Reply:
    body = {"messages": [{"role": "user", "content": text}], **fields}
    return await carrier.post("/v1/chat/completions", body, idempotency_key=key)


def said(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    if reply.records:
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in reply.chunks)
    text: str = reply.json["choices"][0]["message"]["content"]
    return text


async def until_generating(service: Service, more_than: int = 0) -> None:
    while service.projection.stats.generated_tokens <= more_than:
        await checkpoint()


@pytest.mark.parametrize("stream", [False, True])
async def test_two_at_once_are_one_answer(service: Service, carrier: Carrier, stream: bool) -> None:
    replies: list[Reply] = []

    async def one() -> None:
        replies.append(await ask(carrier, "[say:one answer]", stream=stream))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        await until_generating(service)
        tasks.start_soon(one)
    assert [said(reply) for reply in replies] == ["one answer"] * 2
    assert service.projection.stats.submitted == 1
    if not stream:
        assert replies[0].json["usage"] == replies[1].json["usage"]


async def test_a_sampled_answer_is_the_same_again_and_not_computed_again(
    service: Service, carrier: Carrier
) -> None:
    first, again = await ask(carrier, n=3), await ask(carrier, n=3)
    other = await ask(carrier, key="another", n=3)
    assert first.json["choices"] == again.json["choices"]
    assert first.json["choices"] != other.json["choices"]
    assert service.projection.stats.submitted == 6


async def test_a_stop_string_ends_all_who_follow(service: Service, carrier: Carrier) -> None:
    first = await ask(carrier, "[say:abcdef]", stop="de")
    again = await ask(carrier, "[say:abcdef]", stop="de")
    assert said(first) == said(again) == "abc"
    assert service.projection.stats.submitted == 1


async def test_log_probabilities_come_again_too(carrier: Carrier) -> None:
    first, again = [await ask(carrier, logprobs=True, top_logprobs=2) for _ in range(2)]
    assert first.json["choices"] == again.json["choices"]
    assert first.json["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize("fields", [{"max_tokens": 3}, {"seed": 4}, {"stream": True}])
async def test_another_request_under_the_same_key_is_refused_by_the_headers_name(
    carrier: Carrier, fields: dict[str, Any]
) -> None:
    await ask(carrier)
    refused = await ask(carrier, **fields)
    assert refused.status == 400
    assert refused.error["param"] == "Idempotency-Key"
    assert KEY in refused.error["message"]


async def test_another_path_is_another_request(carrier: Carrier) -> None:
    body = {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]}
    first = await carrier.post("/v1/chat/completions", body, idempotency_key=KEY)
    other = await carrier.post("/v1/completions", body, idempotency_key=KEY)
    same = await carrier.post("/v1/chat/completions/", body, idempotency_key=KEY)
    assert (first.status, other.status, same.status) == (200, 400, 200)


@pytest.mark.parametrize("key", ["x" * 256, "a\nb"])
async def test_a_key_that_is_none_is_refused(carrier: Carrier, key: str) -> None:
    refused = await ask(carrier, key=key)
    assert refused.status == 400 and refused.error["param"] == "Idempotency-Key"


async def test_without_a_key_each_request_is_its_own(service: Service, carrier: Carrier) -> None:
    for _ in range(2):
        await carrier.chat("[say:ab]")
    assert service.projection.stats.submitted == 2


async def test_what_broke_is_tried_anew(service: Service, carrier: Carrier) -> None:
    first = await ask(carrier, "[break step]")
    again = await ask(carrier, "[break step]")
    assert (first.status, again.status) == (500, 500)
    assert service.projection.stats.submitted == 2


async def open_stream(carrier: Carrier, text: str) -> Any:
    """Return a stream whose client reads its first record and no more."""
    body = b'{"stream":true,"messages":[{"role":"user","content":"%s"}]}' % text.encode()
    head = Head("POST", "/v1/chat/completions", {"idempotency-key": KEY}, "req")
    handler = carrier.front.open(head)
    assert not isinstance(handler, Answer)
    opened = await carrier.front.respond(handler, Request(head, body))
    assert not isinstance(opened, Answer)
    return opened.rest


async def test_who_leaves_does_not_take_the_answer_from_who_stays(
    service: Service, carrier: Carrier
) -> None:
    leaving, staying = [await open_stream(carrier, "[forever]") for _ in range(2)]
    await until_generating(service)
    await leaving.aclose()
    drawn = service.projection.stats.generated_tokens
    await until_generating(service, drawn + 5)
    assert b'"content"' in await anext(staying)
    await staying.aclose()
    assert service.projection.stats.cancelled == 0, "it has its grace"


async def test_an_answer_that_everybody_left_ends_after_its_grace(
    service: Service, carrier: Carrier
) -> None:
    service.answers = Answers(grace_seconds=0.0)
    first = await open_stream(carrier, "[forever]")
    await until_generating(service)
    await first.aclose()
    while not service.projection.stats.cancelled:
        await checkpoint()
    assert service.projection.stats.submitted == 1
    late = await open_stream(carrier, "[forever]")
    assert service.projection.stats.submitted == 2
    await late.aclose()
