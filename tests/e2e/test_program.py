"""The whole program as a process, with a real (tiny) model."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = (sys.executable, "-m", "mlxbun")
TINY = ("--temp", "0", "--max-tokens", "5", "--prompt", "Hello")


def generate(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*PROGRAM, "generate", *words], capture_output=True, timeout=60)


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


def test_any_model_embeds_when_it_is_told_to(tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model("tiny-llama")  # which serve takes for a chat model
    words = ("embed", str(folder), "--json", "--text", "Hello", "--text", "there")
    done = subprocess.run([*PROGRAM, *words], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    hidden = json.loads((folder / "config.json").read_text())["hidden_size"]
    vectors = [json.loads(line)["embedding"] for line in done.stdout.splitlines()]
    assert [len(vector) for vector in vectors] == [hidden, hidden]
    assert [math.hypot(*vector) for vector in vectors] == pytest.approx([1.0, 1.0])
    assert vectors[0] != vectors[1]


def test_a_server_says_where_it_is_when_it_is_ready_and_ends_well(
    tiny_model: Callable[[str], Path],
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ("serve", str(tiny_model("tiny-llama")), "--port", str(port))
    with subprocess.Popen([*PROGRAM, *words], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            ready = next(line for line in process.stderr if "serving" in line)
            assert ready.endswith(f"serving tiny-llama on {url} (OpenAI base URL: {url}/v1)\n")
            with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
                assert answer.status == 200
            process.terminate()
            process.wait(30)
        finally:
            process.kill()
    assert process.returncode == 0
