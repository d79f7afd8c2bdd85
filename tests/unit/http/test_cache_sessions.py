"""Sessions over HTTP: where their names are looked for, and closing one."""

from __future__ import annotations

from typing import Any

import pytest

from doubles.carrier import Carrier
from mlxbun.adapters.http.affinity import session_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("said", "headers", "session"),
    [
        (("body", "key"), {"x-session-affinity": "header"}, "body"),
        ((None, "key"), {"x-session-affinity": "header"}, "key"),
        (("", "key"), {}, "key"),
        ((7, None), {}, "7"),
        ((None, None), {"x-session-affinity": "header", "session_id": "other"}, "header"),
        ((None, None), {"session_id": "other"}, "other"),
        ((None, None), {"x-session-affinity": ""}, None),
        ((None, None), {}, None),
    ],
)
async def test_the_first_name_counts(
    said: tuple[Any, ...], headers: dict[str, str], session: str | None
) -> None:
    assert session_of(headers, *said) == session


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": "mine"},
        {"session_id": 12},
        {"prompt_cache_key": "a key of a client's own making"},
        {"session_id": None, "prompt_cache_key": ""},
        {"session_id": "mine", "prompt_cache_key": "another"},
    ],
)
async def test_no_request_is_refused_for_its_session(
    carrier: Carrier, fields: dict[str, Any]
) -> None:
    assert (await carrier.chat(**fields)).status == 200
    assert (await carrier.complete(**fields)).status == 200


@pytest.mark.parametrize(
    ("body", "closed"),
    [({"session_id": "mine"}, True), ({}, False), (b"", False), ({"session_id": ""}, False)],
)
async def test_closing_says_whether_a_session_was_named(
    carrier: Carrier, body: Any, closed: bool
) -> None:
    reply = await carrier.post("/admin/cache/session/close", body)
    assert (reply.status, reply.json["closed"]) == (200, closed)
    assert (reply.json["released_blocks"], reply.json["released_bytes"]) == (0, 0)


async def test_a_header_names_the_session_to_close_too(carrier: Carrier) -> None:
    reply = await carrier.post("/admin/cache/session/close", {}, x_session_affinity="mine")
    assert reply.json["closed"] is True


async def test_a_session_of_another_type_is_refused_by_name(carrier: Carrier) -> None:
    reply = await carrier.post("/admin/cache/session/close", {"session_id": ["mine"]})
    assert (reply.status, reply.error["param"]) == (400, "session_id")
