"""What a checkpoint writes: the tokens since the one before it, and what cannot be cut."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cache_sizes import sizes
from doubles.files import SteppedFiles
from engine_driver import open_compute
from mlxbun.adapters.mlx_compute.opening import leave_thread
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.domain.blocks import BLOCK
from mlxbun.domain.generation_checkpoint import CheckpointSaved, private
from mlxbun.domain.sampling import SamplingParams
from resume_driver import SPACE, Resumable

GREEDY = SamplingParams(temperature=0.0)
EVERY, PROMPT, NUM_SAVED = 16, 3 * BLOCK + 120, 30
SMALL = 1024  # bytes of a file's header, or of a state's numbers


class CountingFiles(SteppedFiles):
    """The real disk, which counts the bytes that it was given, and the files."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes_written = 0
        self.num_files = 0

    def create(self, path: Path) -> int:
        self.num_files += 1
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data)
        self.num_bytes_written += written
        return written


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-qwen3-5"])
def test_a_checkpoint_writes_what_is_new(
    name: str, tiny_model: Callable[[str], Path], load: Callable[[str], Any], tmp_path: Path
) -> None:
    token, rest = sizes(tiny_model(name))
    files = CountingFiles()
    store = open_block_store(tmp_path / "ssd", files=files)
    of_lock = files.num_bytes_written
    life = Resumable(
        open_compute(load(name), l1=False),
        store,
        store.generations,
        every=EVERY,
        cut_after=NUM_SAVED,
        leave_thread=leave_thread,
    )
    asked = [(7 * i * i + 3 * i) % 500 for i in range(PROMPT)]
    client = life.submit(asked, GREEDY, 1000)
    life.wait_saved(NUM_SAVED)
    assert life.flush_blocks().durable
    of_prompt = life.flush_blocks().bytes_written
    saved = [event for event in life.events(CheckpointSaved) if isinstance(event, CheckpointSaved)]
    assert len(saved) == NUM_SAVED
    assert sum(event.num_bytes for event in saved) + of_prompt == files.num_bytes_written - of_lock
    assert of_prompt <= PROMPT * token + 2 * rest + files.num_files * SMALL
    whole = 0
    for before, after in pairwise(saved):
        new = after.num_tokens - before.num_tokens
        read = PROMPT + before.num_tokens - 1, PROMPT + after.num_tokens - 1
        blocks = read[1] // BLOCK - read[0] // BLOCK
        whole += blocks
        assert 0 < after.num_bytes <= (new + blocks * BLOCK) * token + rest + 3 * SMALL
    assert whole == 2, "it went over the ends of blocks"
    # What they took the place of is gone: of the last block's tokens one copy, of the rest one.
    kept = store.known(private(SPACE))
    last = (PROMPT + saved[-1].num_tokens - 1) % BLOCK
    assert sum(block.num_bytes for block in kept) <= last * token + rest + SMALL
    assert sum(block.num_tokens for block in kept if block.kind == "block") == last
    life.stop()
    assert client.tokens[: saved[-1].num_tokens]
