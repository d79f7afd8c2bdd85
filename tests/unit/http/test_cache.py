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
