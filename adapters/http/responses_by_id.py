"""What can be done with a response by its id: one under way, or one that is kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.adapters.http.answers import EVENTS, Answer, EventStream, json_answer
from mlxbun.adapters.http.item_pages import page_of
from mlxbun.adapters.http.request import Request
from mlxbun.adapters.http.responses_background import BackgroundRun, records
from mlxbun.adapters.http.responses_request import Asked
from mlxbun.adapters.http.responses_run import Run
from mlxbun.adapters.http.responses_types import Deleted
from mlxbun.application.event_log import EventLog
from mlxbun.application.responses_store import ResponsesStore, StoredResponse
from mlxbun.domain.refusal import Refused

log = logging.getLogger("mlxbun.http")

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
        asked = made.asked
        answered = response.status in ("completed", "incomplete") and response.output
        if asked.conversation is not None and answered:
            self._add(asked.conversation, [*asked.own, *msgspec.to_builtins(response.output)])
        if response.store and response.status != "in_progress":
            stored = StoredResponse(msgspec.to_builtins(response), asked.items, asked.instructions)
            said = made.background.log if made.background is not None else None
            self._store.keep(stored, said)

    def check_over(self, response_id: str | None, field: str) -> None:
        """Raise Refused, naming `field`, for a response that is still under way."""
        if response_id in self._under_way:
            message = f"Response '{response_id}' is still in progress: it cannot be continued yet."
            raise Refused("invalid_value", message, field)

    async def retrieve(self, request: Request) -> Answer | EventStream:
        """Give a response as it stands; with `stream`, the events of one made in the background."""
        query = parse_qs(request.head.query)
        made = self._stored_under_way(request)
        streams = query.get("stream", ["false"])[-1].lower() == "true"
        if not streams or request.head.method == "HEAD":
            if made is not None:
                return json_answer(made.run.response)
            return json_answer(self._store.find(_id(request)).response)
        after = _number(query, "starting_after")
        if made is not None:
            return _again(made.background).stream(after)
        said = _again(self._store.log(_id(request)))
        if after >= said.last:
            return Answer(200, headers=EVENTS)
        return EventStream(records(said, after))

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
        return json_answer(page_of(items, parse_qs(request.head.query)))

    def _add(self, conversation_id: str, items: list[dict[str, Any]]) -> None:
        try:
            conversation = self._store.conversation(conversation_id, "conversation")
            self._store.keep_conversation(conversation.with_items(items), "conversation")
        except Refused as refused:  # it left meanwhile, or is full: its next request is told so
            log.warning("an answer is no part of its conversation: %s", refused.message)

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
