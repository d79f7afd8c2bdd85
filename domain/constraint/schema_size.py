"""How large a schema may be, so that reading it takes a second at most."""

from __future__ import annotations

from typing import Any

from mlxbun.domain.constraint.json_values import list_of, object_of
from mlxbun.domain.constraint.schema_keywords import SchemaRefused, escaped

MAX_PARTS = 20_000  # values within a document
MAX_MEMBERS = 1_000  # of an object


def check_size(document: Any) -> None:
    """Raise SchemaRefused where `document` is too large to be read within a second or so."""
    waiting: list[tuple[Any, str]] = [(document, "")]
    count = 0
    while waiting:
        part, pointer = waiting.pop()
        items, members = list_of(part), object_of(part)
        count += 1
        size = len(items) if items is not None else len(members or ())
        if count + len(waiting) + size > MAX_PARTS:
            raise SchemaRefused(pointer, f"the schema has more than {MAX_PARTS} parts")
        if members is not None and len(members) > MAX_MEMBERS:
            raise SchemaRefused(pointer, f"more than {MAX_MEMBERS} members are too many")
        if items is not None:
            waiting += [(item, f"{pointer}/{i}") for i, item in enumerate(items)]
        elif members is not None:
            waiting += [(value, f"{pointer}/{escaped(name)}") for name, value in members.items()]
