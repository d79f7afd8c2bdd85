"""What a model is told of a constraint where nothing enforces it."""

from __future__ import annotations

from mlxbun.domain.constraint.json_values import spelled
from mlxbun.domain.constraint.words import (
    Calls,
    Choice,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Wanted,
)


def hint_of(wanted: Wanted) -> str:
    """Return an instruction for the model."""
    match wanted:
        case JsonObject():
            return "Answer with one JSON object and nothing else."
        case JsonSchema(schema=schema):
            return (
                "Answer with JSON and nothing else. It must be valid under this JSON schema:\n"
                + spelled(schema)
            )
        case Choice(texts=texts):
            return "Answer with exactly one of these texts and nothing else:\n" + "\n".join(texts)
        case Grammar(ebnf=ebnf):
            return f"Answer with text of this grammar and nothing else:\n{ebnf}"
        case Regex(pattern=pattern):
            return (
                "Answer with text that this regular expression matches as a whole, and nothing "
                f"else:\n{pattern}"
            )
        case Calls():
            return "Answer by calling one of the tools."
