"""What a server survives: many connections at one instant, and requests that kill others.

The killers are legal or nearly so; each ended mlx_lm.server 0.32.2 for good when it was
found (its generation thread dies, or the process).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from mlxbun.adapters.bench.client import Client, Endpoint, Reply
from mlxbun.adapters.bench.prompts import WORDS

ALIVE_SECONDS = 20.0
CONTINUATIONS = 20

Complete = Callable[[dict[str, Any]], Awaitable[Reply]]


class Burst(Struct, frozen=True):
    """What became of connections that were opened at the same instant."""

    num_connections: int
    num_answered: int  # 200
    num_refused: int  # another status: heard, and told no
    num_lost: int  # no answer at all
    errors: tuple[str, ...]


class KillerResult(Struct, frozen=True):
    """One request, what it was answered, and whether the server answers others after it."""

    name: str
    statuses: tuple[int, ...]
    survived: bool


async def burst(endpoint: Endpoint, num_connections: int, timeout_seconds: float = 60) -> Burst:
    """Open `num_connections` connections at once, each with a short completion."""

    async def one(number: int) -> Reply:
        payload = {"prompt": f"number {number}", "max_tokens": 4, "temperature": 0}
        async with Client(endpoint, timeout_seconds) as client:
            return await client.send("POST", "/v1/completions", payload)

    replies = await asyncio.gather(*map(one, range(num_connections)))
    lost = [reply for reply in replies if reply.status == 0]
    answered = sum(reply.status == 200 for reply in replies)
    return Burst(
        num_connections,
        answered,
        num_connections - answered - len(lost),
        len(lost),
        tuple(sorted({reply.error for reply in lost})[:3]),
    )


KILLERS: dict[str, dict[str, Any]] = {
    "a list of prompts": {"prompt": ["a", "b"]},
    "an empty prompt": {"prompt": ""},
    "the exact continuation of an answer": {},  # made of answers, see `_continuations`
    "top_k of a million": {"prompt": "a", "temperature": 1.0, "top_k": 1_000_000},
    "xtc_threshold above 0.5": {
        "prompt": "a",
        "temperature": 1.0,
        "xtc_probability": 1.0,
        "xtc_threshold": 0.9,
    },
    "a stop list with a number": {"prompt": "a", "stop": [5]},
    "a bias for a token that is not there": {"prompt": "a", "logit_bias": {"999999": 1.0}},
}


async def kill(endpoint: Endpoint, name: str) -> KillerResult:
    """Send the killer called `name` (of KILLERS), then see whether the server still answers."""
    async with Client(endpoint, ALIVE_SECONDS) as client:

        async def complete(payload: dict[str, Any]) -> Reply:
            return await client.send("POST", "/v1/completions", {"max_tokens": 8} | payload)

        if KILLERS[name]:
            replies = [await complete(KILLERS[name])]
        else:
            replies = await _continuations(complete)
    statuses = tuple(reply.status for reply in replies)
    return KillerResult(name, statuses, await is_alive(endpoint))


async def is_alive(endpoint: Endpoint) -> bool:
    """Return whether an ordinary completion is answered."""
    asked = {"prompt": "alive?", "max_tokens": 2}
    async with Client(endpoint, ALIVE_SECONDS) as client:
        return (await client.send("POST", "/v1/completions", asked)).status == 200


async def _continuations(complete: Complete) -> list[Reply]:
    """Ask, after each of several short answers, for its continuation.

    Text that is encoded again is not always the tokens it was made of; of many answers,
    some are.
    """
    replies: list[Reply] = []
    for number, word in enumerate(WORDS[:CONTINUATIONS]):
        prompt = f"{word} {number}"
        asked = {"prompt": prompt, "max_tokens": 1 + number % 3, "temperature": 0}
        replies.append(await complete(asked))
        if replies[-1].status != 200:
            break
        text: str = replies[-1].json()["choices"][0]["text"]
        replies.append(await complete(asked | {"prompt": prompt + text}))
    return replies
