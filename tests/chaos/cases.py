"""What clients ask in a round: a seeded mix of protocols, shapes, mistakes and departures."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

Protocol = Literal["chat", "completions", "messages", "responses", "embeddings", "other"]

PATHS: dict[Protocol, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}
STORIES = tuple(
    f"The keeper of lighthouse {name} wrote down every ship that passed, its flag and its hour. "
    for name in ("Anna", "Bert", "Cora", "Dirk")
)
SCHEMA = {
    "type": "object",
    "properties": {"ship": {"enum": ["brig", "sloop"]}, "sails": {"type": "integer"}},
    "required": ["ship", "sails"],
    "additionalProperties": False,
}
TOOL = {"name": "signal", "description": "Send a signal.", "parameters": SCHEMA}


class Leave(Struct, frozen=True):
    """A client leaves after it got so many bytes, or when it has waited for so many seconds."""

    num_bytes: int
    seconds: float


class Case(Struct, frozen=True):
    """One request.  `statuses` are those of a proper answer to it.

    `is_certain` says that the answer must be what it is on a server that computes it alone.
    """

    protocol: Protocol
    path: str
    body: bytes | None
    statuses: frozenset[int] = frozenset({200})
    streams: bool = False
    is_certain: bool = False
    leave: Leave | None = None
    delay: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def lonely(self) -> Case:
        """The same question without a stream, asked by somebody patient whom nobody knows."""
        assert self.body is not None
        body = {k: v for k, v in json.loads(self.body).items() if not k.startswith("stream")}
        return Case(self.protocol, self.path, json.dumps(body).encode())


class Mix:
    """Makes the cases of a round.  Equal seeds make equal cases.

    Most are out of `num_questions` questions, so that what they begin with is computed often, kept,
    and lost again.
    """

    def __init__(
        self, seed: int, *, embeds: bool, num_questions: int = 30, long_chars: int = 1800
    ) -> None:
        self._random = random.Random(seed)
        self._long_chars = long_chars
        kinds: list[tuple[int, Callable[[], Case]]] = [
            (8, self._chat),
            (3, self._completions),
            (3, self._messages),
            (3, self._responses),
            (3, self._grammar),
            (2, self._forced_call),
            (3 if embeds else 0, self._embeddings),
        ]
        weights = [weight for weight, _ in kinds]
        made = self._random.choices([make for _, make in kinds], weights, k=num_questions)
        self._questions = [make() for make in made]

    def cases(self, count: int, *, spread_seconds: float) -> list[Case]:
        """Return the cases of one round, which begin within `spread_seconds`."""
        rng = self._random
        others = [self._sampled, self._too_long, self._mistaken, self._administrator]
        return [
            self._varied(
                rng.choice(self._questions) if rng.random() < 0.75 else rng.choice(others)(),
                spread_seconds,
            )
            for _ in range(count)
        ]

    def _varied(self, case: Case, spread_seconds: float) -> Case:
        """Return a case as one client of many asks it: in a stream or not, and leaving or not."""
        rng = self._random
        delay = rng.random() * spread_seconds
        if case.protocol == "other":
            return replace(case, delay=delay)
        leave = None
        if rng.random() < 0.3:
            leave = Leave(rng.choice((0, 1, 400, 1500)), rng.choice((0.0, 0.02, 0.1, 0.4)))
        if case.protocol == "embeddings" or 200 not in case.statuses:
            return replace(case, delay=delay, leave=leave)
        if rng.random() < 0.5:
            assert case.body is not None
            body = json.dumps(json.loads(case.body) | {"stream": True}).encode()
            case = replace(case, body=body, streams=True)
        if rng.random() < 0.2:  # who left may come again, or two come at once
            key = hashlib.sha256(case.path.encode() + (case.body or b"")).hexdigest()
            case = replace(case, headers=(("idempotency-key", key),))
        return replace(case, delay=delay, leave=leave)

    # -- what is asked --

    def _story(self) -> str:
        """A text whose beginning others have too."""
        rng = self._random
        story = rng.choice(STORIES) * (self._long_chars // len(STORIES[0]) + 1)
        return story[: rng.choice((20, 200, self._long_chars // 2, self._long_chars))]

    def _messages_of(self) -> list[dict[str, Any]]:
        rng = self._random
        turns: list[dict[str, Any]] = [{"role": "user", "content": self._story()}]
        if rng.random() < 0.4:
            said = rng.choice(("Aye.", "No ship came."))
            turns += [{"role": "assistant", "content": said}, {"role": "user", "content": "Why?"}]
        return turns

    def _made(self, protocol: Protocol, body: dict[str, Any], *, is_certain: bool = True) -> Case:
        data, statuses = json.dumps(body).encode(), frozenset({200, 429, 529})
        return Case(protocol, PATHS[protocol], data, statuses, is_certain=is_certain)

    def _chat(self) -> Case:
        rng = self._random
        body: dict[str, Any] = {
            "messages": self._messages_of(),
            "temperature": 0,
            "max_tokens": rng.choice((1, 2, 8, 30)),
        }
        if rng.random() < 0.2:
            body["n"] = rng.choice((2, 3))
        if rng.random() < 0.2:
            body |= {"logprobs": True, "top_logprobs": 3}
        if rng.random() < 0.3:
            body["prompt_cache_key"] = f"session-{rng.randrange(4)}"
        if rng.random() < 0.2:
            body["stop"] = [rng.choice("aeiou"), "\n"]
        if rng.random() < 0.2:
            body["tools"] = [{"type": "function", "function": TOOL}]
        return self._made("chat", body)

    def _completions(self) -> Case:
        rng = self._random
        prompts = [self._story() for _ in range(rng.choice((1, 1, 3)))]
        body = {"prompt": prompts, "temperature": 0, "max_tokens": rng.choice((1, 6, 20))}
        return self._made("completions", body)

    def _messages(self) -> Case:
        body = {
            "messages": self._messages_of(),
            "temperature": 0,
            "max_tokens": self._random.choice((1, 12)),
        }
        return self._made("messages", body)

    def _responses(self) -> Case:
        body = {
            "input": self._story(),
            "temperature": 0,
            "max_output_tokens": self._random.choice((16, 24)),
            "store": self._random.random() < 0.5,
        }
        return self._made("responses", body)

    def _grammar(self) -> Case:
        schema = {"name": "log", "schema": SCHEMA, "strict": True}
        body = {
            "messages": self._messages_of(),
            "temperature": 0,
            "max_tokens": self._random.choice((3, 40)),
            "response_format": {"type": "json_schema", "json_schema": schema},
        }
        return self._made("chat", body)

    def _forced_call(self) -> Case:
        body = {
            "messages": self._messages_of(),
            "temperature": 0,
            "max_tokens": 50,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "required",
        }
        return self._made("chat", body)

    def _sampled(self) -> Case:
        rng = self._random
        body = {
            "messages": self._messages_of(),
            "temperature": rng.choice((0.7, 1.3)),
            "top_p": rng.choice((0.8, 1.0)),
            "top_k": rng.choice((0, 20)),
            "repetition_penalty": rng.choice((1.0, 1.2)),
            "max_tokens": rng.choice((5, 60)),
            "n": rng.choice((1, 2)),
        }
        return self._made("chat", body, is_certain=False)

    def _embeddings(self) -> Case:
        rng = self._random
        texts = [self._story()[:40] for _ in range(rng.choice((1, 5, 40)))]
        return self._made("embeddings", {"input": texts, "model": "tiny-bert"})

    # -- what is wrong, or no question --

    def _too_long(self) -> Case:
        body = {"messages": [{"role": "user", "content": self._random.choice(STORIES) * 3000}]}
        return self._wrong("chat", json.dumps(body).encode())

    def _mistaken(self) -> Case:
        rng = self._random
        good = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        wrong: dict[str, Any] = rng.choice(
            [
                {"temperature": "hot"},
                {"n": 1000},
                {"messages": []},
                {"messages": [{"role": "user", "content": 3}]},
                {"response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
                {"logit_bias": {"999999": 1}},
                {"max_tokens": -3},
            ]
        )
        if rng.random() < 0.3:
            return self._wrong("chat", json.dumps(good).encode()[:-1])
        return self._wrong("chat", json.dumps(good | wrong).encode())

    def _wrong(self, protocol: Protocol, body: bytes) -> Case:
        return Case(protocol, PATHS[protocol], body, frozenset({400, 422}))

    def _administrator(self) -> Case:
        rng = self._random
        match rng.randrange(4):
            case 0:
                return Case("other", "/admin/cache/flush", b"{}", frozenset({200, 503, 501, 404}))
            case 1:
                name = json.dumps({"session_id": f"session-{rng.randrange(4)}"}).encode()
                return Case("other", "/admin/cache/session/close", name)
            case 2:
                return Case("other", "/stats", None)
            case _:
                return Case("other", "/health", None)
