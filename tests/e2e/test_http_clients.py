"""Real clients over a real socket: the official SDK, and what browsers and probes send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import openai
import pytest

from doubles.compute import GREETING
from doubles.process import RawClient, ServerProcess, serving
from doubles.server import MODEL_ID

USER: Any = [{"role": "user", "content": "hi"}]
PAGE = "http://localhost:3000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, api_key="sk-test", origins="*", step_seconds=0.002) as server:
        yield server
        # A step that breaks, as a test tells it to, is the engine's to report.
        assert not [line for line in server.complaints if "Traceback" not in line]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="sk-test", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"x-api-key": "sk-test"}, timeout=20) as http:
        yield http


def test_the_sdk_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL_ID, messages=USER, temperature=0, max_completion_tokens=100, seed=1, user="u",
        store=False, metadata={"a": "b"}, service_tier="auto",
    )  # fmt: skip
    assert answer.choices[0].message.content == GREETING
    assert answer._request_id is not None


def test_the_sdks_stream_helper_gathers_the_same_text(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL_ID, messages=USER, temperature=0, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == GREETING
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None and final.usage.total_tokens > 0


def test_the_sdk_completes_texts(client: openai.OpenAI) -> None:
    prompts = ["[say:a]", "[say:b]"]
    answer = client.completions.create(model=MODEL_ID, prompt=prompts)
    assert [choice.text for choice in answer.choices] == ["a", "b"]
    stream = client.completions.create(model=MODEL_ID, prompt="[say:ab]", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "ab"


def test_the_sdk_lists_and_finds_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_ID]
    assert client.models.retrieve(MODEL_ID).id == MODEL_ID


@pytest.mark.parametrize(
    ("kind", "request_"),
    [
        (openai.NotFoundError, {"model": "gpt-5", "messages": USER}),
        (openai.BadRequestError, {"model": MODEL_ID, "messages": []}),
        (openai.BadRequestError, {"model": MODEL_ID, "messages": USER, "temperature": 9}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks_own_classes(
    client: openai.OpenAI, kind: type[openai.APIStatusError], request_: Any, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**request_, stream=stream)
    assert caught.value.request_id is not None
    assert isinstance(caught.value.body, dict) and caught.value.body["message"]


def test_a_stream_that_breaks_raises_in_the_sdk(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL_ID, messages=[{"role": "user", "content": "[break step]"}], stream=True
    )
    with pytest.raises(openai.APIError, match="model failed"):
        list(stream)


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-other").models.list()


def test_a_stream_that_is_left_early_leaves_the_server_free(
    client: openai.OpenAI, http: httpx.Client
) -> None:
    stream = client.chat.completions.create(
        model=MODEL_ID, messages=[{"role": "user", "content": "[forever]"}], stream=True
    )
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model=MODEL_ID, messages=USER, max_tokens=2).choices
    while http.get("/stats").json()["active_rows"]:
        pass
    assert http.get("/stats").json()["cancelled"] >= 1


@pytest.mark.parametrize("spelling", [MODEL_ID, quote(MODEL_ID, safe="")])
def test_an_id_with_a_slash_is_found_raw_and_escaped(http: httpx.Client, spelling: str) -> None:
    answer = http.get(f"/v1/models/{spelling}")
    assert (answer.status_code, answer.json()["id"]) == (200, MODEL_ID)


def test_the_probes_of_agents_are_answered_without_a_key(server: ServerProcess) -> None:
    head = httpx.head(server.url + "/")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    health = httpx.get(server.url + "/health")
    assert (health.status_code, health.content) == (200, b'{"status": "ok"}')


def test_a_page_may_ask_and_read(http: httpx.Client) -> None:
    asked = "authorization,content-type,x-stainless-os"
    preflight = http.options(
        "/v1/chat/completions",
        headers={"origin": PAGE, "access-control-request-method": "POST",
                 "access-control-request-headers": asked},
    )  # fmt: skip
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] in ("*", PAGE)
    assert preflight.headers["access-control-allow-headers"] == asked
    for answer in (
        http.get("/v1/models", headers={"origin": PAGE}),
        http.post("/v1/chat/completions", headers={"origin": PAGE}, content=b"{"),
        http.post(
            "/v1/chat/completions",
            headers={"origin": PAGE},
            json={"messages": USER, "stream": True},
        ),
    ):
        assert answer.headers["access-control-allow-origin"] in ("*", PAGE)


def test_another_method_is_405_and_elsewhere_404(http: httpx.Client) -> None:
    wrong = http.delete("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST, OPTIONS")
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"


def test_a_clients_request_id_comes_back(http: httpx.Client) -> None:
    answer = http.get("/v1/models", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == answer.headers["request-id"] == "mine-1"


def test_one_connection_carries_many_requests(server: ServerProcess) -> None:
    with RawClient(server) as client:
        for _ in range(20):
            client.received = b""
            client.post("/v1/completions", {"prompt": "[say:ab]"}, x_api_key="sk-test")
            assert json.loads(client.read_answer())["choices"][0]["text"] == "ab"
            assert client.status == 200
