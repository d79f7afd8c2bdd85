"""What can be done with a response by its id: one under way, or one that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.adapters.http.answers import EVENTS, Answer, EventStream, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.adapters.http.responses_background import BackgroundRun, records
from mlxbun.adapters.http.responses_request import Asked
from mlxbun.adapters.http.responses_run import Run
from mlxbun.adapters.http.responses_types import Deleted, ItemList
from mlxbun.application.event_log import EventLog
from mlxbun.application.responses_store import ResponsesStore, StoredResponse
from mlxbun.domain.refusal import Refused

MAX_LISTED, DEFAULT_LISTED = 100, 20

T = TypeVar("T", BackgroundRun, EventLog)


class UnderWay(Struct):
    """A response that is being made; `background` where it does not need its client."""

    run: Run
    asked: Asked
    background: BackgroundRun | None = None


class ResponsesById:
    """Finds responses by their ids.  What is under way and `store` is false is found by nobody."""

    def __init__(self, store: ResponsesStore) -> None:
        self._store = store
        self._under_way: dict[str, UnderWay] = {}

    def begin(self, made: UnderWay) -> None:
        self._under_way[made.run.id] = made

    def end(self, made: UnderWay) -> None:
        """Keep a response that is over, unless its client wants it forgotten."""
        self._under_way.pop(made.run.id, None)
        response = made.run.response
        if response.store and response.status != "in_progress":
            asked = made.asked
            stored = StoredResponse(msgspec.to_builtins(response), asked.items, asked.instructions)
            log = made.background.log if made.background is not None else None
            self._store.keep(stored, log)

    def check_over(self, response_id: str | None, field: str) -> None:
        """Raise Refused, naming `field`, for a response that is still under way."""
        if response_id in self._under_way:
            message = f"Response '{response_id}' is still in progress: it cannot be continued yet."
            raise Refused("invalid_value", message, field)

    async def retrieve(self, request: Request) -> Answer | EventStream:
        """Give a response as it stands; with `stream`, the events of one made in the background."""
        query = parse_qs(request.head.query)
        made = self._stored_under_way(request)
        if query.get("stream", ["false"])[-1].lower() != "true":
            if made is not None:
                return json_answer(made.run.response)
            return json_answer(self._store.find(_id(request)).response)
        after = _number(query, "starting_after")
        if made is not None:
            return _again(made.background).stream(after)
        log = _again(self._store.log(_id(request)))
        if after >= log.last:
            return Answer(200, headers=EVENTS)
        return EventStream(records(log, after))

    async def delete(self, request: Request) -> Answer:
        response_id = _id(request)
        if response_id in self._under_way:
            message = f"Response '{response_id}' is still in progress: cancel it first."
            raise Refused("invalid_value", message, "id")
        self._store.delete(response_id)
        return json_answer(Deleted(response_id))

    async def cancel(self, request: Request) -> Answer:
        """End a response that is under way; one that was cancelled stays so."""
        made = self._under_way.get(_id(request))
        if made is not None:
            made.run.cancel()
            return json_answer(replace(made.run.response, status="cancelled"))
        response = self._store.find(_id(request)).response
        if response["status"] != "cancelled":
            message = f"Response '{_id(request)}' is {response['status']}: it cannot be cancelled."
            raise Refused("invalid_value", message, "id")
        return json_answer(response)

    async def input_items(self, request: Request) -> Answer:
        """List what a response was made from, the latest first unless `order` is asc."""
        made = self._stored_under_way(request)
        items = made.asked.items if made is not None else self._store.find(_id(request)).items
        return json_answer(_page(items, parse_qs(request.head.query)))

    def _stored_under_way(self, request: Request) -> UnderWay | None:
        made = self._under_way.get(_id(request))
        return made if made is not None and made.run.response.store else None


def _id(request: Request) -> str:
    return request.head.path.split("/")[3]  # as the routes have it


def _again(found: T | None) -> T:
    if found is None:
        message = (
            "stream: only the events of a response that was made with background can be read again"
        )
        raise Refused("unsupported", message, "stream")
    return found


def _number(query: Mapping[str, list[str]], name: str) -> int:
    """Return the number of an event, -1 where none is said."""
    said = query.get(name, ["-1"])[-1]
    if said != "-1" and not (said.isascii() and said.isdigit()):
        raise Refused("invalid_value", f"{name} must be the number of an event", name)
    return int(said)


def _page(items: list[dict[str, Any]], query: Mapping[str, list[str]]) -> ItemList:
    """Return the page of `items` that `order`, `after` and `limit` ask for."""
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise Refused("invalid_value", "order must be asc or desc", "order")
    said = query.get("limit", [str(DEFAULT_LISTED)])[-1]
    if not said.isdecimal() or not 1 <= int(said) <= MAX_LISTED:
        raise Refused("invalid_value", f"limit must be 1 to {MAX_LISTED}", "limit")
    listed = items if order == "asc" else items[::-1]
    if "after" in query:
        after = query["after"][-1]
        at = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise Refused("invalid_value", f"after: no input item has the id {after!r}", "after")
        listed = listed[at + 1 :]
    page = listed[: int(said)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return ItemList(page, first, last, has_more=len(page) < len(listed))
