"""What requests say of their constraint, in every protocol's words, into one `Constraint`.

Values come as JSON has them.  `field` is always the wire's name of what is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mlxbun.domain.constraint.json_values import list_of, object_of, well_formed
from mlxbun.domain.constraint.words import (
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
)
from mlxbun.domain.refusal import Refused

GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")
_KINDS = ("json", "regex", "grammar", "choice")
_ALSO = ("json_object",)


def constraint_of(fields: Mapping[str, Any]) -> Constraint | None:
    """Return what `fields` ask, which are response_format, guided_* and structured_outputs.

    Null is not said.  Raises Refused, also where two of them ask for something.
    """
    found: list[Constraint] = []
    for field, value in fields.items():
        if value is None:
            continue
        if field in GUIDED:
            said: Constraint | None = _of_kind(field.removeprefix("guided_"), value, field)
        elif field == "structured_outputs":
            said = _structured(value)
        else:
            said = format_of(value, field)
        if said is not None:
            found.append(said)
    if len(found) > 1:
        message = f"{found[0].field} and {found[1].field} both say what the answer looks like"
        raise Refused("invalid_value", message, found[1].field)
    return found[0] if found else None


def format_of(value: Any, field: str) -> Constraint | None:
    """Return what a format asks: text, json_object or json_schema; None is text.

    The schema is in `json_schema`, as Chat has it, or beside the type, as Responses and Messages.
    """
    said = _object(value, field)
    kind = said.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Constraint(JsonObject(), f"{field}.type")
    if kind != "json_schema":
        message = f"{field}.type must be text, json_object or json_schema, but is {kind!r}"
        raise Refused("invalid_value", message, f"{field}.type")
    inner = said
    if said.get("json_schema") is not None:
        field = f"{field}.json_schema"
        inner = _object(said["json_schema"], field)
    if inner is said and said.get("schema") is None and field == "response_format":
        field = f"{field}.json_schema"
    if inner.get("schema") is None:
        raise Refused("invalid_value", f"{field}.schema is missing", f"{field}.schema")
    return _schema(
        inner["schema"],
        f"{field}.schema",
        strict=inner.get("strict") is True,
        compact=inner.get("any_whitespace") is False,
    )


def _structured(value: Any) -> Constraint | None:
    """Return what structured_outputs asks: one of its kinds, or itself a schema."""
    field = "structured_outputs"
    said = _object(value, field)
    kinds = [kind for kind in (*_KINDS, *_ALSO) if said.get(kind) is not None]
    if len(kinds) > 1:
        message = f"{field}.{kinds[0]} and {field}.{kinds[1]} cannot be combined"
        raise Refused("invalid_value", message, f"{field}.{kinds[1]}")
    if not kinds:
        return _schema(said, field) if said else None
    kind = kinds[0]
    if kind == "json_object":
        return Constraint(JsonObject(), f"{field}.{kind}") if said[kind] is True else None
    compact = said.get("disable_any_whitespace") is True
    return _of_kind(kind, said[kind], f"{field}.{kind}", compact=compact)


def _of_kind(kind: str, value: Any, field: str, *, compact: bool = False) -> Constraint:
    match kind:
        case "json":
            return _schema(value, field, compact=compact)
        case "regex":
            return Constraint(Regex(_text(value, field)), field)
        case "grammar":
            return Constraint(Grammar(_text(value, field)), field)
        case _:
            texts = list_of(value)
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise Refused("invalid_value", f"{field} must be a list of texts", field)
            return Constraint(Choice(tuple(dict.fromkeys(map(well_formed, texts)))), field)


def _schema(value: Any, field: str, *, strict: bool = False, compact: bool = False) -> Constraint:
    """Return the constraint of a schema: an object, true or false, or JSON text of one."""
    if isinstance(value, str):
        value = _decoded(value, field)
    if not isinstance(value, bool) and object_of(value) is None:
        raise Refused("invalid_value", f"{field} must be a JSON schema", field)
    try:
        return Constraint(JsonSchema(well_formed(value), strict, compact), field)
    except RecursionError:
        raise Refused("invalid_value", f"{field} nests too deeply", field) from None


def _decoded(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused("invalid_value", f"{field} is no JSON: {error}", field) from None


def _object(value: Any, field: str) -> dict[str, Any]:
    said = object_of(value)
    if said is None:
        raise Refused("invalid_value", f"{field} must be an object", field)
    return said


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise Refused("invalid_value", f"{field} must be a text that is not empty", field)
    return str(well_formed(value))
