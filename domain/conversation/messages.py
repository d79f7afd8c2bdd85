"""Conversation: what clients send as chat messages, made into what chat templates take.

A template gets turns whose `content` is always a string and whose tool call arguments are
always objects; whatever spelling a client used for the same thing gives the same prompt.
Fields that no template reads are left out.  NUL stays: a tokenizer knows it like any character.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mlxbun.domain.conversation.values import mapping, shown, string, well_formed
from mlxbun.domain.conversation.volatile import without_marks
from mlxbun.domain.refusal import Refused

Turn = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",  # its newer name
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# What a part that is not text shows, by the beginning of its type's name.
_MEDIA = {"image": "image", "input_image": "image", "video": "video", "audio": "audio",
          "input_audio": "audio", "file": "file", "input_file": "file"}  # fmt: skip
_MAX_DEPTH = 64


def normalise(messages: Sequence[object], model_id: str) -> list[Turn]:
    """Return the turns that `messages` of the OpenAI chat protocol mean.

    Raises Refused with the wire name of the field at fault.  `model_id`, named in a refusal,
    reads text only: a picture in the question is refused, one in a tool's result or in earlier
    turns, which the client cannot take back, leaves a note.  A user turn right after a tool's
    result is part of it: clients send so what a result's text cannot hold.
    """
    if not messages:
        raise Refused("invalid_value", "messages required: the list is empty", "messages")
    mappings = [mapping(message, f"messages[{i}]") for i, message in enumerate(messages)]
    roles = [_role(message, f"messages[{i}].role") for i, message in enumerate(mappings)]
    question = _question(roles)
    turns: list[Turn] = []
    for i, (message, role) in enumerate(zip(mappings, roles, strict=True)):
        field = f"messages[{i}]"
        refuse_media = i >= question and role != "tool"
        texts = _texts(message.get("content"), f"{field}.content", model_id, refuse_media)
        text = "".join(map(without_marks, texts) if role == "system" else texts)
        turn: Turn = {"role": role, "content": text}
        if role == "assistant":
            reasoning = string(message, "reasoning_content", field)
            if reasoning is None:
                reasoning = string(message, "reasoning", field)
            if reasoning is not None:
                turn["reasoning_content"] = reasoning
            if calls := _tool_calls(message.get("tool_calls"), f"{field}.tool_calls"):
                turn["tool_calls"] = calls
        for key in ("name", "tool_call_id"):
            if (value := string(message, key, field)) is not None:
                turn[key] = value
        turns.append(turn)
    return turns


def merge_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` as strict templates want them: one system turn, then roles that alternate.

    Leading system turns are joined, later ones become user text in their place, neighbours of
    one role are joined.  Results of tools stay apart: each belongs to its call.
    """
    merged: list[Turn] = []
    for turn in turns:
        if turn["role"] == "system" and any(before["role"] != "system" for before in merged):
            turn = {**turn, "role": "user"}
        if merged and merged[-1]["role"] == turn["role"] != "tool":
            merged[-1] = _join(merged[-1], turn)
        else:
            merged.append(turn)
    return merged


def fold_system(turns: Sequence[Turn]) -> list[Turn]:
    """Return `turns` for templates that know no system role: its text begins the first question."""
    return merge_turns([{**t, "role": "user"} if t["role"] == "system" else t for t in turns])


def well_formed_json(value: object, field: str) -> Any:
    """Return a JSON value with all its strings well formed.

    Raises Refused with `field` when it is nested deeper than a template could write.
    """
    return _copy(value, field, _MAX_DEPTH)


def _question(roles: Sequence[str]) -> int:
    """Return where the last user turn begins; turns of the user in a row are one.

    It is the end of `roles` where a tool's result comes right before.
    """
    at = max((i for i, role in enumerate(roles) if role == "user"), default=0)
    while at > 0 and roles[at - 1] == "user":
        at -= 1
    return len(roles) if at > 0 and roles[at - 1] == "tool" else at


