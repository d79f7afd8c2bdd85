"""The Responses protocol over a real socket, with the official SDK."""

from __future__ import annotations

import json
import signal
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


def test_what_is_in_the_background_goes_on_without_its_client_and_is_read_on(
    client: openai.OpenAI, server: ServerProcess
) -> None:
    text = "and so on " * 20
    stream: Any = client.responses.create(input=f"[say:{text}]", background=True, stream=True)
    first: Any = next(iter(stream))
    stream.close()
    again: Any = client.responses.retrieve(first.response.id, stream=True, starting_after=0)
    events = list(again)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text
    runs = client.responses.create(input=FOREVER, background=True)
    assert server.stats()["active_rows"] == 1
    assert client.responses.cancel(runs.id).status == "cancelled"
    server.wait_idle()
    assert client.responses.retrieve(runs.id).status == "cancelled"


def test_a_server_that_stops_waits_for_the_background_and_tells_its_readers_that_it_failed(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "log", step_seconds=0.01, shutdown_seconds=0.2) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", timeout=20) as client:
            runs = client.responses.create(input=FOREVER, background=True)
            events: Any = iter(client.responses.retrieve(runs.id, stream=True))
            next(events)
            server.signal(signal.SIGTERM)
            last = list(events)[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert "shut down" in last.response.error.message
        assert server.wait() == 0
        assert not server.complaints


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (openai.NotFoundError, {"model": "gpt-5", "input": "hi"}),
        (openai.NotFoundError, {"input": "hi", "previous_response_id": "resp_missing"}),
        (openai.BadRequestError, {"input": []}),
        (openai.BadRequestError, {"input": "hi", "background": True, "store": False}),
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
