"""Tools in the plainest words, for templates that take every schema to have a type and a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

Schema = dict[str, Any]

_MAX_DEPTH = 32
_NONE: Mapping[str, Any] = {}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def with_plain_schemas(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return `tools` in which each schema has one type, a description, and its parts."""
    return [_tool(tool) for tool in tools]


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(function := tool.get("function"), Mapping):
        return {**tool, "function": _tool(cast(Mapping[str, Any], function))}
    said: Mapping[str, Any] = tool.get("parameters") or _NONE
    parameters = _plain({"type": "object", **said}, _MAX_DEPTH)
    return {**tool, "description": tool.get("description") or "", "parameters": parameters}


def _plain(schema: object, depth: int) -> Schema:
    said: Schema = dict(cast(Mapping[str, Any], schema)) if isinstance(schema, Mapping) else {}
    said["type"] = _type(said, depth)
    said["description"] = said.get("description") or ""
    if depth > 0 and said["type"] == "object":
        properties = said.get("properties")
        parts = cast(Mapping[str, Any], properties) if isinstance(properties, Mapping) else _NONE
        said["properties"] = {key: _plain(part, depth - 1) for key, part in parts.items()}
        said["required"] = said.get("required") or []
    elif depth > 0 and said["type"] == "array":
        said["items"] = _plain(said.get("items"), depth - 1)
    return said


def _type(schema: Mapping[str, Any], depth: int) -> str:
    """Return the first type that `schema` allows; a text, where it says none."""
    said: Any = schema.get("type")
    if isinstance(said, str):
        return said
    kinds: list[str] = []
    if isinstance(said, Sequence):
        kinds = list(map(str, cast(Sequence[object], said)))
    elif "properties" in schema or "$ref" in schema:
        kinds = ["object"]
    elif depth > 0:
        for key in _ALTERNATIVES:
            for part in cast(Sequence[Any], schema.get(key) or ()):
                if isinstance(part, Mapping):
                    kinds.append(_type(cast(Mapping[str, Any], part), depth - 1))
    return next((kind for kind in kinds if kind != "null"), "string")
