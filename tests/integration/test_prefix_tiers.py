"""RAM and disk under real models: what comes back answers as what was computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_driver import Arrival, generate, open_compute
from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute
from tier_driver import GREEDY, Client, Process, damage

NAMES = ["tiny-llama", "tiny-qwen3-5", "tiny-gemma3"]
MAX_TOKENS = 8

Start = Callable[..., Process]


def ids(seed: int, length: int) -> tuple[int, ...]:
    return tuple((seed * 37 + i * i * 13 + i * 7) % 450 + 5 for i in range(length))


@pytest.fixture(params=NAMES)
def opener(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]
) -> Callable[[], Compute]:
    """Return what loads a model on the engine's thread, as the server does."""
    folder = tiny_model(request.param)
    return lambda: open_compute(loading.load(folder, "native").model, l1=False)()


@pytest.fixture
def start(opener: Callable[[], Compute], tmp_path: Path) -> Iterator[Start]:
    """Return what starts a server on one folder; whoever runs at the end is stopped."""
    started: list[Process] = []

    def begin(ram_bytes: int = 1 << 30) -> Process:
        folder = tmp_path / "ssd"
        started.append(Process(folder, opener, ram_bytes=ram_bytes, leave_thread=leave_thread))
        return started[-1]

    yield begin
    started[-1].stop()


def cold(opener: Callable[[], Compute], prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """Return the answers of an engine that keeps nothing."""
    arrivals = [Arrival(prompt, GREEDY, MAX_TOKENS, after_all=True) for prompt in prompts]
    return generate(opener, arrivals, Limits(max_rows=3))


def events(process: Process, kind: type) -> list[object]:
    return [e for batch in process.journal.read() for e in batch.events if isinstance(e, kind)]


def test_answers_after_a_restart_are_those_of_a_cold_start(
    start: Start, opener: Callable[[], Compute]
) -> None:
    chat = ids(1, 3 * BLOCK + 70)
    prompts = [chat, (*chat[:-1], *ids(2, 90)), chat]
    expected = cold(opener, prompts)
    before = start()
    assert before.ask(prompts[0], MAX_TOKENS).tokens == expected[0]
    report = before.stop()
    assert report is not None and report.durable and report.written_blocks > 0
    after = start()
    answers = [after.ask(prompt, MAX_TOKENS) for prompt in prompts]
    assert [answer.tokens for answer in answers] == expected
    assert min(answer.reused for answer in answers) >= 3 * BLOCK
    assert events(after, residency.BlocksRestored)
    assert after.flush().restored_blocks > 0


def test_state_that_ram_has_no_room_for_comes_back_from_the_disk(
    start: Start, opener: Callable[[], Compute]
) -> None:
    prompts = [ids(seed, 2 * BLOCK + 30) for seed in (1, 2, 3)]
    expected = cold(opener, prompts)
    probe = start()
    probe.ask(prompts[0], MAX_TOKENS)
    probe.stop()
    assert probe.prefixes is not None
    room = probe.prefixes.blocks.state.ram_bytes * 3 // 2  # for one conversation, not for two
    process = start(ram_bytes=room)
    answers = list[Client]()
    for prompt in [*prompts, *prompts]:
        answers.append(process.ask(prompt, MAX_TOKENS))
        process.flush()
    assert [answer.tokens for answer in answers] == [*expected, *expected]
    assert min(answer.reused for answer in answers[3:]) >= 2 * BLOCK
    assert events(process, residency.BlocksEvicted)
    assert len(events(process, residency.BlocksRestored)) >= 2
    assert process.prefixes is not None
    assert process.prefixes.blocks.state.ram_bytes <= room * residency.CEILING


def test_a_damaged_file_is_computed_again_and_said(
    start: Start, opener: Callable[[], Compute], caplog: pytest.LogCaptureFixture
) -> None:
    prompt = ids(1, 3 * BLOCK + 70)
    [expected] = cold(opener, [prompt])
    before = start()
    before.ask(prompt, MAX_TOKENS)
    before.stop()
    after = start()
    for path in after.stored():
        damage(path)
    with caplog.at_level(logging.WARNING):
        answer = after.ask(prompt, MAX_TOKENS)
    assert (answer.tokens, answer.reused) == (expected, 0)
    assert after.flush().lost_blocks > 0
    assert events(after, residency.BlocksForgotten)
    assert any("not restored" in record.getMessage() for record in caplog.records)
    again = after.ask(prompt, MAX_TOKENS)
    assert (again.tokens, again.reused > 0) == (expected, True)
    assert after.flush().durable, "it was written anew"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([2, BLOCK, BLOCK + 1, 2 * BLOCK + 9, 3 * BLOCK]),
            st.integers(0, 2),
            st.sampled_from([0, 1, 40]),
            st.sampled_from(["together", "alone", "after a restart", "after harm"]),
        ),
        min_size=2,
        max_size=7,
    ),
    st.sampled_from([1 << 30, 1_500_000, 300_000]),
)
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_timeline_through_both_tiers_answers_as_a_cold_start(
    opener: Callable[[], Compute],
    tmp_path_factory: pytest.TempPathFactory,
    asked: list[tuple[int, int, int, int, str]],
    ram_bytes: int,
) -> None:
    prompts = [ids(a, n) + ids(7 + b, m) for a, n, b, m, _ in asked]
    expected = cold(opener, prompts)
    folder = tmp_path_factory.mktemp("tiers") / "ssd"
    process = Process(folder, opener, ram_bytes=ram_bytes, leave_thread=leave_thread)
    try:
        clients: list[Client] = []
        for prompt, (*_, how) in zip(prompts, asked, strict=True):
            if how != "together":
                for client in clients:
                    assert client.over.wait(60)
            if how in ("after a restart", "after harm"):
                process.stop()
                if how == "after harm":
                    for path in process.stored()[::2]:
                        damage(path)
                process = Process(folder, opener, ram_bytes=ram_bytes, leave_thread=leave_thread)
            clients.append(process.submit(prompt, MAX_TOKENS))
        for client in clients:
            assert client.over.wait(60), "a request waits for ever"
        assert [client.tokens for client in clients] == expected
    finally:
        process.stop()
