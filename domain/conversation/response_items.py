"""Items of the Responses protocol, made into chat messages.

What a client sends back of an earlier answer stands in items of its own: thoughts, text, calls,
results.  One turn of the assistant is made of those that follow each other, as if it had been
said in the chat protocol; `normalise` then judges them like any chat, and `Translation.located`
finds `input[5].output` where it says `messages[3].content`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mlxbun.domain.conversation.response_client_tools import asked_of_model
from mlxbun.domain.conversation.response_tools import INPUT, ResponseTools
from mlxbun.domain.conversation.translation import Translation
from mlxbun.domain.refusal import Refused

_SEALED = "mlxbun1."
_COMPACTED = "[what was said before was compacted elsewhere, and cannot be read here]"
_ROLES = ("system", "developer", "user", "tool")  # and the assistant's; others are users
Item = dict[str, Any]


def input_items(said: str | Sequence[object] | None, field: str = "input") -> list[Item]:
    """Return the items that `field` stands for.  Raises Refused for one that is no object."""
    if isinstance(said, str):
        part = {"type": "input_text", "text": said}
        return [{"type": "message", "role": "user", "content": [part]}]
    items: list[Item] = []
    for i, item in enumerate(said or ()):
        if not isinstance(item, Mapping):
            raise Refused("invalid_value", f"{field}[{i}] must be an object", f"{field}[{i}]")
        items.append(dict(cast(Mapping[str, Any], item)))
    return items


def translate(
    items: Sequence[Item],
    tools: ResponseTools,
    *,
    instructions: str | None = None,
    num_before: int = 0,
    field: str = "input",
) -> Translation:
    """Return the messages that `items` mean, `instructions` before them.

    The first `num_before` items are of an earlier response: the client's own count from there.
    Raises Refused, naming the field at fault.
    """
    writer = _Writer(tools)
    if instructions:
        writer.message({"role": "system", "content": instructions}, "instructions")
    for i, item in enumerate(items):
        writer.item(item, f"{field}[{i - num_before}]")
    return Translation(writer.messages, writer.origins)


def sealed(thoughts: str) -> str:
    """Return `thoughts` as the `encrypted_content` that a client hands back.

    They are not secret, the summary has them too: some clients only send back what is opaque.
    """
    return _SEALED + base64.b64encode(thoughts.encode("utf-8", "replace")).decode()


def unsealed(text: str) -> str | None:
    """Return the thoughts that `sealed` made `text` of; None for what is not ours."""
    if not text.startswith(_SEALED):
        return None
    try:
        return base64.b64decode(text.removeprefix(_SEALED), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


class _Writer:
    """Puts messages together item by item."""

    def __init__(self, tools: ResponseTools) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins = {"messages": "input"}  # and more closely below
        for i, tool in enumerate(tools.by_prompt_name.values()):
            self.origins[f"tools[{i}].function"] = tool.field
        self._tools = tools
        self._names: dict[str, str] = {}  # of calls, by their id
        self._open: dict[str, Any] | None = None  # the assistant's turn that items still join

    def message(self, message: dict[str, Any], origin: str) -> None:
        self._open = None
        self._add(message)
        self._from("", origin)
        if message["role"] == "system" and origin == "instructions":
            self._from(".content", origin)

    def item(self, item: Item, at: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        if not isinstance(kind, str):
            raise Refused("invalid_value", f"{at}.type must be a string", f"{at}.type")
        if kind == "message":
            self._message(item, at)
        elif kind == "reasoning":
            self._reasoning(item, at)
        elif kind in ("function_call", "custom_tool_call", "mcp_call"):
            self._call(item, kind, at)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(item.get("call_id"), item.get("output"), at)
        elif kind.endswith("_call_output"):  # local_shell, shell, apply_patch, computer
            self._result(item.get("call_id") or item.get("id"), item.get("output"), at)
        elif kind.endswith("_call") and isinstance(item.get("call_id"), str):
            self._client_call(item, kind, at)
        elif kind == "compaction":  # of another server, which sealed what was said before it
            self.message({"role": "user", "content": _COMPACTED}, at)
        # What is left ran elsewhere (web_search_call, ...) and has no words for us.

    def _message(self, item: Item, at: str) -> None:
        role, content = item.get("role"), item.get("content")
        if role != "assistant":
            known = role in _ROLES or not isinstance(role, str)
            self.message({"role": role if known else "user", "content": content}, at)
            return
        if self._open is None or self._open["content"]:
            self._begin()
        assert self._open is not None
        self._open["content"] = content
        self._from(".content", f"{at}.content")

    def _reasoning(self, item: Item, at: str) -> None:
        thoughts = _thoughts(item, at)
        if not thoughts:
            return
        if self._open is None or self._open["content"] or "tool_calls" in self._open:
            self._begin()
        assert self._open is not None
        before = self._open.get("reasoning_content")
        self._open["reasoning_content"] = f"{before}\n\n{thoughts}" if before else thoughts

    def _call(self, item: Item, kind: str, at: str) -> None:
        name = item.get("name")
        if not isinstance(name, str) or not name:
            raise Refused("invalid_value", f"{at}.name must be a string", f"{at}.name")
        namespace = item.get("namespace")
        shown = self._tools.prompt_name(name, namespace if isinstance(namespace, str) else None)
        if kind == "custom_tool_call":
            text = item.get("input")
            arguments: Any = {INPUT: text if isinstance(text, str) else ""}
        else:
            arguments = item.get("arguments")
        call_id = item.get("call_id") or item.get("id")
        self._add_call(call_id, shown, arguments, f"{at}.arguments")
        if kind == "mcp_call" and item.get("output") is not None:
            self._result(call_id, item["output"], at)

    def _client_call(self, item: Item, kind: str, at: str) -> None:
        """Add the call of a tool whose client ran it, such as local_shell_call."""
        name = kind.removesuffix("_call")
        self._add_call(item["call_id"], name, asked_of_model(name, item), f"{at}.action")

    def _add_call(self, call_id: object, name: str, arguments: object, origin: str) -> None:
        if self._open is None:
            self._begin()
        assert self._open is not None
        calls: list[Any] = self._open.setdefault("tool_calls", [])
        call: dict[str, Any] = {"type": "function",
                                "function": {"name": name, "arguments": arguments}}  # fmt: skip
        if isinstance(call_id, str):
            call["id"] = call_id
            self._names[call_id] = name
        self._from(f".tool_calls[{len(calls)}].function.arguments", origin)
        calls.append(call)

    def _result(self, call_id: object, output: object, at: str) -> None:
        """Add a tool's result; one whose call is not there is a tool's turn all the same."""
        turn: dict[str, Any] = {"role": "tool", "content": _output(output)}
        if isinstance(call_id, str):
            turn["tool_call_id"] = call_id
            if call_id in self._names:
                turn["name"] = self._names[call_id]
        self._open = None
        self._add(turn)
        self._from("", at)
        self._from(".content", f"{at}.output")

    def _begin(self) -> None:
        self._open = {"role": "assistant", "content": None}
        self._add(self._open)

    def _add(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def _from(self, suffix: str, origin: str) -> None:
        self.origins[f"messages[{len(self.messages) - 1}]{suffix}"] = origin


def _thoughts(item: Item, at: str) -> str:
    """Return what was thought: the thoughts themselves, what we sealed, or their summary."""
    said = _texts(item.get("content"), f"{at}.content")
    encrypted = item.get("encrypted_content")
    if not said and isinstance(encrypted, str):
        said = unsealed(encrypted) or ""
    return said or _texts(item.get("summary"), f"{at}.summary")


def _texts(parts: object, at: str) -> str:
    if parts is None:
        return ""
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, Sequence):
        raise Refused("invalid_value", f"{at} must be a list", at)
    said = (cast(Mapping[str, Any], p) for p in cast(Sequence[object], parts)
            if isinstance(p, Mapping))  # fmt: skip
    return "\n\n".join(p["text"] for p in said if isinstance(p.get("text"), str))


def _output(output: object) -> object:
    """Return a result as chat content: text, or parts; other JSON is its text."""
    if output is None or isinstance(output, str):
        return output
    if _is_part(output):  # one alone, as computer_call_output has it
        return [output]
    if isinstance(output, Sequence) and all(map(_is_part, cast(Sequence[object], output))):
        return cast(object, output)
    return json.dumps(output, ensure_ascii=False)


def _is_part(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(
        cast(Mapping[str, Any], value).get("type"), str
    )
