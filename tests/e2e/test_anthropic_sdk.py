"""Anthropic's official SDK, and requests in the shapes that Claude Code sends, over a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from doubles.compute import GREETING
from doubles.process import ServerProcess, serving
from doubles.server import MODEL_ID

USER: Any = [{"role": "user", "content": "hi"}]
GREEDY: Any = {"temperature": 0}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLAUDE_CODE: dict[str, str] = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,novelty-2099-01-01",
    "anthropic-dangerous-direct-browser-access": "true",
    "x-app": "cli",
    "x-api-key": "sk-test",
}
BASH = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}
TURN: dict[str, Any] = {
    "model": "claude-opus-4-8",
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.c40;"},
        {"type": "text", "text": "You are an agent.", **EPHEMERAL},
    ],
    "tools": [BASH],
    "metadata": {"user_id": "u" * 150},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "<system-reminder>"},
                                 {"type": "text", "text": "look", **EPHEMERAL}]},
    {"role": "system", "content": "Agents: none."},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "so", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "eA=="},
        {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}},
    ]},
    {"role": "user", "content": [
        {"tool_use_id": "toolu_1", "type": "tool_result", "content": "a.png", "is_error": False},
        {"tool_use_id": "toolu_2", "type": "tool_result", "is_error": True, **EPHEMERAL,
         "content": [{"type": "text", "text": "bad"}]},
        {"type": "text", "text": "and?"},
    ]},
    {"role": "assistant", "content": [
        {"type": "tool_use", "id": "toolu_3", "name": "Bash", "input": {"command": "cat a.png"}},
    ]},
    {"role": "user", "content": [
        {"tool_use_id": "toolu_3", "type": "tool_result", "content": [
            {"type": "image", "source": {"type": "base64", "data": "iVBORw0K",
                                         "media_type": "image/png"}}]},
    ]},
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, api_key="sk-test", context_window=8192) as server:
        yield server
        # A step that breaks, as a test tells it to, is the engine's to report.
        assert not [line for line in server.complaints if "Traceback" not in line]


@pytest.fixture
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="sk-test", max_retries=0, timeout=20
    ) as client:
        yield client


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=CLAUDE_CODE, timeout=20) as http:
        yield http


def texts(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_the_sdk_asks_and_streams_the_same(client: anthropic.Anthropic) -> None:
    asked: Any = {"model": MODEL_ID, "max_tokens": 100, "messages": USER, "extra_body": GREEDY}
    answer = client.messages.create(**asked)
    assert texts(answer) == GREETING
    assert answer._request_id is not None
    with client.messages.stream(**asked) as stream:
        shown = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert shown == GREETING
    assert (final.stop_reason, final.usage.output_tokens) == (
        answer.stop_reason, answer.usage.output_tokens,
    )  # fmt: skip


def test_the_sdk_counts_what_a_request_then_has(client: anthropic.Anthropic) -> None:
    tool: Any = {"name": "t", "input_schema": {"type": "object", "properties": {}}}
    asked: Any = {"model": MODEL_ID, "messages": USER, "system": "s", "tools": [tool]}
    counted = client.messages.count_tokens(**asked).input_tokens
    usage = client.messages.create(**asked, max_tokens=1).usage
    assert counted == (
        usage.input_tokens
        + (usage.cache_creation_input_tokens or 0)
        + (usage.cache_read_input_tokens or 0)
    )


def test_the_sdk_lists_and_finds_the_model(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == [MODEL_ID]
    assert client.models.retrieve(MODEL_ID).type == "model"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (anthropic.NotFoundError, {"model": "gpt-5"}),
        (anthropic.BadRequestError, {"messages": []}),
        (anthropic.BadRequestError, {"max_tokens": -1}),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdks_own_classes(
    client: anthropic.Anthropic, kind: type[anthropic.APIStatusError], fields: Any, stream: bool
) -> None:
    asked: Any = {"model": MODEL_ID, "max_tokens": 5, "messages": USER, **fields}
    with pytest.raises(kind) as caught:
        client.messages.create(**asked, stream=stream)
    body: Any = caught.value.body
    assert caught.value.request_id == body["request_id"]
    assert body["type"] == "error" and body["error"]["message"]


def test_a_wrong_key_is_an_authentication_error(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError) as caught:
        client.with_options(api_key="sk-other").messages.create(
            model=MODEL_ID, max_tokens=5, messages=USER
        )
    body: Any = caught.value.body
    assert body["error"]["type"] == "authentication_error"


def test_a_stream_that_breaks_raises_in_the_sdk(client: anthropic.Anthropic) -> None:
    broken: Any = [{"role": "user", "content": "[break step]"}]
    with (
        pytest.raises(anthropic.APIStatusError, match="model failed"),
        client.messages.stream(model=MODEL_ID, max_tokens=9, messages=broken) as stream,
    ):
        stream.get_final_message()


def test_a_stream_that_is_left_early_leaves_the_server_free(
    client: anthropic.Anthropic, server: ServerProcess
) -> None:
    forever: Any = [{"role": "user", "content": "[forever]"}]
    with client.messages.stream(model=MODEL_ID, max_tokens=5000, messages=forever) as stream:
        next(iter(stream.text_stream))
    with httpx.Client(base_url=server.url, headers=CLAUDE_CODE, timeout=20) as http:
        while http.get("/stats").json()["active_rows"]:
            pass
        assert http.get("/stats").json()["cancelled"] >= 1


@pytest.mark.parametrize("length", range(1, len(HISTORY) + 1))
def test_claude_codes_history_is_taken_at_every_turn(http: httpx.Client, length: int) -> None:
    messages = HISTORY[:length]
    if messages[-1]["role"] == "assistant":
        return
    answer = http.post("/v1/messages?beta=true", json={**TURN, "messages": messages})
    assert answer.status_code == 200, answer.text
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[0] == "message_start" and names[-1] == "message_stop"


def test_claude_codes_search_is_answered_in_text(http: httpx.Client) -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    body = {
        **TURN, "tools": [search], "tool_choice": {"type": "auto"}, "messages": USER,
    }  # fmt: skip
    answer = http.post("/v1/messages?beta=true", json=body)
    assert answer.status_code == 200
    assert "web_search_20250305" in answer.headers["warning"]


def test_a_heartbeat_is_a_ping_of_the_protocols_own(tmp_path: Any) -> None:
    with (
        serving(tmp_path / "log", prompt_token_seconds=0.05, keepalive_seconds=0.2) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        body = {"max_tokens": 2, "messages": USER, "stream": True}
        with http.stream("POST", "/v1/messages", json=body) as answer:
            records = "".join(answer.iter_text()).split("\n\n")
    assert records[0].startswith("event: message_start")
    assert records[1] == 'event: ping\ndata: {"type":"ping"}'
    assert json.loads(records[-2].partition("data: ")[2]) == {"type": "message_stop"}
