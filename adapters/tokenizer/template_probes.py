"""What a chat template leaves out of a prompt without a word, found by asking it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.domain.conversation import Turn

_SAID = "Xylophon"  # a word that no template has of its own
_CALL: Turn = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "look", "arguments": {"city": "Rome"}},
}
PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where."}},
            "required": ["city"],
        },
    },
}


class Losses(Struct, frozen=True):
    """Which texts do not come through: beside calls, of late system turns, of the first system
    turn where a tool's result is the last word."""

    beside_calls: bool = False
    late_system: bool = False
    system_before_results: bool = False


def losses(render: Callable[[Sequence[Turn]], str | None]) -> Losses:
    """Return what a template loses; `render` gives None for turns that it refuses."""

    def loses(*turns: Turn) -> bool:
        prompt = render(turns)
        return prompt is not None and _SAID not in prompt

    called = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
    result = {"role": "tool", "name": "look", "tool_call_id": _CALL["id"], "content": "5"}
    asked, answered = _said("user", "a"), _said("assistant", "b")
    return Losses(
        loses(asked, {**called, "content": _SAID}, result, answered, asked),
        loses(asked, answered, _said("system", _SAID), asked),
        loses(_said("system", _SAID), asked, called, result),
    )


def _said(role: str, content: str) -> Turn:
    return {"role": role, "content": content}
