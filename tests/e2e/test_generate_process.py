"""`mlxbun generate` as a process, with a real (tiny) model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-m", "mlxbun", "generate")
TINY = ("--temp", "0", "--max-tokens", "5", "--prompt", "Hello")


def generate(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *words], capture_output=True, timeout=60)


@pytest.mark.parametrize("attempt", range(3))
def test_the_process_ends_well(tiny_model: Callable[[str], Path], attempt: int) -> None:
    """MLX aborts about every second process whose engine thread does not take leave of it."""
    done = generate(str(tiny_model("tiny-llama")), *TINY)
    assert done.returncode == 0, done.stderr.decode()
    assert b"tokens, answer" in done.stderr and done.stdout


def test_a_model_that_cannot_be_loaded_ends_with_its_name_and_status_1(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in tiny_model("tiny-llama").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "model.safetensors").write_bytes(b"no weights at all")
    done = generate(str(broken), *TINY)
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert said.startswith("mlxbun: ") and "broken" in said and "Traceback" not in said
