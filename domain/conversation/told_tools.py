"""Tools for templates that know of none: told in the system text, calls and results as text.

Calls are asked for, and written, in the most common notation, Hermes; answers are read in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlxbun.domain.conversation.messages import Turn, merge_turns

_BEFORE = "You can call functions. Each is described by a line of JSON:\n"
_AFTER = """
To call one, write its name and its arguments, like this:
<tool_call>
{"name": "the name", "arguments": {"an argument": "its value"}}
</tool_call>
The result is then given to you between <tool_response> and </tool_response>."""


def with_told_tools(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return `turns` in which calls and results are text; `tools` come with the first system turn.

    Roles are those that every template knows.
    """
    told = [_told(turn) for turn in turns]
    if tools:
        listed = "".join(_json(tool.get("function", tool)) + "\n" for tool in tools)
        told = [{"role": "system", "content": _BEFORE + listed + _AFTER}, *told]
        if len(told) > 1 and told[1]["role"] == "system":  # what the client says comes first
            told[:2] = [{**told[1], "content": f"{told[1]['content']}\n\n{told[0]['content']}"}]
    return merge_turns(told)


def _told(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{turn['content']}\n</tool_response>",
        }
    if "tool_calls" not in turn:
        return turn
    calls = [f"<tool_call>\n{_json(call['function'])}\n</tool_call>" for call in turn["tool_calls"]]
    kept = {key: value for key, value in turn.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, [turn["content"], *calls]))}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
