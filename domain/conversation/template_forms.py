"""Other ways to say a conversation, for templates that are strict, or that leave a text out.

Each says all that was said: what a template has no place for moves to the nearest one it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlxbun.domain.conversation.call_ids import with_short_ids
from mlxbun.domain.conversation.messages import Turn, fold_system, merge_turns

_REASONING = "reasoning_content"


def forms(turns: Sequence[Turn], *, texts_apart: bool = False) -> Iterator[Sequence[Turn]]:
    """Yield `turns`, then what says the same in ways that ever stricter templates take.

    With `texts_apart`, what is said beside calls stands in a turn of its own where it may.
    """
    tried: list[Sequence[Turn]] = []
    bare = [{k: v for k, v in turn.items() if k != _REASONING} for turn in turns]
    for reasoned in (turns, bare):  # gpt-oss's refuses reasoning beside content and calls
        for arranged in _arrangements(reasoned):
            for form in _parted(arranged) if texts_apart else [arranged]:
                for identified in (form, with_short_ids(form) if has_calls(form) else form):
                    if identified not in tried:
                        tried.append(identified)
                        yield identified


def has_calls(turns: Sequence[Turn]) -> bool:
    return any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)


def with_texts_apart(turns: Sequence[Turn], *, alternating: bool = False) -> list[Turn]:
    """Return `turns` in which what is said beside calls is a turn before them.

    With `alternating` an empty turn of the user stands between the two.
    """
    made: list[Turn] = []
    for turn in turns:
        if "tool_calls" in turn and turn["content"].strip():
            # Reasoning stays with the calls: gpt-oss's template shows none of another answer.
            made.append({"role": turn["role"], "content": turn["content"]})
            made += [{"role": "user", "content": ""}] if alternating else []
            turn = {**turn, "content": ""}
        made.append(turn)
    return made


def with_late_system_told(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which system turns after the first others are the user's."""
    made: list[Turn] = []
    for turn in turns:
        late = turn["role"] == "system" and any(before["role"] != "system" for before in made)
        made.append({**turn, "role": "user"} if late else turn)
    return made


def with_results_within(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which results are the `tool_responses` of the turn that called."""
    made: list[Turn] = []
    for turn in with_texts_apart(turns):
        if turn["role"] == "tool" and made and "tool_calls" in made[-1]:
            result = {"name": turn.get("name", "unknown"), "response": turn["content"]}
            before = made[-1].get("tool_responses", [])
            made[-1] = {**made[-1], "tool_responses": [*before, result]}
        else:
            made.append(turn)
    return made


def _parted(turns: Sequence[Turn]) -> Iterator[Sequence[Turn]]:
    yield with_texts_apart(turns)
    yield with_texts_apart(turns, alternating=True)
    yield turns


def _arrangements(turns: Sequence[Turn]) -> Iterator[Sequence[Turn]]:
    yield turns
    merged = merge_turns(turns)
    yield merged
    yield _led(_joined_to_results(merged))
    if any(turn["role"] == "system" for turn in turns):
        folded = fold_system(turns)
        yield folded
        yield _led(_joined_to_results(folded))


def _joined_to_results(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which what the user says right after a result is part of it."""
    made: list[Turn] = []
    for turn in turns:
        if turn["role"] == "user" and made and made[-1]["role"] == "tool":
            texts = [made[-1]["content"], turn["content"]]
            made[-1] = {**made[-1], "content": "\n\n".join(filter(None, texts))}
        else:
            made.append(turn)
    return made


def _led(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` in which the user speaks first, if only to say nothing."""
    at = next((i for i, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
    first = turns[at : at + 1]
    asked = [{"role": "user", "content": ""}] if first and first[0]["role"] != "user" else []
    return [*turns[:at], *asked, *turns[at:]]
