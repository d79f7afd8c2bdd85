"""The keywords unevaluatedProperties and unevaluatedItems, of what no other has looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from mlxbun.domain.constraint.schema_keywords import child
from mlxbun.domain.constraint.shapes import NEVER, Array, Conj, Node, Object, Shape, joined


def evaluated(
    shape: Shape,
    schema: Mapping[str, Any],
    node: Node,
    not_enforced: Callable[[str, str], None],
) -> Shape:
    """Return `shape` with what no keyword beside unevaluated* has looked at as that says.

    `not_enforced` hears where that cannot be said.
    """
    match shape:
        case Object() if "unevaluatedProperties" in schema and not shape.says_others:
            rest = (child(node, "unevaluatedProperties"),)
            looked = {n: conj for n, conj in shape.members.items() if _is_looked_at(conj)}
            members = {
                name: conj if name in looked else joined(conj, rest)
                for name, conj in shape.members.items()
            }
            others = None if rest[0].schema is False else rest
            return replace(shape, members=members, others=others, says_others=True)
        case Array() if "unevaluatedItems" in schema and shape.items == ():
            rest = (child(node, "unevaluatedItems"),)
            alone = len(shape.contains) == 1 and not shape.prefix
            if alone and rest[0].schema is False:
                return replace(shape, items=shape.contains[0].value)
            if shape.contains:
                pointer = f"{node.pointer}/unevaluatedItems"
                not_enforced(pointer, "beside contains this cannot be enforced")
                return shape
            return replace(shape, items=None if rest[0].schema is False else rest)
        case _:
            return shape


def _is_looked_at(conj: Conj) -> bool:
    """Return whether a keyword that holds has looked at a member: what must not hold has not."""
    return any(not node.negated and node != NEVER[0] for node in conj)
