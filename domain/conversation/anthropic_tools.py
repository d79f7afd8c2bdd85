"""Tools of Anthropic's protocol, as chat templates take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from mlxbun.domain.conversation.anthropic_client_tools import client_tool
from mlxbun.domain.conversation.messages import well_formed_json
from mlxbun.domain.conversation.values import mapping, string
from mlxbun.domain.refusal import Refused


class OfferedTools(Struct, frozen=True):
    """`functions` are what the model is shown, by name; `strict` those whose input must fit.

    `left_out` are the types of those that only Anthropic runs, or that answer in pictures.
    """

    functions: dict[str, dict[str, Any]]
    strict: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    @property
    def shown(self) -> list[dict[str, Any]]:
        return [{"type": "function", "function": said} for said in self.functions.values()]


def offered_tools(tools: Iterable[tuple[object, str]]) -> OfferedTools:
    """Return what pairs of a definition and its field offer.  Of two with one name the last is.

    Raises Refused with the field at fault.
    """
    functions: dict[str, dict[str, Any]] = {}
    strict: set[str] = set()
    left_out: list[str] = []
    for said, field in tools:
        tool = mapping(said, field)
        kind = string(tool, "type", field)
        known = client_tool(kind) if kind not in (None, "custom") else None
        if kind not in (None, "custom") and known is None:
            left_out.append(kind)
            continue
        name = string(tool, "name", field)
        if not name:
            raise Refused("invalid_value", f"{field}.name is missing", f"{field}.name")
        schema = (
            known.schema if known else mapping(tool.get("input_schema"), f"{field}.input_schema")
        )
        function: dict[str, Any] = {"name": name}
        description = known.description if known else string(tool, "description", field)
        if description is not None:
            function["description"] = description
        function["parameters"] = well_formed_json(schema, f"{field}.input_schema")
        functions[name] = function
        if tool.get("strict") is True:
            strict.add(name)
    return OfferedTools(functions, frozenset(strict), tuple(dict.fromkeys(left_out)))
