"""The tools that a model was offered, and the types of what is written without one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from mlxbun.domain.conversation.markup.literals import Syntax, as_json, is_json
from mlxbun.domain.conversation.markup.source import Markers, Source, Steps

Schema = Mapping[str, Any]

_MAX_DEPTH = 8  # of references and alternatives
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_PREFIX = "functions."  # which some models put before a name
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
            name = name.removeprefix(_PREFIX)
        return name if name in self._schemas else None

    def may_begin(self, written: str) -> bool:
        """Tell whether `written` is a tool's name or how one begins."""
        begun = written.strip()
        whole = begun != written.lstrip()  # spaces follow it
        if whole or not begun:
            return not begun or self.known(begun) is not None
        return _PREFIX.startswith(begun) or any(
            name.startswith((begun, begun.removeprefix(_PREFIX))) for name in self._schemas
        )

    def schema(self, name: str) -> Schema:
        """Return the JSON schema of a tool's arguments."""
        return self._schemas[name]

    def typed(self, name: str, key: str, text: str) -> str:
        """Return argument `key`, written as bare text, as JSON.

        It is a string unless the tool's schema says otherwise, and then only if it is that.
        """
        root = self._schemas[name]
        declared = list(_declared(key, root, root, _MAX_DEPTH))
        kinds = {kind for one in declared for kind in _kinds(one, root, _MAX_DEPTH)}
        bare = text.strip()
        if "any" in kinds:
            kinds = (kinds - {"any"}) | {"object", "array", "string"}
        if bare.startswith('"') and not kinds & {"string"} and kinds and is_json(bare):
            bare = str(json.loads(bare))  # quoted, although it is no string
        for kind in ("null", "boolean", "integer", "number", "object", "array"):
            if kind in kinds and (value := _read(bare, kind)) is not None:
                return value
        return json.dumps(text, ensure_ascii=False)


def name_before(source: Source, ends: Markers, tools: Tools) -> Steps[tuple[str | None, str]]:
    """Take a tool's name and the marker that ends it; (None, "") once it can be no tool's."""
    written = ""
    while True:
        at, marker = ends.find(source.text)
        written += source.take(at)
        if not tools.may_begin(written):
            return None, ""
        if marker:
            source.take(len(marker))
            return tools.known(written), marker
        if source.ended:
            return None, ""
        yield


def offered(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """Return the functions that `tools` of the OpenAI protocol name."""
    functions = [cast(Mapping[str, Any], tool.get("function") or tool) for tool in tools]
    return Tools({str(f["name"]): cast(Schema, f.get("parameters") or {}) for f in functions})


def as_object(pairs: Mapping[str, str]) -> str:
    """Return the JSON object of keys and values that are JSON."""
    written = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in pairs.items())
    return "{" + ", ".join(written) + "}"


def _declared(key: str, schema: object, root: Schema, depth: int) -> Iterator[object]:
    """Yield what `schema` and its parts say of property `key`."""
    if not isinstance(schema, Mapping) or depth == 0:
        return
    said = cast(Schema, schema)
    properties = said.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        yield cast(Schema, properties)[key]
    elif isinstance(others := said.get("additionalProperties"), Mapping):
        yield cast(Schema, others)
    for part in _parts(said, root):
        yield from _declared(key, part, root, depth - 1)


def _parts(schema: Schema, root: Schema) -> Iterator[object]:
    """Yield the schemas that `schema` is made of: what it refers to, and its alternatives."""
    if isinstance(ref := schema.get("$ref"), str):
        yield _resolved(ref, root)
    for key in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(key)
        if isinstance(alternatives, Sequence) and not isinstance(alternatives, str):
            yield from cast(Sequence[object], alternatives)


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
    else:
        kinds = {kind for part in _parts(said, root) for kind in _kinds(part, root, depth - 1)}
        if "allOf" in said and kinds != {"any"}:
            kinds.discard("any")  # what one part leaves open another one says
    if kinds and said.get("nullable") is True:  # OpenAPI's
        kinds.add("null")
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
        case "integer":
            found = _INTEGER.fullmatch(text)
            return found[1] if found else None
        case "number":
            return text if _NUMBER.fullmatch(text) else None
        case _:
            if not text.startswith("{" if kind == "object" else "["):
                return None
            return text if is_json(text) else as_json(text, Syntax(lenient=True))
