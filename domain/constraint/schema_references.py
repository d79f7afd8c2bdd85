"""References within a schema document."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from mlxbun.domain.constraint.json_values import list_of, object_of
from mlxbun.domain.constraint.schema_keywords import escaped
from mlxbun.domain.constraint.shapes import Node

_ABSENT = object()


def target_of(document: Any, reference: str) -> Node | None:
    """Return what `reference`, a fragment that begins with #, means; None if there is nothing."""
    path = unquote(reference[1:])
    if path and not path.startswith("/"):
        return _anchored(document, "", path)
    return _at(document, path)


def local(document: Any, reference: str) -> str | None:
    """Return the fragment of `reference`; None where it leads out of `document`."""
    base = str((object_of(document) or {}).get("$id", ""))
    if base and reference.startswith(base):
        reference = reference[len(base) :] or "#"
    return reference if reference.startswith("#") else None


def has_documents(document: Any) -> bool:
    """Return whether there are documents within `document`: schemas with an $id of their own."""
    return any(
        isinstance((object_of(part) or {}).get("$id"), str) or has_documents(part)
        for part in _members(document).values()
    )


def _at(document: Any, path: str) -> Node | None:
    """Return what a JSON pointer means.  Source: RFC 6901."""
    place, at = document, ""
    for step in path.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        place = _members(place).get(key, _ABSENT)
        if place is _ABSENT:
            return None
        at = f"{at}/{step}"
    return Node(place, at)


def _anchored(place: Any, at: str, name: str) -> Node | None:
    if (object_of(place) or {}).get("$anchor") == name or (
        (object_of(place) or {}).get("$dynamicAnchor") == name
        or (object_of(place) or {}).get("$id") == f"#{name}"
    ):
        return Node(place, at)
    for key, part in _members(place).items():
        found = _anchored(part, f"{at}/{escaped(key)}", name)
        if found is not None:
            return found
    return None


def _members(place: Any) -> dict[str, Any]:
    items = list_of(place)
    if items is not None:
        return {str(i): item for i, item in enumerate(items)}
    return object_of(place) or {}
