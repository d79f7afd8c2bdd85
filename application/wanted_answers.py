"""What an answer must look like, out of all that a chat asks: a format, forced calls, strict tools.

Where calls and a format are both asked for, an answer is one or the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.constraint import (
    Calls,
    Constraint,
    JsonObject,
    JsonSchema,
    Tag,
)
from mlxbun.domain.conversation.markup import Family
from mlxbun.domain.conversation.markup.call_tags import call_tags
from mlxbun.domain.refusal import Refused

HARMONY = "harmony"
HARMONY_FINAL = "<|channel|>final<|message|>"
HARMONY_NEXT = "<|end|><|start|>assistant"


class ForcedCall(Struct, frozen=True):
    """An answer must be a call: of the tool `name`, or of any.  `field` asked for it."""

    name: str | None = None
    field: str = "tool_choice"


class Asked(Struct, frozen=True):
    """What a chat asks of its answer.  `tools` are OpenAI's; `one_call` allows one at most.

    `strict` are names of tools whose arguments must fit, beside those that say so themselves.
    """

    constraint: Constraint | None
    tools: Sequence[Mapping[str, Any]]
    forced: ForcedCall | None
    one_call: bool
    strict: frozenset[str] = frozenset()


def wanted(
    asked: Asked, family: Family, prompt: str, stops: frozenset[str]
) -> tuple[Constraint | None, tuple[str, ...]]:
    """Return the constraint of the answer to `prompt`, and what cannot be kept to.

    `stops` are the spellings of tokens that end an answer.  Raises Refused for calls that this
    family's notation, or these tools, do not allow to force.
    """
    calls, notes = _calls(asked, family, stops)
    found = asked.constraint
    if calls is not None and found is not None:
        if not isinstance(found.wanted, JsonObject | JsonSchema):
            message = f"{found.field} cannot be combined with tools"
            raise Refused("unsupported", message, found.field)
        before = HARMONY_FINAL if family.name == HARMONY else ""
        both = replace(calls, otherwise=found.wanted, before_otherwise=before)
        found = Constraint(both, found.field)
    elif calls is not None:
        field = asked.forced.field if asked.forced is not None else "tools"
        found = Constraint(calls, field)
    if found is None:
        return None, notes
    return Constraint(found.wanted, found.field, _after(found, family, prompt)), notes


def _calls(
    asked: Asked, family: Family, stops: frozenset[str]
) -> tuple[Calls | None, tuple[str, ...]]:
    forced = asked.forced
    tools = [(i, tool["function"]) for i, tool in enumerate(asked.tools)]
    if forced is not None and forced.name is not None:
        tools = [(i, tool) for i, tool in tools if tool["name"] == forced.name]
    if forced is not None and not tools:
        what = f"the tool {forced.name!r}" if forced.name is not None else "a call"
        message = f"{forced.field} asks for {what}, and tools has none"
        raise Refused("invalid_value", message, forced.field)
    strict = any(tool.get("strict") is True or tool["name"] in asked.strict for _, tool in tools)
    if not tools or (forced is None and asked.constraint is None and not strict):
        return None, ()
    written = call_tags(family, [tool["name"] for _, tool in tools])
    free = forced is None and asked.constraint is None
    if written is None or (free and family.name == HARMONY):
        message = f"calls in this model's notation ({family.name}) cannot be enforced"
        if forced is not None:
            raise Refused("unsupported", f"{forced.field}: {message}", forced.field)
        if asked.constraint is not None:
            field = asked.constraint.field
            raise Refused("unsupported", f"{field} beside tools: {message}", field)
        return None, (f"strict: {message}",)
    # A call whose end ends the answer is the last one.
    ends = any(tag.end in stops for tag in written.tags)
    tags = tuple(
        Tag(
            tag.begin,
            "" if tag.end in stops else tag.end,
            tool.get("parameters") or {},
            f"tools[{i}].function.parameters",
        )
        for (i, tool), tag in zip(tools, written.tags, strict=True)
    )
    named = forced is not None and forced.name is not None
    return (
        Calls(
            tags,
            written.trigger,
            written.style,
            written.first,
            written.between,
            written.last,
            required=forced is not None,
            only_one=asked.one_call or named or ends,
        ),
        (),
    )


def _after(found: Constraint, family: Family, prompt: str) -> str | None:
    """Return what the answer's thoughts end with, if it begins with thoughts."""
    if family.name == HARMONY:
        return HARMONY_NEXT if isinstance(found.wanted, Calls) else HARMONY_FINAL
    if family.thought is not None and family.thinks_after(prompt):
        return family.thought.close
    return None
