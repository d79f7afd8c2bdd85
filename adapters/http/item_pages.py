"""Items of a response or a conversation, listed page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from mlxbun.domain.refusal import Refused

MAX_LISTED, DEFAULT_LISTED = 100, 20


class ItemList(Struct, frozen=True):
    """Some items; the ids are those of the first and the last of them."""

    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
    object: Literal["list"] = "list"


def listed(items: list[dict[str, Any]], *, has_more: bool = False) -> ItemList:
    """Return `items` as a list."""
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return ItemList(items, first, last, has_more)


def page_of(items: list[dict[str, Any]], query: Mapping[str, list[str]]) -> ItemList:
    """Return the page of `items` that `order`, `after` and `limit` ask for."""
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise Refused("invalid_value", "order must be asc or desc", "order")
    said = query.get("limit", [str(DEFAULT_LISTED)])[-1]
    if not said.isdecimal() or not 1 <= int(said) <= MAX_LISTED:
        raise Refused("invalid_value", f"limit must be 1 to {MAX_LISTED}", "limit")
    asked = items if order == "asc" else items[::-1]
    if "after" in query:
        after = query["after"][-1]
        at = next((i for i, item in enumerate(asked) if item["id"] == after), None)
        if at is None:
            raise Refused("invalid_value", f"after: no item has the id {after!r}", "after")
        asked = asked[at + 1 :]
    page = asked[: int(said)]
    return listed(page, has_more=len(page) < len(asked))
