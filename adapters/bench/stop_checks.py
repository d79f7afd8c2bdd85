"""Are stop strings obeyed?  Substrings of a known answer, each sent back as a stop string.

Greedy answers repeat, so what must come back is known: the answer up to the first place
where the string stands, and the finish reason "stop".
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import Struct

from mlxbun.adapters.bench.client import Client, Endpoint
from mlxbun.adapters.bench.generation import generate

LONGEST = 12  # characters of a stop string
UNDECODED = "\ufffd"
MAX_WRONG_SHOWN = 5


class StopResult(Struct, frozen=True):
    """How many of `num_strings` were right, and examples of those that were not."""

    num_strings: int
    num_right: int
    wrong: tuple[str, ...]


class AnswerUnusable(RuntimeError):
    """The server's answer has too little text to take stop strings from."""


def stop_strings(text: str, number: int, seed: int = 0) -> list[str]:
    """Return `number` substrings of `text`, of 1 to LONGEST characters, whole ones only.

    Raises AnswerUnusable when the text has too few.
    """
    chance, found = random.Random(seed), list[str]()
    for _ in range(1000 * number):
        length = chance.randint(1, LONGEST)
        start = chance.randint(0, max(0, len(text) - length))
        piece = text[start : start + length]
        if piece and UNDECODED not in piece and piece not in found:
            found.append(piece)
            if len(found) == number:
                return found
    raise AnswerUnusable(f"{len(text)} characters gave {len(found)} of {number} stop strings")


async def check_stop_strings(
    endpoint: Endpoint, *, chat: bool, number: int, max_tokens: int = 64
) -> StopResult:
    """Send `number` requests, half of them streamed, and compare what comes back.

    Raises AnswerUnusable when the server does not answer, or with too little text.
    """
    prompt = "Tell me about the sea and the ships on it."
    asked: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0}
    if chat:
        path, asked["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt}]
    else:
        path, asked["prompt"] = "/v1/completions", prompt
    async with Client(endpoint) as client:
        text, _ = await _ask(client, path, asked, stream=False)
        wrong: list[str] = []
        for i, stop in enumerate(stop_strings(text, number)):
            stream = i % 2 == 1
            answer, reason = await _ask(client, path, asked | {"stop": [stop]}, stream=stream)
            expected = text[: text.index(stop)]
            if (answer, reason) != (expected, "stop"):
                how = "streamed" if stream else "whole"
                wrong.append(f"{stop!r} ({how}): {reason}, {answer!r} instead of {expected!r}")
    return StopResult(number, number - len(wrong), tuple(wrong[:MAX_WRONG_SHOWN]))


async def _ask(
    client: Client, path: str, payload: dict[str, Any], *, stream: bool
) -> tuple[str, str]:
    if stream:
        answer = await generate(client, path, payload)
        if answer.error:
            raise AnswerUnusable(answer.error)
        return answer.text, answer.finish_reason
    reply = await client.send("POST", path, payload)
    if reply.status != 200:
        raise AnswerUnusable(f"{reply.status} {reply.error} {reply.body[:200]!r}")
    choice = reply.json()["choices"][0]
    text: str = choice["text"] if "text" in choice else choice["message"].get("content") or ""
    return text, choice["finish_reason"] or ""
