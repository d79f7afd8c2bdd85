"""What clients should not send, but do: never a 500, never a leak, nobody else disturbed."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from doubles.process import RawClient, ServerProcess, serving, until

MAX_BODY = 1_000_000
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(log, max_body_bytes=MAX_BODY, step_seconds=0.001, body_seconds=1.0) as server:
        until(lambda: server.get_status("/health") == 200)
        descriptors = server.num_descriptors
        yield server
        server.wait_idle()
        until(lambda: server.num_descriptors <= descriptors + 1)
        assert not server.complaints


def user(content: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()


def raw(fields: str) -> bytes:
    return b'{"messages":[{"role":"user","content":"hi"}],%s}' % fields.encode()


DEEP = "[" * 100_000 + "]" * 100_000
BODIES: dict[str, tuple[bytes, str | None]] = {
    "nothing": (b"", None),
    "garbage": (bytes(range(256)) * 16, None),
    "cut off": (b'{"messages": [', None),
    "a list": (b"[]", None),
    "no messages": (b"{}", "messages"),
    "empty messages": (b'{"messages":[]}', "messages"),
    "null messages": (b'{"messages":null}', "messages"),
    "an unknown role": (b'{"messages":[{"role":"alien","content":"x"}]}', "messages[0].role"),
    "no role": (b'{"messages":[{"content":"x"}]}', "messages[0].role"),
    "a number for content": (b'{"messages":[{"role":"user","content":1}]}', "messages[0].content"),
    "bytes that are no text": (b'{"messages":[{"role":"user","content":"\xff"}]}', None),
    "nesting": (raw(f'"x":{DEEP}'), None),
    "nesting in a tool": (raw(f'"tools":[{{"function":{{"name":"f","x":{DEEP}}}}}]'), None),
    "NaN": (raw('"temperature":NaN'), None),
    "Infinity": (raw('"temperature":Infinity'), None),
    "heat": (raw('"temperature":1e300'), "temperature"),
    "overflow": (raw('"temperature":1e999'), "temperature"),
    "a long number": (raw('"seed":' + "9" * 5000), "seed"),
    "a seed of 65 bits": (raw('"seed":18446744073709551616'), "seed"),
    "negative tokens": (raw('"max_tokens":-1'), "max_tokens"),
    "no tokens": (raw('"max_tokens":0'), "max_tokens"),
    "a thousand stops": (user(stop=["x"] * 1000), "stop"),
    "a stop of numbers": (user(stop=[1]), "stop[0]"),
    "a bias of names": (user(logit_bias={"hello": 1}), "logit_bias"),
    "a bias beyond the vocabulary": (user(logit_bias={"99999999": 1}), "logit_bias"),
    "a text for a switch": (user(stream="yes"), "stream"),
    "n of a million": (user(n=1_000_000), "n"),
    "10,000 messages": (
        json.dumps({"messages": [{"role": "user", "content": "x"}] * 10_000}).encode(),
        "messages",
    ),
    "a text beyond the window": (user("x" * 900_000), "messages"),
    "a format without its schema": (
        user(response_format={"type": "json_schema"}),
        "response_format.json_schema.schema",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_a_400_that_names_the_field(server: ServerProcess, name: str) -> None:
    body, param = BODIES[name]
    with RawClient(server) as client:
        client.post(CHAT, body)
        error = json.loads(client.read_answer())["error"]
        assert (client.status, error["param"]) == (400, param), error
        assert error["message"] and error["type"] == "invalid_request_error"


GOOD: dict[str, bytes] = {
    "NUL": user("a\0b"),
    "half a surrogate pair": raw('"user":"u"').replace(b'"hi"', rb'"x \ud83d y"'),
    "special tokens spelled out": user("<end><bos><end>"),
    "optional fields null": user(stop=None, seed=None, tools=None, logit_bias=None, n=None),
    "fields of tomorrow": user(x_unknown={"deep": [1]}, verbosity="low"),
    "256 stops": user(stop=[f"stop {i}" for i in range(256)]),
    "empty content": user(""),
    "a byte order mark": b"\xef\xbb\xbf" + user(),
    "whole numbers with a point": user(max_tokens=3.0, seed=7.0, n=1.0),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_odd_body_is_served(server: ServerProcess, name: str) -> None:
    with RawClient(server) as client:
        client.post(CHAT, GOOD[name])
        assert client.status == 200, client.received


def test_a_client_that_ends_its_body_early_and_listens_is_told(server: ServerProcess) -> None:
    with RawClient(server) as client:
        client.post(CHAT, b'{"messages": [', content_length="1000")
        client.socket.shutdown(socket.SHUT_WR)
        assert (client.status, json.loads(client.read_answer())["error"]["param"]) == (400, None)


def test_a_compressed_body_is_refused(server: ServerProcess) -> None:
    with RawClient(server) as client:
        client.post(CHAT, gzip.compress(user()), content_encoding="gzip")
        assert "gzip" in json.loads(client.read_answer())["error"]["message"]
        assert client.status == 400


@pytest.mark.parametrize("path", ["//v1/models", "/v1//models/", "/v1/models//doubles/scripted/"])
def test_slashes_of_a_careless_base_url_mean_nothing(server: ServerProcess, path: str) -> None:
    assert server.get_status(path) == 200


def test_a_body_above_the_limit_is_refused_unread(server: ServerProcess) -> None:
    with RawClient(server) as client:
        client.post(CHAT, b"", content_length=str(100_000_000))
        received = client.read_to_end()
    assert received.startswith(b"HTTP/1.1 413") and b"connection: close" in received
    assert b'"code":"body_too_large"' in received


def test_a_body_without_a_length_is_counted(server: ServerProcess) -> None:
    with RawClient(server) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        client.socket.sendall(head.encode())
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        try:
            for _ in range(2 * MAX_BODY // 0x10000):
                client.socket.sendall(chunk)
        except ConnectionError:
            pass  # it was told before we were done
        assert client.status == 413


def test_a_body_that_does_not_come_is_a_timeout(server: ServerProcess) -> None:
    with RawClient(server) as client:
        client.post(CHAT, b"{", content_length="1000")
        assert client.status == 408


@pytest.mark.parametrize("bytes_", [b"\x16\x03\x01\x02\x00", b"hello\r\n\r\n", b"\x00" * 1000])
def test_what_is_no_http_is_turned_away(server: ServerProcess, bytes_: bytes) -> None:
    with RawClient(server) as client:
        client.socket.sendall(bytes_)
        client.socket.shutdown(1)
        assert b"500" not in client.read_to_end().partition(b"\r\n")[0]
    assert server.get_status("/health") == 200


def test_200_connections_at_the_same_instant_are_all_answered(server: ServerProcess) -> None:
    """Eight rows run and 64 wait; whoever finds the queue full is told so."""
    clients = [RawClient(server) for _ in range(200)]
    for i, client in enumerate(clients):
        client.chat("[say:ab]", stream=i % 2 == 0)

    def outcome(client: RawClient) -> int:
        with client:
            body = client.read_answer()
            assert client.status != 200 or b"[DONE]" in body or b'"content":"ab"' in body
            return client.status

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(outcome, clients))
    assert set(outcomes) <= {200, 429}
    assert outcomes.count(200) >= 72


def test_a_client_that_does_not_read_holds_up_nobody(server: ServerProcess) -> None:
    with RawClient(server) as lazy, RawClient(server) as other:
        lazy.chat("[forever]", stream=True, max_tokens=2000)
        other.chat("[say:ab]", stream=True)
        assert b"[DONE]" in other.read_to_end()
        server.wait_idle()  # the lazy one's row ended too: nothing waits for its reading
        assert lazy.read_text() == "tick " * 400


def test_bad_requests_do_not_disturb_a_running_stream(server: ServerProcess) -> None:
    with RawClient(server) as running:
        running.chat("[say:" + "x" * 300 + "]", stream=True)
        running.read_until(b'"content":"x"')
        for body, _ in BODIES.values():
            with RawClient(server) as client:
                client.post(CHAT, body)
                assert client.status == 400
        assert running.read_text() == "x" * 300