def _join(first: Turn, second: Turn) -> Turn:
    joined = {**second, **first}
    for key in ("content", "reasoning_content"):
        texts = [text for text in (first.get(key), second.get(key)) if text]
        if texts or key in joined:
            joined[key] = "\n\n".join(texts)
    if "tool_calls" in joined:
        joined["tool_calls"] = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    return joined


def _role(message: Mapping[str, object], field: str) -> str:
    role = message.get("role")
    if isinstance(role, str) and role in _ROLES:
        return _ROLES[role]
    said = "is missing" if role is None else f"is {shown(role)}"
    raise Refused("invalid_value", f"{field} {said}; it must be one of {', '.join(_ROLES)}", field)


def _texts(content: object, field: str, model_id: str, refuse_media: bool) -> list[str]:
    if content is None:
        return []
    if isinstance(content, str):
        return [well_formed(content)]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise Refused("invalid_value", f"{field} must be a string, null, or a list of parts", field)
    parts = cast(Sequence[object], content)
    return [_part(part, f"{field}[{j}]", model_id, refuse_media) for j, part in enumerate(parts)]


def _part(part: object, field: str, model_id: str, refuse_media: bool) -> str:
    if isinstance(part, str):
        return well_formed(part)
    part = mapping(part, field)
    kind = part.get("type")
    if kind is not None and not isinstance(kind, str):
        raise Refused("invalid_value", f"{field}.type must be a string", f"{field}.type")
    media = _MEDIA.get((kind or "").removesuffix("_url"))
    if media is None:
        for key in ("text", "refusal"):
            if (text := string(part, key, field)) is not None:
                return text
        if kind in ("text", "input_text", "output_text", "refusal"):
            return ""
        media = f"part of type {shown(kind)}"
    if refuse_media:
        raise Refused("unsupported", f"{model_id} reads text only, and {field} is "
                      f"{_article(media)} {media}", field)  # fmt: skip
    return f"[{media} left out: this model reads text only]"


def _tool_calls(calls: object, field: str) -> list[Turn]:
    if calls is None:
        return []
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes | bytearray):
        raise Refused("invalid_value", f"{field} must be a list", field)
    return [_tool_call(c, f"{field}[{j}]") for j, c in enumerate(cast(Sequence[object], calls))]


def _tool_call(call: object, field: str) -> Turn:
    call = mapping(call, field)
    kind = "custom" if call.get("type") == "custom" else "function"
    function = mapping(call.get(kind), f"{field}.{kind}")
    name = string(function, "name", f"{field}.{kind}")
    if name is None:
        raise Refused("invalid_value", f"{field}.{kind}.name is missing", f"{field}.{kind}.name")
    if kind == "custom":  # its input is free text
        arguments: Any = {"input": string(function, "input", f"{field}.custom") or ""}
    else:
        arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    call_id = string(call, "id", field)
    turn: Turn = {} if call_id is None else {"id": call_id}
    return turn | {"type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: object, field: str) -> dict[str, Any]:
    """Return the object that a call's arguments are, whatever became of them.

    Nothing is {}.  What is no object, and text that is no JSON (a call that was cut off), is
    {"value": it}, so that the model sees what it did.
    """
    value = arguments
    for _ in range(2):  # some clients encode twice
        if not isinstance(value, str):
            break
        value = _parsed(value)
    if value is None or value == "":
        return {}
    value = well_formed_json(value, field)
    return cast(dict[str, Any], value) if isinstance(value, dict) else {"value": value}


def _parsed(text: str) -> object:
    """Return the JSON value that `text` spells, or `text` itself."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
        well_formed_json(value, "")
    except (ValueError, RecursionError):  # Refused is a ValueError
        return text
    return value


def _copy(value: object, field: str, depth: int) -> object:
    if isinstance(value, str):
        return well_formed(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth == 0:
        raise Refused("invalid_value", f"{field} is nested deeper than {_MAX_DEPTH} levels", field)
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value).items()
        return {well_formed(str(k)): _copy(v, field, depth - 1) for k, v in pairs}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_copy(v, field, depth - 1) for v in cast(Sequence[object], value)]
    raise Refused("invalid_value", f"{field} holds what JSON cannot: {type(value).__name__}", field)


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
