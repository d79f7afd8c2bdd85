"""Calls as strict templates want them: with short ids (Mistral's), or one a turn (Llama's)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mlxbun.domain.conversation.messages import Turn

_LENGTH = 9


def with_single_calls(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which a turn has one call at most, followed by its result."""
    made: list[Turn] = []
    at = 0
    while at < len(turns):
        turn, at = turns[at], at + 1
        calls: list[Turn] = turn.get("tool_calls", [])
        if len(calls) < 2:
            made.append(turn)
            continue
        results: list[Turn] = []
        while at < len(turns) and turns[at]["role"] == "tool":
            results.append(turns[at])
            at += 1
        for i, call in enumerate(calls):
            first = turn if i == 0 else {"role": turn["role"], "content": ""}
            made.append({**first, "tool_calls": [call]})
            mine = [r for r in results if r.get("tool_call_id") == call.get("id")] or results[:1]
            made += mine[:1]
            results = [r for r in results if r not in mine[:1]]
        made += results
    return made


def with_short_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which each call, and the result for it, has a short id.

    The same id always becomes the same one.  A call without an id is known by its place, and a
    result without one belongs to the first call that still waits.
    """
    made: list[Turn] = []
    waiting: list[str] = []
    for at, turn in enumerate(turns):
        if "tool_calls" in turn:
            calls = [
                {**call, "id": _short(call.get("id", f"{at} {i}"))}
                for i, call in enumerate(turn["tool_calls"])
            ]
            waiting = [call["id"] for call in calls]
            turn = {**turn, "tool_calls": calls}
        elif turn["role"] == "tool":
            said = turn.get("tool_call_id")
            short = _short(said) if said is not None else next(iter(waiting), _short(str(at)))
            waiting = [id for id in waiting if id != short]
            turn = {**turn, "tool_call_id": short}
        made.append(turn)
    return made


def _short(id: str) -> str:
    if len(id) == _LENGTH and id.isascii() and id.isalnum():
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:_LENGTH]
