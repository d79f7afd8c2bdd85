"""How a server starts, how it stops, and what it says meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from doubles.process import RawClient, serving, until

FOREVER = b'"content":"t"'


def begin(client: RawClient, content: str = "[forever]") -> None:
    """Start a stream and see it run."""
    client.chat(content, stream=True)
    client.read_until(b'"delta":{"content"')


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_is_finished_and_what_comes_is_refused(tmp_path: Path, signum: int) -> None:
    with (
        serving(tmp_path / "log", step_seconds=0.01) as server,
        RawClient(server) as running,
        RawClient(server) as late,
    ):
        late.post("/v1/chat/completions", b"{}")  # holds a connection from before
        assert late.status == 400
        late.received = b""
        begin(running, "[say:" + "x" * 50 + "]")
        server.signal(signum)
        until(lambda: server.get_status("/health") == 503)
        late.chat("hi")
        answer = late.read_until(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503") and b"retry-after" in answer
        assert b"[DONE]" in running.read_to_end()
        assert server.wait() == 0
        assert not server.complaints


@pytest.mark.parametrize("stream", [False, True])
def test_what_takes_too_long_is_cut_and_told(tmp_path: Path, stream: bool) -> None:
    with (
        serving(tmp_path / "log", step_seconds=0.01, shutdown_seconds=0.2) as server,
        RawClient(server) as client,
    ):
        client.chat("[forever]", stream=stream)
        until(lambda: server.stats()["generated_tokens"] > 0)
        server.signal(signal.SIGTERM)
        received = client.read_to_end()
        assert b'"code":"draining"' in received
        assert client.status == (200 if stream else 503)
        assert b"[DONE]" not in received
        assert server.wait() == 0
        assert not server.complaints


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path / "log", step_seconds=0.01) as server, RawClient(server) as client:
        begin(client)
        worker = server.worker
        server.signal(signal.SIGTERM)
        until(lambda: server.get_status("/health") != 200)
        os.kill(worker, signal.SIGTERM)
        assert b'"code":"draining"' in client.read_to_end()
        assert server.wait() == 0


def test_ctrl_c_drains_and_a_second_one_does_not_wait(tmp_path: Path) -> None:
    """A terminal's Ctrl-C goes to the supervisor and to the worker alike."""
    with serving(tmp_path / "log", step_seconds=0.01) as server, RawClient(server) as client:
        begin(client)
        os.killpg(server.process.pid, signal.SIGINT)
        until(lambda: "stopping" in server.output)
        client.received = b""
        client.read_until(FOREVER)  # it goes on
        os.killpg(server.process.pid, signal.SIGINT)
        assert b'"code":"draining"' in client.read_to_end()
        assert server.wait() == 0


def test_an_idle_server_stops_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server, RawClient(server) as idle:
        until(lambda: server.get_status("/health") == 200)
        idle.post("/v1/chat/completions", b"{}")  # then keeps its connection
        assert idle.status == 400
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_half_sent_body_does_not_hold_the_server(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server, RawClient(server) as client:
        until(lambda: server.get_status("/health") == 200)
        client.post("/v1/chat/completions", b"", content_length="1000", expect="100-continue")
        client.read_until(b"100 Continue\r\n\r\n")  # now it is being read
        client.received = b""
        server.signal(signal.SIGTERM)
        assert client.status == 503
        assert server.wait() == 0


def test_a_server_that_loads_answers_probes_and_stops_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "log", load_seconds=15.0) as server, RawClient(server) as client:
        assert server.get_status("/health") == 503
        client.chat("hi")
        server.signal(signal.SIGTERM)
        assert client.status == 503
        assert server.wait() == 0


def test_requests_that_come_while_the_model_loads_are_served(tmp_path: Path) -> None:
    with serving(tmp_path / "log", load_seconds=0.5) as server, RawClient(server) as client:
        assert server.get_status("/health") == 503
        client.chat("[say:ab]")
        assert client.status == 200
        assert server.get("/v1/models")["data"]


def test_without_a_model_the_process_says_why_and_fails(tmp_path: Path) -> None:
    reason = "no such folder: /models/none"
    with (
        serving(tmp_path / "log", load_seconds=1.0, load_failure=reason) as server,
        RawClient(server) as client,
    ):
        client.chat("hi")
        assert client.status == 503
        assert server.wait() != 0
        assert reason in server.output
        assert not server.complaints


def test_a_silent_stream_is_kept_alive_by_comments(tmp_path: Path) -> None:
    """The second waits for the first's row: nothing else is sent to it meanwhile."""
    with (
        serving(tmp_path / "log", step_seconds=0.01, max_rows=1, keepalive_seconds=0.1) as server,
        RawClient(server) as first,
        RawClient(server) as second,
    ):
        begin(first)
        second.chat("[say:ab]", stream=True)
        second.read_until(b": keep-alive\n\n")
        assert second.received.count(b'"role":"assistant"') == 1
        assert b": keep-alive" not in first.received
        first.close()
        second.received = b""
        assert b"[DONE]" in second.read_to_end()
