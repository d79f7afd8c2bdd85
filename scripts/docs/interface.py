"""Tables of the HTTP interface, from the types and lists that the server itself goes by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from options import plain, table

from mlxbun.adapters.http.errors import MESSAGES_RULES, RULES
from mlxbun.adapters.http.fields import Field
from mlxbun.adapters.http.openapi import document
from mlxbun.domain.sampling_policy import RANGES, resolve

_HEADINGS = {
    "honoured": "Honoured",
    "partly": "Honoured in part",
    "refused": "Refused",
    "ignored": "Accepted and ignored",
}
_MEANINGS = {
    "invalid_value": "a field is malformed, out of range or missing, or the body is not JSON",
    "unsupported": "understood, and not offered here",
    "context_length_exceeded": "the prompt leaves no room for one token",
    "unauthorized": "the server has an API key, and the request has not",
    "model_not_found": "another model is served",
    "not_found": "there is nothing at this path, or nothing with this id",
    "previous_response_not_found": "`previous_response_id` names no response that is kept",
    "method_not_allowed": "the path takes other methods, which `allow` lists",
    "timeout": "the body stopped coming",
    "body_too_large": "the body is longer than `--max-body`",
    "queue_full": "`--batch` requests run and `--max-waiting` wait",
    "engine_failed": "the model failed on this request",
    "internal": "a defect of the server; its log has the traceback under the request's id",
    "unavailable": "the model is not loaded, or did not load",
    "draining": "the server is stopping",
}


def endpoints() -> str:
    rows = [
        (method.upper(), f"`{path}`", said["summary"])
        for path, methods in document()["paths"].items()
        for method, said in methods.items()
    ]
    return table(("Method", "Path", "What it does"), rows)


def error_codes() -> str:
    rows = [
        (
            f"`{code}`",
            str(rule.status),
            f"`{rule.type}`",
            f"{MESSAGES_RULES[code].status} `{MESSAGES_RULES[code].type}`",
            f"{rule.retry_after_seconds} s" if rule.retry_after_seconds else "",
            _MEANINGS[code],
        )
        for code, rule in RULES.items()
    ]
    return table(("`code`", "Status", "`type`", "In Messages", "`retry-after`", "When"), rows)


def sampling_fields() -> str:
    """Return each sampling field's range and what it is when nobody says it."""
    defaults = resolve((), vocab_size=1, fresh_seed=0)
    rows: list[tuple[str, str, str]] = []
    for name, (low, high) in RANGES.items():
        if name != "logprobs":  # asked for in two ways
            default = "a fresh one" if name == "seed" else plain(getattr(defaults, name))
            rows.append((f"`{name}`", f"{_limit(low)} to {_limit(high)}", default))
    return table(("Field", "Range", "Default"), rows)


def fields(listed: Iterable[Field], body: type[Struct]) -> str:
    """Return a table for each thing that becomes of the fields of `body`."""
    schema = document()["components"]["schemas"][body.__name__]
    known, required = schema["properties"], schema.get("required", ())
    parts: list[str] = []
    for stance, heading in _HEADINGS.items():
        rows: list[tuple[str, ...]] = []
        for field in sorted(listed, key=lambda f: f.name not in required):
            if field.stance != stance:
                continue
            name = f"`{field.name}`" + (" (required)" if field.name in required else "")
            if stance == "honoured":
                rows.append((name, _type(known[field.name]), field.note))
            elif stance == "ignored":
                rows.append((name, field.note))
            else:
                passing = ", ".join(f"`{json.dumps(value)}`" for value in field.harmless)
                rows.append((name, field.note, "see there" if stance == "partly" else passing))
        if not rows:
            continue
        head = {
            "honoured": ("Field", "Type", "Note"),
            "ignored": ("Field", "Why it changes nothing"),
        }.get(stance, ("Field", "What is missing", "Values that pass, besides null"))
        parts.append(f"**{heading}**\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def _limit(limit: float) -> str:
    named: dict[float, str] = {-(2**63): "-2^63", 2**64 - 1: "2^64 - 1"}
    return named.get(limit, plain(limit))


def _type(schema: Mapping[str, Any]) -> str:
    """Return a JSON schema's types in words; null goes without saying."""
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"] if part != {"type": "null"})
    if "$ref" in schema:
        return "object"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    match schema.get("type"):
        case "array":
            items = _type(schema["items"])
            return f"list of ({items})" if " or " in items else f"list of {items}"
        case str(name):
            return name
        case _:
            return "any"
