"""A client that leaves, at every phase, takes everything with it that it held."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.process import RawClient, ServerProcess, serving, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One row at a time, slow to read a prompt: 1 ms a token."""
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(
        log, step_seconds=0.005, prompt_token_seconds=0.001, max_rows=1, max_waiting=8
    ) as server:
        yield server
        assert not server.complaints


@pytest.fixture
def cancelled(server: ServerProcess) -> Iterator[list[int]]:
    """What the test puts in is how many rows it expects to be cancelled."""
    before = server.wait_idle()
    descriptors = server.num_descriptors
    expected: list[int] = []
    yield expected
    after = server.wait_idle()
    assert after["cancelled"] - before["cancelled"] == sum(expected)
    until(lambda: server.num_descriptors <= descriptors)


LEAVING = pytest.mark.parametrize("leave", ["close", "reset"])


@LEAVING
def test_while_it_decodes(server: ServerProcess, cancelled: list[int], leave: str) -> None:
    client = RawClient(server)
    client.chat("[forever]", stream=True)
    client.read_until(b'"content":"t"')
    getattr(client, leave)()
    cancelled.append(1)


@LEAVING
def test_while_it_decodes_an_answer_that_is_not_streamed(
    server: ServerProcess, cancelled: list[int], leave: str
) -> None:
    client = RawClient(server)
    drawn = server.stats()["generated_tokens"]
    client.chat("[forever]")
    until(lambda: server.stats()["generated_tokens"] > drawn)
    getattr(client, leave)()
    cancelled.append(1)


@LEAVING
@pytest.mark.parametrize("stream", [False, True])
def test_while_its_prompt_is_read(
    server: ServerProcess, cancelled: list[int], leave: str, stream: bool
) -> None:
    """The prompt takes seconds; the row is gone after the chunk that is being read."""
    client = RawClient(server)
    prefilled = server.stats()["prefilled_tokens"]
    client.chat("[forever]" + "x" * 3000, stream=stream)
    until(lambda: server.stats()["prefilled_tokens"] > prefilled)
    getattr(client, leave)()
    after = server.wait_idle()
    assert after["prefilled_tokens"] - prefilled < 3000
    cancelled.append(1)


@LEAVING
@pytest.mark.parametrize("stream", [False, True])
def test_while_it_waits_for_its_turn(
    server: ServerProcess, cancelled: list[int], leave: str, stream: bool
) -> None:
    first, second = RawClient(server), RawClient(server)
    first.chat("[forever]", stream=True)
    first.read_until(b'"content":"t"')
    second.chat("[forever]", stream=stream)
    until(lambda: server.stats()["waiting_rows"] == 1)
    getattr(second, leave)()
    until(lambda: server.stats()["waiting_rows"] == 0)
    first.received = b""
    first.read_until(b'"content":"t"')  # the one that stayed goes on
    first.close()
    cancelled.append(2)


@LEAVING
def test_in_the_middle_of_its_body(server: ServerProcess, cancelled: list[int], leave: str) -> None:
    submitted = server.stats()["submitted"]
    client = RawClient(server)
    client.post("/v1/chat/completions", b'{"messages": [', content_length="1000")
    getattr(client, leave)()
    assert server.wait_idle()["submitted"] == submitted
    cancelled.append(0)


def test_all_rows_of_a_request_leave_together(server: ServerProcess, cancelled: list[int]) -> None:
    client = RawClient(server)
    client.chat("[forever]", stream=True, n=3)
    client.read_until(b'"content":"t"')
    client.close()
    cancelled.append(3)


def test_a_connection_serves_again_after_each_answer(server: ServerProcess) -> None:
    """A watcher left behind by one answer must not hear of the next one's client."""
    client = RawClient(server)
    for _ in range(5):
        client.received = b""
        client.chat("[say:ab]", stream=True)
        assert b"[DONE]" in client.read_to_end()
    before = server.wait_idle()["cancelled"]
    client.received = b""
    client.chat("[forever]", stream=True)
    client.read_until(b'"content":"t"')
    client.close()
    assert server.wait_idle()["cancelled"] == before + 1


def test_while_the_model_loads(tmp_path: Path) -> None:
    with serving(tmp_path / "log", load_seconds=1.0) as server:
        client = RawClient(server)
        client.chat("[forever]")
        client.close()
        with RawClient(server) as staying:
            staying.chat("[say:ab]")
            assert staying.status == 200
        assert server.wait_idle()["submitted"] == 1
