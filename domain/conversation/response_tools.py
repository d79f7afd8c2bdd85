"""Tools of the Responses protocol: what the model is shown, and what its calls are called.

The model knows one flat list of functions.  A client may group them in namespaces, and may offer
tools whose input is free text (`custom`); hosted tools, such as web_search, are run by nobody
here and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.conversation.messages import well_formed_json
from mlxbun.domain.refusal import Refused

Kind = Literal["function", "custom"]

INPUT = "input"  # the one argument of the function that a custom tool is shown as

_KINDS: dict[str, Kind] = {"function": "function", "custom": "custom"}


class Tool(Struct, frozen=True):
    """One tool as its client knows it, and the function that the model is shown for it."""

    kind: Kind
    name: str
    namespace: str | None
    function: Mapping[str, Any]  # name, description, parameters, strict
    field: str = ""  # where it stands in the request


class ResponseTools(Struct, frozen=True):
    """The tools of one request.  `hosted` are the types of those that are left out."""

    by_prompt_name: Mapping[str, Tool] = {}
    hosted: tuple[str, ...] = ()

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them."""
        return [{"type": "function", "function": t.function} for t in self.by_prompt_name.values()]

    def called(self, prompt_name: str) -> Tool:
        """Return the tool that the model means; one that was not offered goes by its own name."""
        return self.by_prompt_name.get(prompt_name) or Tool("function", prompt_name, None, {})

    def prompt_name(self, name: str, namespace: str | None) -> str:
        """Return what the model calls a tool, be it one that is no longer offered."""
        for shown, tool in self.by_prompt_name.items():
            if tool.name == name and tool.namespace == namespace:
                return shown
        return name

    def only(self, names: frozenset[str]) -> ResponseTools:
        """Return those whose own names are in `names`."""
        kept = {shown: t for shown, t in self.by_prompt_name.items() if t.name in names}
        return ResponseTools(kept, self.hosted)


def response_tools(tools: Sequence[object] | None, field: str = "tools") -> ResponseTools:
    """Return what `tools` of a request offer.  Raises Refused, naming the field at fault.

    A function keeps its name, and a name that two have gets its namespace in front.
    """
    offered: list[Tool] = []
    hosted: list[str] = []
    for i, tool in enumerate(tools or ()):
        _gather(tool, f"{field}[{i}]", None, offered, hosted)
    names = [tool.name for tool in offered]
    shown: dict[str, Tool] = {}
    for tool in offered:
        name = tool.name
        if names.count(name) > 1 and tool.namespace is not None:
            name = f"{tool.namespace}__{name}"
        if name in shown:
            raise Refused("invalid_value", f"{tool.field}.name: there are two tools {name!r}",
                          f"{tool.field}.name")  # fmt: skip
        shown[name] = replace(tool, function={"name": name, **_body(tool)})
    return ResponseTools(shown, tuple(dict.fromkeys(hosted)))


def _gather(
    tool: object,
    field: str,
    namespace: str | None,
    offered: list[Tool],
    hosted: list[str],
) -> None:
    if not isinstance(tool, Mapping):
        raise Refused("invalid_value", f"{field} must be an object", field)
    said = cast(Mapping[str, Any], tool)
    kind = said.get("type", "function")
    if not isinstance(kind, str):
        raise Refused("invalid_value", f"{field}.type must be a string", f"{field}.type")
    if kind == "namespace" and namespace is None:
        inner = said.get("tools")
        if not isinstance(inner, Sequence) or isinstance(inner, str):
            raise Refused("invalid_value", f"{field}.tools must be a list", f"{field}.tools")
        group = _name(said, field)
        for j, one in enumerate(cast(Sequence[object], inner)):
            _gather(one, f"{field}.tools[{j}]", group, offered, hosted)
    elif (offers := _KINDS.get(kind)) is not None:
        offered.append(Tool(offers, _name(said, field), namespace, said, field))
    else:
        hosted.append(kind)


def _name(tool: Mapping[str, Any], field: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise Refused("invalid_value", f"{field}.name must be a string", f"{field}.name")
    return name


def _body(tool: Tool) -> dict[str, Any]:
    """Return what the model is told of `tool` beside its name."""
    said = tool.function
    parameters: Any = said.get("parameters")
    description: Any = said.get("description")
    if tool.kind == "custom":
        parameters = {
            "type": "object",
            "properties": {INPUT: {"type": "string"}},
            "required": [INPUT],
        }
        words = (w for w in (description, _form(said)) if w and isinstance(w, str))
        description = "\n\n".join(words)
    body: dict[str, Any] = {}
    if description:
        body["description"] = description
    body["parameters"] = parameters if parameters is not None else {"type": "object",
                                                                    "properties": {}}  # fmt: skip
    if said.get("strict"):
        body["strict"] = True
    return cast(dict[str, Any], well_formed_json(body, tool.field))


def _form(tool: Mapping[str, Any]) -> str:
    """Return the words for the grammar that a custom tool's input follows, "" without one."""
    form = tool.get("format")
    if not isinstance(form, Mapping):
        return ""
    said = cast(Mapping[str, Any], form)
    if said.get("type") != "grammar":
        return ""
    return f"The input follows this {said.get('syntax')} grammar:\n{said.get('definition')}"
