"""JSON values: what kind one is, and its canonical spelling."""

from __future__ import annotations

import json
from typing import Any, cast


def list_of(value: object) -> list[Any] | None:
    """Return `value` if it is a list."""
    return value if isinstance(value, list) else None  # pyright: ignore[reportUnknownVariableType]


def object_of(value: object) -> dict[str, Any] | None:
    """Return `value` if it is an object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def number_of(value: object) -> int | float | None:
    """Return `value` if it is a number, which true and false are not."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def well_formed(value: Any) -> Any:
    """Return `value` with U+FFFD for halves of surrogate pairs, which no text has."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    items, members = list_of(value), object_of(value)
    if items is not None:
        return [well_formed(item) for item in items]
    if members is not None:
        return {well_formed(name): well_formed(member) for name, member in members.items()}
    return value


def spelled(value: Any) -> str:
    """Return the JSON of `value` without white space: equal numbers are spelled alike."""
    return json.dumps(_canonical(value), ensure_ascii=False, separators=(",", ":"))


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    items, members = list_of(value), object_of(value)
    if items is not None:
        return [_canonical(item) for item in items]
    if members is not None:
        return {name: _canonical(member) for name, member in members.items()}
    return value
