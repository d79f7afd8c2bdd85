"""Calls as templates want them: with ids of a form (Mistral's, Kimi's), or one a turn (Llama's)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count

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

    The same id always becomes the same one.
    """
    return _identified(turns, lambda call, place: _short(call.get("id", place)), _short)


def with_named_ids(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which ids are functions.NAME:NUMBER, counted over the conversation.

    So Kimi writes them, and reads them: its template shows no other name of a call.
    """
    numbers = count()

    def named(call: Turn, _: str) -> str:
        return f"functions.{call['function']['name']}:{next(numbers)}"

    return _identified(turns, named, str)


def with_names(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which results have the name of the tool that gave them.

    Protocols leave it to the id of the call; some templates cannot.
    """
    made: list[Turn] = []
    waiting: list[Turn] = []
    for turn in turns:
        if "tool_calls" in turn:
            waiting = list(turn["tool_calls"])
        elif turn["role"] == "tool":
            said = turn.get("tool_call_id")
            call = next((c for c in waiting if said in (None, c.get("id"))), None)
            if call is not None:
                waiting.remove(call)
                turn = {"name": call["function"]["name"], **turn}
        made.append(turn)
    return made


def _identified(
    turns: Sequence[Turn], of_call: Callable[[Turn, str], str], of_result: Callable[[str], str]
) -> list[Turn]:
    """Return `turns` with ids anew.

    A call without an id is known by its place.  A result has the id of its call, one without an
    id that of the first call that still waits, and one for no call what `of_result` makes of it.
    """
    made: list[Turn] = []
    waiting: list[tuple[str | None, str]] = []
    for at, turn in enumerate(turns):
        if "tool_calls" in turn:
            ids = [of_call(call, f"{at} {i}") for i, call in enumerate(turn["tool_calls"])]
            waiting = [(c.get("id"), i) for c, i in zip(turn["tool_calls"], ids, strict=True)]
            calls = [{**c, "id": i} for c, i in zip(turn["tool_calls"], ids, strict=True)]
            turn = {**turn, "tool_calls": calls}
        elif turn["role"] == "tool":
            said = turn.get("tool_call_id")
            mine = next((pair for pair in waiting if said in (None, pair[0])), None)
            if mine is not None:
                waiting.remove(mine)
            new = mine[1] if mine is not None else of_result(said if said is not None else str(at))
            turn = {**turn, "tool_call_id": new}
        made.append(turn)
    return made


def _short(id: str) -> str:
    if len(id) == _LENGTH and id.isascii() and id.isalnum():
        return id
    return hashlib.sha256(id.encode()).hexdigest()[:_LENGTH]
