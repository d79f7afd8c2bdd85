from __future__ import annotations

import asyncio

import pytest
from openai.types import Model as OpenAIModel

from doubles import server
from doubles.carrier import Carrier, running

pytestmark = pytest.mark.anyio


async def test_the_list_serves_several_protocols(carrier: Carrier) -> None:
    listed = (await carrier.get("/v1/models")).json
    model = OpenAIModel.model_validate(listed["data"][0], strict=True)
    assert (model.id, model.object, model.created) == (server.MODEL_ID, "model", server.CREATED)
    assert listed["object"] == "list"
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (
        False, server.MODEL_ID, server.MODEL_ID,
    )  # fmt: skip
    entry = listed["data"][0]
    assert (entry["type"], entry["display_name"]) == ("model", "scripted")
    assert entry["created_at"] == "2023-11-14T22:13:20Z"
    window = 4096
    names = ("context_length", "context_window", "max_model_len", "max_input_tokens")
    assert [entry[name] for name in names] == [window] * 4
    assert entry["meta"]["n_ctx"] == window


@pytest.mark.parametrize("name", [server.MODEL_ID, "scripted"])
async def test_a_model_is_found_by_its_id_slashes_and_all(carrier: Carrier, name: str) -> None:
    assert (await carrier.get(f"/v1/models/{name}")).json["id"] == server.MODEL_ID


async def test_another_model_is_not_found(carrier: Carrier) -> None:
    reply = await carrier.get("/v1/models/no/such-model")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_health_is_these_very_bytes(carrier: Carrier) -> None:
    reply = await carrier.get("/health")
    assert (reply.status, reply.body) == (200, b'{"status": "ok"}')


async def test_health_is_honest_while_the_server_drains(carrier: Carrier) -> None:
    carrier.front.draining = True
    reply = await carrier.get("/health")
    assert (reply.status, reply.json) == (503, {"status": "draining"})


async def test_what_needs_no_model_answers_while_it_loads() -> None:
    service = server.service(load_seconds=0.05)
    async with running(service):
        carrier = Carrier(service)
        assert (await carrier.get("/health")).json == {"status": "loading"}
        assert (await carrier.get("/v1")).json["model"] is None
        assert (await carrier.get("/stats")).json["server"]["model"] is None
        assert service.loaded is None
        # And what needs it waits.
        listed, chat = await asyncio.gather(carrier.get("/v1/models"), carrier.chat())
        assert (listed.status, chat.status) == (200, 200)
        assert (await carrier.get("/v1")).json["model"] == server.MODEL_ID


async def test_a_model_that_failed_to_load_is_unavailable() -> None:
    async with running(server.service(load_failure="no such folder")) as service:
        carrier = Carrier(service)
        reply = await carrier.chat()
        assert (reply.status, reply.error["code"]) == (503, "unavailable")
        assert (await carrier.get("/health")).json == {"status": "failed"}


async def test_stats_count_what_the_engine_did(carrier: Carrier) -> None:
    before = (await carrier.get("/stats")).json
    completion = (await carrier.chat()).json
    after = (await carrier.get("/stats")).json
    assert after["finished"] - before["finished"] == 1
    drawn = after["generated_tokens"] - before["generated_tokens"]
    assert drawn == completion["usage"]["completion_tokens"]
    assert (after["active_rows"], after["server"]["model"]) == (0, server.MODEL_ID)


async def test_the_effective_configuration_names_value_source_and_note(carrier: Carrier) -> None:
    lines = (await carrier.get("/v1/effective-config")).json["settings"]
    assert lines[0] == {"name": "batch", "value": 8, "source": "default", "note": ""}


async def test_v1_says_who_serves_what_and_where(carrier: Carrier) -> None:
    about = (await carrier.get("/v1")).json
    assert about["name"] == "mlxbun"
    for line in about["endpoints"]:
        method, path = line.split()
        reply = await carrier.get(path.replace("{id}", "scripted"), method="OPTIONS")
        assert method in reply.headers["allow"], line
