"""An answer outlives the server: killed midway, it goes on where it stopped, token for token.

Real servers on tiny models, killed with SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any

import pytest

TESTS = Path(__file__).parent.parent
PROGRAM, PACED = "mlxbun", "doubles.paced"
SECONDS = 60.0
STORY = "The harbour was quiet when the first boat came in, and the keeper was still at sea. " * 20
EVERY, MAX_TOKENS = 12, 400
GREEDY: Mapping[str, Any] = {"temperature": 0}
SEEDED: Mapping[str, Any] = {"temperature": 1, "top_k": 40, "seed": 5, "repetition_penalty": 1.2}
# Read in one chunk: in several, whose sizes depend on the time, a logit's last bits may differ.
BRIEF = STORY[:300]
CHAT: Mapping[str, Any] = {"messages": [{"role": "user", "content": BRIEF}], "logprobs": True}

Model = Callable[[str], Path]


class Server:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}"

    def stats(self) -> Any:
        with urllib.request.urlopen(self._url + "/stats", timeout=SECONDS) as answer:
            return json.load(answer)

    def post(self, path: str, body: Mapping[str, Any], key: str | None = None) -> str:
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["idempotency-key"] = key
        request = urllib.request.Request(
            self._url + path, json.dumps(body).encode(), headers, method="POST"
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            said: bytes = answer.read()
        return said.decode()

    def complete(self, key: str | None = None, **fields: Any) -> Any:
        """Return a completion of STORY, or what a chat says to it if there are `messages`."""
        path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        asked = {} if "messages" in fields else {"prompt": STORY}
        body = {**asked, "max_tokens": MAX_TOKENS, "ignore_eos": True, **fields}
        return json.loads(self.post(path, body, key))

    def until_saved(self, number: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.stats()["generation_checkpoints"]["saved"] < number:
            assert time.monotonic() < deadline

    def kill(self) -> None:
        """Kill all of the server at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(SECONDS)


@contextmanager
def serving(model: Path, *words: str | Path, program: str = PROGRAM) -> Iterator[Server]:
    """Run a server; it is ready in the block, and gone after it.  pytest shows what it said."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    argv = [sys.executable, "-m", program, "serve", str(model), "--port", str(port)]
    with subprocess.Popen(
        [*argv, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        try:
            said = list[bytes]()
            for line in process.stderr:
                said.append(line)
                if b"serving" in line:
                    break
            else:
                pytest.fail("the server did not start:\n" + b"".join(said).decode())
            reader = threading.Thread(target=tell, args=(process.stderr,), daemon=True)
            reader.start()
            yield Server(process, port)
            process.terminate()
            process.wait(SECONDS)
            reader.join(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def tell(lines: IO[bytes]) -> None:
    for line in lines:
        sys.stderr.write(line.decode())


def cut(model: Path, folder: Path, fields: Mapping[str, Any], key: str | None = None) -> None:
    """Have a server killed in the middle of an answer, after its second checkpoint."""
    kept = ("--ssd-cache", folder, "--generation-checkpoint", str(EVERY))
    with serving(model, *kept, program=PACED) as server, ThreadPoolExecutor(1) as client:
        answer = client.submit(server.complete, key, **fields)
        server.until_saved(2)
        assert not answer.done()
        server.kill()
        assert isinstance(answer.exception(SECONDS), (OSError, HTTPException))


def text(answer: Any) -> str:
    choice = answer["choices"][0]
    said: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return said


def num_replayed(answer: Any) -> int:
    number: int = answer["usage"]["completion_tokens_details"].get("replayed_tokens", 0)
    return number


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tiny-llama", GREEDY),
        ("tiny-llama", SEEDED),
        ("tiny-gemma3", SEEDED),
        ("tiny-qwen3-5", GREEDY),
        ("tiny-llama", {**GREEDY, "prompt": BRIEF, "logprobs": 4}),
        ("tiny-qwen3-5", {**SEEDED, "prompt": BRIEF, "logprobs": 1}),
        ("tiny-llama", {**SEEDED, **CHAT, "top_logprobs": 20}),
        ("tiny-gemma3", {**GREEDY, **CHAT}),
    ],
    ids=lambda words: words if isinstance(words, str) else "-".join(words),
)
def test_a_killed_server_leaves_an_answer_that_goes_on(
    tiny_model: Model, tmp_path: Path, name: str, fields: Mapping[str, Any]
) -> None:
    model = tiny_model(name)
    with serving(model) as server:
        whole = server.complete(**fields)
    cut(model, tmp_path / "ssd", fields)
    with serving(model, "--ssd-cache", tmp_path / "ssd", "--generation-checkpoint", "9") as server:
        other = server.complete(**{**fields, "max_tokens": 5})
        resumed, again = server.complete(**fields), server.complete(**fields)
        counts = server.stats()["generation_checkpoints"]
    assert resumed["choices"] == whole["choices"], "and what was told of each token"
    assert text(again) == text(whole)
    assert num_replayed(resumed) >= 2 * EVERY
    assert num_replayed(other) == num_replayed(again) == num_replayed(whole) == 0
    usage = resumed["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == MAX_TOKENS
    assert counts["resumed"] == 1 and counts["replayed_tokens"] == num_replayed(resumed)


def test_a_key_alone_brings_a_sampled_answer_back(tiny_model: Model, tmp_path: Path) -> None:
    model = tiny_model("tiny-llama")
    fields: Mapping[str, Any] = {"temperature": 1}
    with serving(model) as server:
        whole, other = server.complete("my key", **fields), server.complete("other", **fields)
    cut(model, tmp_path / "ssd", fields, "my key")
    with serving(model, "--ssd-cache", tmp_path / "ssd", "--generation-checkpoint", "9") as server:
        unknown, resumed = server.complete(**fields), server.complete("my key", **fields)
    assert text(resumed) == text(whole) != text(other)
    assert num_replayed(resumed) >= 2 * EVERY and num_replayed(unknown) == 0


def lose_state(folder: Path) -> None:
    for file in (folder / "objects").rglob("*.safetensors"):
        file.unlink()


def flip_bits_of_state(folder: Path) -> None:
    for file in (folder / "objects").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"!")


def damage_tokens(folder: Path) -> None:
    with sqlite3.connect(folder / "manifest.sqlite") as db:
        db.execute("UPDATE answer_parts SET record = CAST(record || x'00' AS BLOB) WHERE start > 0")
    db.close()


@pytest.mark.parametrize(
    ("damage", "replays"), [(lose_state, True), (flip_bits_of_state, True), (damage_tokens, False)]
)
def test_what_is_damaged_is_computed_again(
    tiny_model: Model, tmp_path: Path, damage: Callable[[Path], None], replays: bool
) -> None:
    model = tiny_model("tiny-llama")
    cut(model, tmp_path / "ssd", SEEDED)
    damage(tmp_path / "ssd")
    with serving(model, "--ssd-cache", tmp_path / "ssd", "--generation-checkpoint", "9") as server:
        answer, whole = server.complete(**SEEDED), server.complete(**SEEDED)
    assert text(answer) == text(whole) and num_replayed(whole) == 0
    assert (num_replayed(answer) > 0) == replays
