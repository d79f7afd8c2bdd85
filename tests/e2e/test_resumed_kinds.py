"""Every kind of answer outlives the server: all are cut at once, and each goes on where it stopped.

Real servers on a tiny model, killed with SIGKILL; the oracle is one that was not.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from e2e.test_generation_checkpoints import BRIEF, PACED, SECONDS, Server, serving

Model = Callable[[str], Path]
Fields = dict[str, Any]

SAMPLED: Fields = {"temperature": 1, "top_k": 40}
GREEDY: Fields = {"temperature": 0}
LONG: Fields = {"max_tokens": 400, "ignore_eos": True}
COMPLETION: Fields = {"prompt": BRIEF, **LONG}
USER = {"role": "user", "content": BRIEF}
CHAT: Fields = {"messages": [USER], **LONG}
NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 10, "maximum": 99},
    "minItems": 180,
    "maxItems": 180,
}
HELD = {"type": "object", "properties": {"n": NUMBERS}, "required": ["n"]}
CLOSED = {**HELD, "additionalProperties": False}
FUNCTION = {"name": "count", "description": "counts", "parameters": CLOSED}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "count"}}

KINDS: Mapping[str, tuple[str, Fields]] = {
    "n": ("/v1/completions", {**COMPLETION, **SAMPLED, "n": 2}),
    "prompts": ("/v1/completions", {**COMPLETION, **SAMPLED, "prompt": [BRIEF, BRIEF[9:]]}),
    "stop strings": ("/v1/completions", {**COMPLETION, **SAMPLED, "stop": ["no such words"]}),
    "bias": ("/v1/completions", {**COMPLETION, **GREEDY, "logit_bias": {"70": 3}, "echo": True}),
    "stream": ("/v1/chat/completions", {**CHAT, **SAMPLED, "stream": True}),
    "tools": ("/v1/chat/completions", {**CHAT, **SAMPLED, "tools": [TOOL]}),
    "a named tool": (
        "/v1/chat/completions",
        {"messages": [USER], "max_tokens": 400, **SAMPLED, "tools": [TOOL], "tool_choice": NAMED},
    ),
    "a schema": (
        "/v1/chat/completions",
        {
            "messages": [USER],
            "max_tokens": 400,
            **SAMPLED,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "strict": True, "schema": CLOSED},
            },
        },
    ),
    "thoughts": (
        "/v1/chat/completions",
        {**CHAT, **SAMPLED, "messages": [USER], "chat_template_kwargs": {"enable_thinking": True}},
    ),
    "responses": (
        "/v1/responses",
        {"input": BRIEF, "max_output_tokens": 400, **GREEDY, "store": False},
    ),
    "messages": ("/v1/messages", {"messages": [USER], **LONG, **SAMPLED}),
}
for number, (_, fields) in enumerate(KINDS.values()):
    if fields["temperature"]:
        fields["seed"] = 10 * number  # equal questions are one answer
ROWS = {kind: 2 if kind in ("n", "prompts") else 1 for kind in KINDS}
NAMES = ("id", "item_id", "response_id", "created", "created_at", "completed_at", "call_id")


def said(answer: str) -> Any:
    """Return what an answer says, without names, times and what was reused; a stream's text."""
    if not answer.startswith("{"):
        lines = [line[6:] for line in answer.split("\n") if line.startswith("data: {")]
        choices = [choice for line in lines for choice in json.loads(line)["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return text, choices[-1]["finish_reason"]
    return _without(json.loads(answer))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(part)
            for name, part in value.items()
            if name not in NAMES and name != "usage"
        }
    return [_without(part) for part in value] if isinstance(value, list) else value


def asked_at_once(server: Server, kinds: Sequence[str]) -> dict[str, str]:
    """Ask for one answer of each kind at once; return those that came."""
    answers: dict[str, str] = {}

    def ask(kind: str) -> None:
        try:
            answers[kind] = server.post(*KINDS[kind])
        except (OSError, HTTPException) as error:
            answers.setdefault("lost", f"{kind}: {error}")

    clients = [threading.Thread(target=ask, args=(kind,)) for kind in kinds]
    for client in clients:
        client.start()
    for client in clients:
        client.join(SECONDS)
    return answers


def num_kept(folder: Path) -> int:
    """Return how many answers have a checkpoint."""
    with sqlite3.connect(f"file:{folder / 'manifest.sqlite'}?mode=ro", uri=True) as db:
        found: int = db.execute("SELECT count(*) FROM generations").fetchone()[0]
    db.close()
    return found


def until_kept(folder: Path, number: int, clients: Future[dict[str, str]]) -> None:
    deadline = time.monotonic() + SECONDS
    while num_kept(folder) < number:
        assert not clients.done(), f"answered before all were kept: {clients.result()}"
        assert time.monotonic() < deadline, f"{num_kept(folder)} answers of {number}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [("tiny-llama", tuple(KINDS)), ("tiny-qwen3-5", ("n", "stream", "a schema"))],
    ids=["cut", "mixed"],
)
def test_every_kind_of_answer_goes_on_where_it_stopped(
    tiny_model: Model, tmp_path: Path, name: str, kinds: Sequence[str]
) -> None:
    model, folder = tiny_model(name), tmp_path / "ssd"
    num_rows = sum(ROWS[kind] for kind in kinds)
    batch = ("--batch", str(num_rows))
    kept = ("--ssd-cache", folder, "--generation-checkpoint", "12", *batch)
    with serving(model, *batch) as server:
        whole = {kind: server.post(*KINDS[kind]) for kind in kinds}
    with serving(model, *kept, program=PACED) as server, ThreadPoolExecutor(1) as asking:
        clients = asking.submit(asked_at_once, server, kinds)
        until_kept(folder, num_rows, clients)
        server.kill()
    with serving(model, *kept) as server:
        resumed, before = dict[str, str](), 0
        for kind in kinds:
            resumed[kind] = server.post(*KINDS[kind])
            count = server.stats()["generation_checkpoints"]["resumed"]
            assert count == before + ROWS[kind], f"{kind} began anew"
            before = count
    for kind in kinds:
        assert said(resumed[kind]) == said(whole[kind]), kind
