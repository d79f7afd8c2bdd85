"""The prefix cache's endpoints over a service whose cache is off."""

from __future__ import annotations

import pytest

from doubles.carrier import Carrier

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_is_explained_by_its_id(carrier: Carrier, streamed: bool) -> None:
    reply = await carrier.chat(stream=streamed, n=2)
    answer_id = reply.chunks[0]["id"] if streamed else reply.json["id"]
    report = (await carrier.get(f"/v1/cache/explain?request={answer_id}")).json
    assert report["request"] == answer_id
    assert [row["reason"] for row in report["rows"]] == ["off", "off"]
    row = report["rows"][0]
    assert row["computed_tokens"] == row["prompt_tokens"] > 0
    assert row["reused_tokens"] == {"ram": 0, "ssd": 0} and row["diverged_at"] is None
    assert row["waited_ms"] == {"computing": 0, "restoring": 0}


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("?request=chatcmpl-nobody", 404, "not_found"),
        ("?request=", 400, "invalid_value"),
        ("?other=1", 400, "invalid_value"),
        ("", 400, "invalid_value"),
        ("?request=%00%ff&request=2", 404, "not_found"),
    ],
)
async def test_who_is_not_known_is_refused_in_the_envelope(
    carrier: Carrier, query: str, status: int, code: str
) -> None:
    reply = await carrier.get("/v1/cache/explain" + query)
    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, "request")


async def test_a_changed_message_is_named_and_nothing_of_it_is_said(carrier: Carrier) -> None:
    long = "Tell me of the harbour, and of the swordfish. " * 20
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": long}]
    first = await carrier.chat(messages=asked)
    asked[1] = {"role": "user", "content": long[:300] + "SECRET" + long[300:]}
    second = await carrier.chat(messages=asked)
    reply = await carrier.get(f"/v1/cache/explain?request={second.json['id']}")
    (row,) = reply.json["rows"]
    found = row["first_divergence"]
    assert row["compared_with"] == first.json["id"]
    assert (found["field"], found["how"], found["index"]) == ("content", "changed", 1)
    assert found["offset"] <= 300 <= found["offset"] + found["within"] and found["within"] <= 16
    said = reply.body.decode()
    assert "SECRET" not in said and "swordfish" not in said


async def test_a_conversation_that_goes_on_is_compared_and_did_not_part(carrier: Carrier) -> None:
    asked = [{"role": "user", "content": "Tell me of the harbour. " * 20}]
    first = await carrier.chat(messages=asked)
    asked += [{"role": "assistant", "content": "No."}, {"role": "user", "content": "Why?"}]
    second = await carrier.chat(messages=asked)
    rows = [
        (await carrier.get(f"/v1/cache/explain?request={answer.json['id']}")).json["rows"][0]
        for answer in (first, second)
    ]
    assert [row["compared_with"] for row in rows] == [None, first.json["id"]]
    assert [row["first_divergence"] for row in rows] == [None, None]


async def test_a_flush_works_without_a_disk_and_says_what_it_is(carrier: Carrier) -> None:
    reply = await carrier.post("/admin/cache/flush", {})
    assert reply.status == 200
    report = reply.json
    assert (report["durable"], report["ssd_tier"], report["entries"]) == (True, "off", 0)
    assert report["longest_durable_prefix_tokens"] == 0
    names = {"flushedSnapshots", "missingSnapshots", "pendingSnapshots", "pendingSpills"}
    names |= {"pendingSpillBytes", "droppedSpills", "failedSpills", "elapsedMs"}
    assert {report[name] for name in names} == {0}
