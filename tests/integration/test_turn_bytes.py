"""What a turn of a chat adds to RAM and disk, where only some layers can be cut: its own tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cache_sizes import sizes
from engine_driver import Arrival, generate, open_compute
from mlxbun.adapters.mlx_compute import loading
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.domain.blocks import BLOCK
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute
from tier_driver import GREEDY, Process

NAMES = ["tiny-gemma3", "tiny-qwen3-5", "tiny-gpt-oss", "tiny-falcon-h1"]
FIRST, TURN, MAX_TOKENS = 3 * BLOCK + 70, 300, 12  # tokens
TURNS = [(0, 1), (2, 3)]  # of each process
SMALL = 1024  # bytes of a copy's numbers, or of a file's header


def ids(seed: int, length: int) -> tuple[int, ...]:
    return tuple((seed * 37 + i * i * 13 + i * 7) % 450 + 5 for i in range(length))


def opener(folder: Path) -> Callable[[], Compute]:
    return lambda: open_compute(loading.load(folder, "native").model, l1=False)()


def num_bytes(process: Process) -> int:
    assert process.prefixes is not None
    return process.prefixes.blocks.state.ram_bytes


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_keeps_and_writes_its_own_tokens_and_a_state_of_fixed_size(
    name: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Half of the turns are in one process, the others in the next."""
    folder = tiny_model(name)
    token, rest = sizes(folder)
    chat, prompts, answers = list(ids(1, FIRST)), list[tuple[int, ...]](), list[list[int]]()
    for turns in TURNS:
        process = Process(tmp_path / "ssd", opener(folder), leave_thread=leave_thread)
        num_kept = num_written = 0
        for turn in turns:
            client = process.ask(chat, MAX_TOKENS)
            if turn:
                assert client.reused == len(prompts[-1]) - 1, "all up to the end of its prompt"
            report = process.flush()
            assert report.durable
            # Its own tokens, and what the turn before had of the block in which it began.
            tokens = (TURN + MAX_TOKENS if turn else FIRST) + BLOCK
            num_files = 1 + tokens // BLOCK
            written = report.bytes_written - num_written
            assert 0 < written <= token * tokens + rest + num_files * SMALL
            if turn != TURNS[1][0]:  # which has what was before from the disk
                added = num_bytes(process) - num_kept
                assert 0 < added <= token * tokens + rest + SMALL
            num_kept, num_written = num_bytes(process), report.bytes_written
            prompts.append(tuple(chat))
            answers.append(client.tokens)
            chat += [*client.tokens, *ids(20 + turn, TURN)]
        process.stop()
    arrivals = [Arrival(prompt, GREEDY, MAX_TOKENS, after_all=True) for prompt in prompts]
    assert answers == generate(opener(folder), arrivals, Limits(max_rows=3))
