"""OpenAI's own client, which gives up too early and tries again, is answered once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from doubles.process import RawClient, ServerProcess, serving

LONG = "[say:" + "x" * 100 + "]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that takes a second for LONG."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, step_seconds=0.01) as server:
        yield server
        assert not server.complaints


def complete(server: ServerProcess, key: str | None) -> str:
    """Return LONG's answer, asked for with a quarter of the time that it takes."""
    headers = {"Idempotency-Key": key} if key is not None else None
    with OpenAI(base_url=server.url + "/v1", api_key="any", timeout=0.25, max_retries=6) as client:
        done = client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": LONG}], extra_headers=headers
        )
    return done.choices[0].message.content or ""


def test_a_client_that_times_out_and_tries_again_is_answered_once(server: ServerProcess) -> None:
    before = server.wait_idle()
    assert complete(server, "one") == "x" * 100
    after = server.wait_idle()
    assert after["submitted"] - before["submitted"] == 1
    assert after["cancelled"] == before["cancelled"]


def test_a_client_that_drops_its_connection_finds_its_answer(server: ServerProcess) -> None:
    before = server.wait_idle()
    body = b'{"messages":[{"role":"user","content":"%s"}],"stream":true}' % LONG.encode()
    lost = RawClient(server)
    lost.post("/v1/chat/completions", body, idempotency_key="two")
    lost.read_until(b'"content":"x"')
    lost.reset()
    with RawClient(server) as again:
        again.post("/v1/chat/completions", body, idempotency_key="two")
        assert again.read_text() == "x" * 100
    after = server.wait_idle()
    assert after["submitted"] - before["submitted"] == 1
    assert after["finished"] - before["finished"] == 1
