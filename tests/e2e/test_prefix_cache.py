"""What was computed once is not computed again: by the next request, after a restart, after a kill.

Real servers on tiny models.  A server's stderr ends when its last process has.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from mlxbun.adapters.tokenizer.folder import FolderTokenizer, open_tokenizer
from mlxbun.domain.sampling import TokenId
from models.tiny import TOKEN_IDS, VOCAB_SIZE

PROGRAM = (sys.executable, "-m", "mlxbun")
SECONDS = 60.0
STORY = "The harbour was quiet when the first boat came in, and the keeper was still at sea. " * 20
QUESTION = [{"role": "user", "content": STORY}]

Model = Callable[[str], Path]
Messages = Sequence[dict[str, str]]


class Said(Struct, frozen=True):
    """An answer, and how many tokens of its prompt were there before."""

    text: str
    num_cached: int
    id: str = ""
    num_prompt: int = 0


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=SECONDS) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> bytes:
        headers = {"content-type": "application/json"}
        data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            got: bytes = answer.read()
            return got

    def ask(self, messages: Messages = QUESTION, **fields: Any) -> Said:
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, **fields}
        got = json.loads(self.post("/v1/chat/completions", body))
        usage, text = got["usage"], got["choices"][0]["message"]["content"]
        return Said(text, _cached(usage), got["id"], usage["prompt_tokens"])

    def stream(self, messages: Messages = QUESTION) -> Said:
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, "stream": True}
        got = self.post(
            "/v1/chat/completions", body | {"stream_options": {"include_usage": True}}
        ).decode()
        records = [
            json.loads(line.removeprefix("data: ")) for line in got.split("\n\n") if "{" in line
        ]
        pieces = [choice["delta"].get("content") or "" for r in records for choice in r["choices"]]
        return Said("".join(pieces), _cached(records[-1]["usage"]), records[0]["id"])

    def flush(self) -> Any:
        """Return the report, which comes with 503 where something is not durable."""
        try:
            return json.loads(self.post("/admin/cache/flush", {}))
        except urllib.error.HTTPError as error:
            report = json.load(error)
            assert (error.code, report["durable"]) == (503, False)
            return report

    def explain(self, said: Said) -> Any:
        report = self.get(f"/v1/cache/explain?request={said.id}")
        (row,) = report["rows"]
        return row

    def await_stats(self, holds: Callable[[Any], bool]) -> Any:
        """Return the first counts of which `holds`."""
        beat, deadline = threading.Event(), time.monotonic() + SECONDS
        while not holds(stats := self.get("/stats")):
            assert time.monotonic() < deadline, stats
            beat.wait(0.05)
        return stats

    def setting(self, name: str) -> Any:
        lines = self.get("/v1/effective-config")["settings"]
        return next((line for line in lines if line["name"] == name), None)

    def worker(self) -> int:
        """Return the id of the process that serves."""
        found = subprocess.run(
            ["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True
        )
        (worker,) = found.stdout.split()
        return int(worker)

    def gone(self) -> str:
        """Wait until no process of the server is left; return what was still said."""
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        self.process.wait(SECONDS)
        return said


def _cached(usage: Any) -> int:
    assert usage["prompt_tokens"] > 512, "or there is little to reuse"
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    return cached


@contextmanager
def serving(model: Path, *words: str | Path) -> Iterator[Server]:
    """Run a server; it is ready in the block, and gone after it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    argv = [*PROGRAM, "serve", str(model), "--port", str(port), *map(str, words)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        server = Server(process, port)
        try:
            assert process.stderr is not None
            said = list[str]()
            for line in process.stderr:
                said.append(line)
                if "serving" in line:
                    break
            else:
                pytest.fail("the server did not start:\n" + "".join(said))
            yield server
            process.terminate()
            server.gone()
        finally:
            process.kill()


def next_turn(first: Said) -> Messages:
    answer = {"role": "assistant", "content": first.text}
    return [*QUESTION, answer, {"role": "user", "content": "What should I do next? " * 20}]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3"])
def test_what_is_reused_changes_no_answer_whole_or_streamed_or_in_the_next_turn(
    tiny_model: Model, name: str
) -> None:
    model = tiny_model(name)
    with serving(model, "--prompt-cache", "0") as cold:
        first, again = cold.ask(), cold.stream()
        turn = cold.ask(next_turn(first))
        counts = cold.get("/stats")["prompt_cache"]
    assert first.text == again.text and {said.num_cached for said in (first, again, turn)} == {0}
    assert set(counts.values()) == {0}, "a cache that is off does nothing"
    with serving(model) as server:
        warm = [server.ask(), server.ask(), server.stream(), server.ask(next_turn(first))]
        counts = server.get("/stats")["prompt_cache"]
    assert [said.text for said in warm] == [first.text, first.text, first.text, turn.text]
    assert warm[0].num_cached == 0 and all(said.num_cached >= 256 for said in warm[1:])
    assert (counts["hits"], counts["misses"]) == (3, 1)
    assert counts["reused_tokens"] == sum(said.num_cached for said in warm)


def test_the_next_turn_goes_on_from_the_ids_that_were_generated(tiny_model: Model) -> None:
    """A random model writes no text as its tokenizer would encode it."""
    model = tiny_model("tiny-llama")
    tokenizer = open_tokenizer(model)
    unreadable = {str(i): -100.0 for i in range(VOCAB_SIZE) if not _is_text(tokenizer, i)}
    with serving(model) as server:
        first = server.ask(max_tokens=300, logit_bias=unreadable, temperature=2, seed=1)
        turn = server.ask(next_turn(first))
        again = server.ask(next_turn(first))
    messages = next_turn(first)
    encoded = tokenizer.encode(tokenizer.render_chat(messages), add_special=False)
    assert len(first.text) > 300 and turn.num_prompt != len(encoded), "or ids agree"
    assert turn.num_cached == first.num_prompt + 300 - 1, "the last token is not read"
    assert again.text == turn.text and again.num_cached == turn.num_prompt - 1


def _is_text(tokenizer: FolderTokenizer, token: int) -> bool:
    if token in TOKEN_IDS.values():
        return False
    try:
        return bool(tokenizer.token_bytes(TokenId(token)).decode())
    except UnicodeDecodeError:
        return False


def end(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)


def kill(server: Server) -> None:
    server.process.kill()


def kill_worker(server: Server) -> None:
    subprocess.run(["kill", "-9", str(server.worker())], check=True)


@pytest.mark.parametrize("ending", [end, kill, kill_worker])
def test_what_is_durable_is_there_after_the_server_ended(
    tiny_model: Model, tmp_path: Path, ending: Callable[[Server], None]
) -> None:
    model = tiny_model("tiny-llama")
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        before = server.ask()
        if ending is not end:  # which writes what is to be written by itself
            assert server.flush()["durable"]
        ending(server)
        server.gone()
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        assert server.setting("ssd_tier")["value"] == "on"
        after = server.ask()
        restored = server.get("/stats")["prompt_cache"]["restored"]
    assert after.text == before.text and after.num_cached == before.num_prompt - 1
    assert restored == -(-after.num_cached // 256), "blocks, and what follows them"


@pytest.mark.parametrize("ending", [end, kill])
def test_the_next_turn_goes_on_from_the_ids_that_were_generated_before_the_server_ended(
    tiny_model: Model, tmp_path: Path, ending: Callable[[Server], None]
) -> None:
    model = tiny_model("tiny-llama")
    tokenizer = open_tokenizer(model)
    unreadable = {str(i): -100.0 for i in range(VOCAB_SIZE) if not _is_text(tokenizer, i)}
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        first = server.ask(max_tokens=300, logit_bias=unreadable, temperature=2, seed=1)
        if ending is kill:
            report = server.flush()
            assert report["durable"] and report["pending_texts"] == 0
        ending(server)
        server.gone()
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        turn = server.ask(next_turn(first))
        restored = server.get("/stats")["prompt_cache"]["restored"]
    with serving(model) as server:  # nothing is known of the first answer
        canonical = server.ask(next_turn(first))
    assert canonical.num_prompt != turn.num_prompt, "or ids agree"
    assert turn.num_cached == first.num_prompt + 300 - 1
    assert restored == -(-turn.num_cached // 256)


def test_a_layout_that_is_kept_whole_comes_back_too(tiny_model: Model, tmp_path: Path) -> None:
    model = tiny_model("tiny-gemma3")
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        before = server.ask()
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        after = server.ask()
    assert after.text == before.text and after.num_cached >= 512


def test_a_server_reads_what_another_layout_wrote(tiny_model: Model, tmp_path: Path) -> None:
    model, folder = tiny_model("tiny-llama"), tmp_path / "ssd"
    with serving(model, "--ssd-cache", folder, "--ssd-layout", "whole") as server:
        before = server.ask()
        turn = server.ask(next_turn(before))
    assert [path.suffix for path in folder.rglob("objects/*/*")] == [".blocks"]
    with serving(model, "--ssd-cache", folder) as server:
        after, again = server.ask(), server.ask(next_turn(before))
        assert server.flush()["durable"]
    assert (after.text, again.text) == (before.text, turn.text)
    assert after.num_cached >= 512 and again.num_cached >= 512


def test_a_flush_says_what_is_durable(tiny_model: Model, tmp_path: Path) -> None:
    with serving(tiny_model("tiny-llama"), "--ssd-cache", tmp_path / "ssd") as server:
        server.ask()
        report = server.flush()
        counts = server.get("/stats")["prompt_cache"]
    assert report["durable"] and report["ssd_tier"] == "on" and report["pending_blocks"] == 0
    assert report["written_blocks"] == counts["published"] >= 2
    assert report["bytes_written"] == report["bytes_on_disk"] > 0


def test_what_was_reused_is_explained_by_tier(tiny_model: Model, tmp_path: Path) -> None:
    model = tiny_model("tiny-llama")
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        missed = server.explain(server.ask())
    with serving(model, "--ssd-cache", tmp_path / "ssd") as server:
        restored, lent = server.ask(), server.ask()
        turn = server.ask(next_turn(restored))
        reports = [server.explain(said) for said in (restored, lent, turn)]
        with pytest.raises(urllib.error.HTTPError) as unknown:
            server.get("/v1/cache/explain?request=chatcmpl-nobody")
        unknown.value.close()
    assert unknown.value.code == 404
    assert missed["reason"] == "miss" and missed["diverged_at"] == 0
    assert [report["reason"] for report in reports] == ["hit", "hit", "partial"]
    assert [report["reused_tokens"] for report in reports] == [
        {"ram": 0, "ssd": restored.num_cached},
        {"ram": lent.num_cached, "ssd": 0},
        {"ram": turn.num_cached, "ssd": 0},
    ]
    assert reports[0]["waited_ms"]["restoring"] > 0 and reports[1]["waited_ms"]["restoring"] == 0
    assert reports[2]["diverged_at"] == turn.num_cached and not reports[2]["evicted"]
    assert reports[1]["saved_ms_estimate"] > 0


def test_a_second_server_on_a_folder_serves_without_it_and_says_so(
    tiny_model: Model, tmp_path: Path
) -> None:
    model = tiny_model("tiny-llama")
    with serving(model, "--ssd-cache", tmp_path / "ssd") as owner:
        with serving(model, "--ssd-cache", tmp_path / "ssd") as second:
            tier = second.setting("ssd_tier")
            first, again = second.ask(), second.ask()
            report = second.flush()
        assert owner.setting("ssd_tier")["value"] == "on"
        assert owner.ask().text == first.text
    assert tier["value"] == "off" and "is in use by process" in tier["note"]
    assert not report["durable"] and report["ssd_tier"] == "unusable"
    assert "is in use by process" in report["last_error"]
    assert first.num_cached == 0 and again.num_cached >= 512


def test_prompts_that_come_at_once_are_computed_once(tiny_model: Model) -> None:
    with serving(tiny_model("tiny-llama")) as server:
        body = {"prompt": [STORY] * 4, "temperature": 0, "max_tokens": 4}
        got = json.loads(server.post("/v1/completions", body))
        stats = server.get("/stats")
    assert len({choice["text"] for choice in got["choices"]}) == 1
    num_tokens = got["usage"]["prompt_tokens"] // 4
    assert stats["prefilled_tokens"] == num_tokens - 1
    assert stats["prompt_cache"]["hits"] == 3 and stats["prompt_cache"]["awaited"] >= 3


def other(number: int) -> Messages:
    return [{"role": "user", "content": f"{number}: {STORY}"}]


def test_a_session_outlives_what_pushes_all_else_out_until_it_is_closed(tiny_model: Model) -> None:
    model = tiny_model("tiny-llama")
    with serving(model) as server:
        server.ask()
        counts = server.get("/stats")["prompt_cache"]
    room = counts["bytes"] * (counts["entries"] + 1) / counts["entries"] / 2**30
    with serving(model, "--prompt-cache", f"{room:.9f}") as server:
        first = server.ask(session_id="mine")
        for number in range(4):
            server.ask(other(number))
        unheld, held = server.ask(other(0)), server.ask(session_id="mine")
        sessions = server.get("/stats")["prompt_cache"]["sessions"]
        closed = json.loads(server.post("/admin/cache/session/close", {"session_id": "mine"}))
        for number in range(4):
            server.ask(other(number))
        gone = server.ask()
        counts = server.get("/stats")["prompt_cache"]
    assert first.num_cached == 0 and unheld.num_cached <= 256
    assert held.num_cached >= 512 and held.text == first.text
    assert sessions == 1 and counts["sessions"] == 0
    assert closed["closed"] and closed["released_blocks"] == -(-held.num_cached // 256)
    assert gone.num_cached == 0 and gone.text == first.text
    assert counts["bytes"] <= room * 2**30


def test_what_is_idle_is_on_the_disk_alone_and_comes_back(
    tiny_model: Model, tmp_path: Path
) -> None:
    words = ("--ssd-cache", tmp_path / "ssd", "--ssd-demote-idle", "0.2")
    with serving(tiny_model("tiny-llama"), *words) as server:
        before = server.ask(session_id="mine")
        assert server.flush()["durable"]
        left = server.await_stats(lambda stats: stats["prompt_cache"]["entries"] == 0)
        after = server.ask()
        counts = server.get("/stats")["prompt_cache"]
    assert left["prompt_cache"]["demoted_idle"] == left["prompt_cache"]["published"] >= 2
    assert left["prompt_cache"]["lost"] == 0 and left["memory"]["prefix_cache_bytes"] == 0
    assert after.text == before.text and after.num_cached >= 512
    assert counts["restored"] == -(-after.num_cached // 256)


def test_the_parts_of_memory_sum_to_what_is_in_use(tiny_model: Model) -> None:
    with serving(tiny_model("tiny-llama")) as server:
        server.ask()
        # While the row ran there was a ledger too, with its state in it.
        stats = server.await_stats(lambda stats: stats["memory"]["live_kv_bytes"] == 0)
        config = server.setting("weights_bytes")
    ledger = stats["memory"]
    parts = ("weights", "live_kv", "prefix_cache", "writing", "draft", "other")
    assert sum(ledger[f"{part}_bytes"] for part in parts) == ledger["active_bytes"]
    assert ledger["prefix_cache_bytes"] == stats["prompt_cache"]["bytes"] > 0
    assert ledger["weights_bytes"] == int(config["value"])
    assert 0 <= ledger["other_bytes"] < ledger["active_bytes"] / 2
    assert ledger["working_set_bytes"] > ledger["peak_bytes"] >= ledger["active_bytes"]
