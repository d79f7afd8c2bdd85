"""Tools of the Responses protocol: what the model is shown, and what its calls are called.

The model knows one flat list of functions.  A client may group them in namespaces, and may offer
tools whose input is free text (`custom`), which is kept to a regular expression if there is one,
and tools of its own that it only names (`response_client_tools`).  Hosted tools, such as
web_search, are run by nobody here and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.conversation.messages import well_formed_json
from mlxbun.domain.conversation.response_client_tools import FUNCTIONS, ClientKind, client_kind
from mlxbun.domain.refusal import Refused

Kind = Literal["function", "custom"] | ClientKind

REGEX = "regex"
INPUT = "input"  # the one argument of the function that a custom tool is shown as

_KINDS: dict[str, Kind] = {"function": "function", "custom": "custom"}


class Tool(Struct, frozen=True):
    """One tool as its client knows it, and the function that the model is shown for it."""

    kind: Kind
    name: str
    namespace: str | None
    function: Mapping[str, Any]  # name, description, parameters, strict
    field: str = ""  # where it stands in the request
    free: bool = False  # from a grammar that it has


class ResponseTools(Struct, frozen=True):
    """The tools of one request.  `hosted` are the types of those that are left out."""

    by_prompt_name: Mapping[str, Tool] = {}
    hosted: tuple[str, ...] = ()

    @property
    def free(self) -> list[str]:
        """The names of custom tools whose grammar is only told: nobody enforces its syntax."""
        return [tool.name for tool in self.by_prompt_name.values() if tool.free]

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
    taken = {tool.name for tool in offered if tool.kind in _KINDS.values()}
    for tool in offered:
        if tool.kind not in _KINDS.values() and tool.name in taken:
            hosted.append(tool.kind)  # a function of the client's own stands in its place
    offered = [t for t in offered if t.kind in _KINDS.values() or t.name not in taken]
    names = [tool.name for tool in offered]
    shown: dict[str, Tool] = {}
    for tool in offered:
        name = tool.name
        if names.count(name) > 1 and tool.namespace is not None:
            name = f"{tool.namespace}__{name}"
        if name in shown:
            raise Refused("invalid_value", f"{tool.field}.name: there are two tools {name!r}",
                          f"{tool.field}.name")  # fmt: skip
        free = _form(tool) != "" and _grammar(tool.function, REGEX) is None
        shown[name] = replace(tool, function={"name": name, **_body(tool)}, free=free)
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
    elif (client := client_kind(said)) is not None:
        offered.append(Tool(client, client, None, FUNCTIONS[client], field))
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
    strict = bool(said.get("strict"))
    if tool.kind == "custom":
        text = {"type": "string"}
        if (pattern := _grammar(said, REGEX)) is not None:
            text["pattern"] = f"^(?:{pattern})$"
            strict = True
        parameters = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}
        words = (w for w in (description, _form(tool)) if w and isinstance(w, str))
        description = "\n\n".join(words)
    body: dict[str, Any] = {}
    if description:
        body["description"] = description
    body["parameters"] = parameters if parameters is not None else {"type": "object",
                                                                    "properties": {}}  # fmt: skip
    if strict:
        body["strict"] = True
    return cast(dict[str, Any], well_formed_json(body, tool.field))


def _form(tool: Tool) -> str:
    """Return the words for the grammar that a custom tool's input follows, "" without one."""
    if tool.kind != "custom":
        return ""
    said = tool.function.get("format")
    syntax = cast(Mapping[str, Any], said).get("syntax") if isinstance(said, Mapping) else None
    definition = _grammar(tool.function, syntax)
    return f"The input follows this {syntax} grammar:\n{definition}" if definition else ""


def _grammar(tool: Mapping[str, Any], syntax: object) -> str | None:
    """Return the definition of a custom tool's grammar, if it has one of that syntax."""
    form = tool.get("format")
    if not isinstance(form, Mapping):
        return None
    said = cast(Mapping[str, Any], form)
    definition = said.get("definition")
    if said.get("type") != "grammar" or said.get("syntax") != syntax:
        return None
    return definition if isinstance(definition, str) else None
