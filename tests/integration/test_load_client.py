"""The load client against a server whose tokens and usage are known."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from doubles.streaming_server import WORDS_BEFORE, StreamingServer
from mlxbun.adapters.bench import command, cpu, latency, robustness
from mlxbun.adapters.bench.client import Client, Endpoint
from mlxbun.adapters.bench.generation import Generation, generate
from mlxbun.adapters.bench.load import RequestShape, run_load, summarise
from mlxbun.adapters.bench.prompts import CannotProbe, Prompts, words_for

T = TypeVar("T")
Use = Callable[[StreamingServer], Awaitable[T]]
CHAT = RequestShape(prompt_tokens=20, max_tokens=12)


def using(server: StreamingServer, use: Use[T]) -> T:
    """Run `use` beside a listening server."""

    async def run() -> T:
        async with server.listening():
            return await use(server)

    return asyncio.run(run())


async def answered(endpoint: Endpoint) -> Generation:
    async with Client(endpoint) as client:
        return await generate(client, CHAT.path, CHAT.payload("hello", 1))


async def probed(server: StreamingServer) -> int:
    async with Client(Endpoint(server.url)) as client:
        return await words_for(client, CHAT, 100)


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("chat", [True, False])
def test_every_token_of_every_client_is_counted_and_timed(keep_alive: bool, chat: bool) -> None:
    shape = RequestShape(chat=chat, max_tokens=12)
    server = StreamingServer(keep_alive=keep_alive)

    run = using(
        server,
        lambda s: run_load(Endpoint(s.url), shape, Prompts(9), num_clients=3, num_requests=2,
                           pid=os.getpid()),
    )  # fmt: skip

    assert [answer.error for answer in run.answers] == [""] * 6
    assert {answer.text for answer in run.answers} == {"".join(f"t{i} " for i in range(12))}
    assert {answer.finish_reason for answer in run.answers} == {"length"}
    result = summarise([run])
    assert (result.num_requests, result.num_errors, result.completion_tokens) == (6, 0, 72)
    assert result.prompt_tokens == 6 * (9 + WORDS_BEFORE)
    assert result.tokens_per_second == pytest.approx(72 / run.seconds)
    assert result.ttft_ms is not None and result.ttft_ms.num_samples == 6
    assert result.gap_ms is not None and result.gap_ms.num_samples == 6 * 11
    assert result.server_cpu_ms_per_token is not None
    assert server.num_connections == (3 if keep_alive else 6)


def test_the_role_chunk_is_not_the_first_text() -> None:
    answer = using(StreamingServer(), lambda s: answered(Endpoint(s.url)))
    assert len(answer.arrivals) == 12
    assert answer.started < answer.arrivals[0] <= answer.arrivals[-1] <= answer.ended


def test_what_a_server_refuses_is_an_error_with_its_words() -> None:
    server = StreamingServer(refuse=(429, "the queue is full"))
    run = using(
        server,
        lambda s: run_load(Endpoint(s.url), CHAT, Prompts(3), num_clients=2, num_requests=1),
    )
    result = summarise([run])
    assert (result.num_errors, result.completion_tokens, result.ttft_ms) == (2, 0, None)
    assert "429" in result.errors[0] and "the queue is full" in result.errors[0]


def test_a_server_that_is_not_there_is_an_error() -> None:
    endpoint = Endpoint("http://127.0.0.1:9")  # discard: nobody listens
    answer = asyncio.run(answered(endpoint))
    assert answer.error.startswith("ConnectionRefusedError")


def test_prompts_get_the_length_that_was_asked_for() -> None:
    assert using(StreamingServer(), probed) == 100 - WORDS_BEFORE


def test_a_server_that_refuses_the_probe_is_named() -> None:
    with pytest.raises(CannotProbe, match="no model"):
        using(StreamingServer(refuse=(503, "no model")), probed)


def test_short_requests_are_timed_beside_a_running_stream() -> None:
    found = using(
        StreamingServer(),
        lambda s: latency.ttft_beside_stream(
            Endpoint(s.url), CHAT, Prompts(4), [(CHAT, Prompts(4, 1), 5), (CHAT, Prompts(9), 2)],
            stream_tokens=1_000_000,
        ),
    )  # fmt: skip
    assert [kind.num_samples for kind in found] == [5, 2]
    assert all(0 < kind.p50 <= kind.max for kind in found)


def test_a_stream_that_ends_early_spoils_the_scenario() -> None:
    with pytest.raises(latency.ScenarioFailed, match="ended early"):
        using(
            StreamingServer(),
            lambda s: latency.ttft_beside_stream(
                Endpoint(s.url), CHAT, Prompts(4), [(CHAT, Prompts(4, 1), 1)], stream_tokens=3
            ),
        )


def test_gaps_of_a_running_stream_are_seen_while_others_join() -> None:
    cost = using(
        StreamingServer(),
        lambda s: latency.join(
            Endpoint(s.url), CHAT, Prompts(4), Prompts(50), num_joining=3, stream_tokens=1_000_000
        ),
    )
    assert 0 < cost.usual_gap_seconds <= cost.worst_gap_seconds
    assert cost.prompt_tokens == 3 * (50 + WORDS_BEFORE)


def test_connections_of_a_burst_that_are_told_no_are_not_lost() -> None:
    found = using(
        StreamingServer(refuse=(429, "full")), lambda s: robustness.burst(Endpoint(s.url), 40)
    )
    assert (found.num_answered, found.num_refused, found.num_lost) == (0, 40, 0)


def test_connections_of_a_burst_without_a_server_are_lost() -> None:
    found = asyncio.run(robustness.burst(Endpoint("http://127.0.0.1:9"), 8))
    assert (found.num_answered, found.num_lost) == (0, 8)


def test_the_command_measures_a_running_server_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = StreamingServer()
    words = ["serve", "--clients", "1,2", "--rounds", "1", "--max-tokens", "5", "--seeded"]
    words += ["--temperature", "0.5", "--top-p", "0.9", "--ignore-eos"]
    words += ["--json", str(tmp_path / "found.json"), "--picture", str(tmp_path / "found.svg")]

    async def use(server: StreamingServer) -> int:
        return await asyncio.to_thread(command.run, [*words, "--url", server.url + "/v1"])

    assert using(server, use) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert [r["completion_tokens"] for r in found["arms"][0]["results"]] == [2 * 5, 2 * 2 * 5]
    assert (tmp_path / "found.svg").read_text().startswith("<svg")
    assert "tok/s" in capsys.readouterr().out
    asked = server.requests[-1]
    assert asked["model"] == "stub"
    assert (asked["temperature"], asked["top_p"], asked["ignore_eos"]) == (0.5, 0.9, True)
    assert isinstance(asked["seed"], int)


def test_the_command_says_when_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["serve", "--url", "http://127.0.0.1:9"]) == 1
    assert "ConnectionRefusedError" in capsys.readouterr().err


def test_the_time_of_this_process_is_at_least_what_its_own_clock_says() -> None:
    times = os.times()
    assert cpu.cpu_seconds(os.getpid()) >= times.user + times.system - 0.02
