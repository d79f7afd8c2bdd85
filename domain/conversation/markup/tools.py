"""The tools that a model was offered, and the types of what is written without one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from mlxbun.domain.conversation.markup.literals import Syntax, as_json, is_json

Schema = Mapping[str, Any]

_MAX_DEPTH = 8  # of references and alternatives
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_KINDS: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    dict: "object", list: "array",
}  # fmt: skip


class Call(Struct, frozen=True, gc=False):
    """A call that was read.  `arguments` is the text of one JSON object."""

    name: str
    arguments: str


class Tools:
    """What may be called, by name."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas
        self.longest_name = max(map(len, schemas), default=0)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._schemas)

    def known(self, written: str) -> str | None:
        """Return the tool that is written so; None for none."""
        name = written.strip()
        if name not in self._schemas:
            name = name.removeprefix("functions.")
        return name if name in self._schemas else None

    def schema(self, name: str) -> Schema:
        """Return the JSON schema of a tool's arguments."""
        return self._schemas[name]

    def typed(self, name: str, key: str, text: str) -> str:
        """Return argument `key`, written as bare text, as JSON.

        It is a string unless the tool's schema says otherwise, and then only if it is that.
        """
        schema = self._schemas[name]
        properties = schema.get("properties")
        declared = cast(Schema, properties).get(key) if isinstance(properties, Mapping) else None
        kinds = _kinds(declared, schema, _MAX_DEPTH)
        bare = text.strip()
        if kinds == {"any"}:
            kinds = {"object", "array", "string"} if declared is not None else {"string"}
        for kind in ("null", "boolean", "integer", "number", "object", "array"):
            if kind in kinds and (value := _read(bare, kind)) is not None:
                return value
        return json.dumps(text, ensure_ascii=False)


def offered(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Return the functions that `tools` of the OpenAI protocol name."""
    functions = [cast(Mapping[str, Any], tool.get("function") or tool) for tool in tools]
    return Tools({str(f["name"]): cast(Schema, f.get("parameters") or {}) for f in functions})


def as_object(pairs: Mapping[str, str]) -> str:
    """Return the JSON object of keys and values that are JSON."""
    written = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in pairs.items())
    return "{" + ", ".join(written) + "}"


def _kinds(schema: object, root: Schema, depth: int) -> set[str]:
    """Return the JSON types that `schema` allows; {"any"} where it does not say."""
    if not isinstance(schema, Mapping) or depth == 0:
        return {"any"}
    said = cast(Schema, schema)
    kind = said.get("type")
    kinds: set[str]
    if isinstance(kind, str):
        kinds = {kind}
    elif isinstance(kind, Sequence):
        kinds = set(map(str, cast(Sequence[object], kind)))
    elif "const" in said:
        kinds = {_KINDS.get(type(cast(object, said["const"])), "any")}
    elif isinstance(values := said.get("enum"), Sequence):
        kinds = {_KINDS.get(type(v), "any") for v in cast(Sequence[object], values)}
    elif isinstance(ref := said.get("$ref"), str):
        return _kinds(_resolved(ref, root), root, depth - 1)
    else:
        kinds = set[str]()
        for key in ("anyOf", "oneOf", "allOf"):
            alternatives = said.get(key)
            if isinstance(alternatives, Sequence):
                for one in cast(Sequence[object], alternatives):
                    kinds |= _kinds(one, root, depth - 1)
    return kinds or {"any"}


def _resolved(ref: str, root: Schema) -> object:
    at: Any = root
    for step in ref.removeprefix("#/").split("/"):
        at = cast(Schema, at).get(step) if isinstance(at, Mapping) else None
    return at


def _read(text: str, kind: str) -> str | None:
    """Return `text` as JSON of `kind`; None if it is none."""
    match kind:
        case "null":
            return "null" if text in ("null", "None") else None
        case "boolean":
            return text.lower() if text.lower() in ("true", "false") else None
        case "integer" | "number":
            found = _NUMBER.fullmatch(text)
            whole = kind == "number" or (found and text.lstrip("-").isdigit())
            return text if found and whole else None
        case _:
            if not text.startswith("{" if kind == "object" else "["):
                return None
            return text if is_json(text) else as_json(text, Syntax(lenient=True))
