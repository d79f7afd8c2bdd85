"""The Responses protocol over a real socket, with the official SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from doubles.compute import GREETING
from doubles.process import ServerProcess, serving
from doubles.server import MODEL_ID

FOREVER = "[forever]"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, step_seconds=0.002) as server:
        yield server
        # A step that breaks, as a test tells it to, is the engine's to report.
        assert not [line for line in server.complaints if "Traceback" not in line]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    url = f"{server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=20) as client:
        yield client


def test_the_sdk_creates_reads_and_deletes(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model=MODEL_ID, input="hi", temperature=0, metadata={"a": "b"}, user="u",
        prompt_cache_key="k", service_tier="auto", truncation="auto",
    )  # fmt: skip
    assert (made.status, made.output_text) == ("completed", GREETING)
    assert made._request_id is not None
    assert client.responses.retrieve(made.id) == made
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_the_sdks_stream_helper_gathers_the_same_answer(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL_ID, "input": "hi", "temperature": 0}
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert final.output_text == client.responses.create(**asked).output_text == GREETING
    assert final.usage is not None and final.usage.total_tokens > 0


def test_the_sdk_parses_what_is_text(client: openai.OpenAI) -> None:
    answer = client.responses.parse(model=MODEL_ID, input="[say:ab]")
    assert answer.output_text == "ab"


def test_a_conversation_is_continued_by_its_last_response(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL_ID, input="[say:one]", instructions="be brief")
    second = client.responses.create(
        model=MODEL_ID, input="[say:two]", previous_response_id=first.id
    )
    assert (second.output_text, second.instructions) == ("two", "be brief")
    listed = client.responses.input_items.list(second.id, order="asc", limit=1)
    texts = [item.content[0].text for item in listed]  # type: ignore[union-attr,index]
    assert texts == ["[say:one]", "one", "[say:two]"]  # page by page


def test_what_it_counts_is_what_it_uses(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL_ID, "input": "hi", "instructions": "be brief"}
    counted = client.responses.input_tokens.count(**asked)
    usage = client.responses.create(**asked).usage
    assert usage is not None and counted.input_tokens == usage.input_tokens


def test_another_connection_cancels_what_is_under_way(client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL_ID, input=FOREVER, stream=True)
    events = iter(stream)
    first: Any = next(events)
    assert client.responses.retrieve(first.response.id).status == "in_progress"
    assert client.responses.cancel(first.response.id).status == "cancelled"
    last: Any = list(events)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    assert client.responses.retrieve(first.response.id).status == "cancelled"


def test_a_client_that_leaves_ends_its_response(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    stream = client.responses.create(model=MODEL_ID, input=FOREVER, stream=True)
    first: Any = next(iter(stream))
    stream.close()
    server.wait_idle()
    assert client.responses.retrieve(first.response.id).status == "cancelled"


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (openai.NotFoundError, {"model": "gpt-5", "input": "hi"}),
        (openai.NotFoundError, {"input": "hi", "previous_response_id": "resp_missing"}),
        (openai.BadRequestError, {"input": []}),
        (openai.BadRequestError, {"input": "hi", "background": True}),
        (openai.BadRequestError, {"input": "x" * 5000}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks_own_classes(
    client: openai.OpenAI, kind: type[openai.APIStatusError], asked: Any, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.responses.create(**asked, stream=stream)
    assert caught.value.request_id is not None
    assert isinstance(caught.value.body, dict) and caught.value.body["message"]


def test_a_stream_that_breaks_ends_with_a_failed_response(client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL_ID, input="[break step]", stream=True)
    last: Any = list(stream)[-1]
    assert last.type == "response.failed"
    assert "model failed" in last.response.error.message


def test_the_slow_reading_of_a_prompt_is_told_in_events_that_clients_hear(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "log", keepalive_seconds=0.05, prompt_token_seconds=0.01) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        stream = client.responses.create(model=MODEL_ID, input="x" * 50, stream=True)
        events: list[Any] = list(stream)
        kinds = [event.type for event in events]
        assert kinds[:3] == ["response.created", "response.in_progress", "keepalive"]
        assert kinds[-1] == "response.completed"
        assert events[2].sequence_number == 1
        numbers = [event.sequence_number for event in events if event.type != "keepalive"]
        assert numbers == list(range(len(numbers)))


def test_a_server_that_stops_ends_the_stream_with_a_failed_response(tmp_path: Path) -> None:
    with serving(tmp_path / "log", shutdown_seconds=0.1, step_seconds=0.002) as server:
        body = {"input": FOREVER, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/responses", json=body, timeout=20) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: response.created"
            server.process.terminate()
            data = [line for line in lines if line.startswith("data: ")]
    last = json.loads(data[-1].removeprefix("data: "))
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert "shut down" in last["response"]["error"]["message"]
