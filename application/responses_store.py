"""Responses and conversations of the Responses protocol that a request may name, in memory.

One owner: the event loop.  What is kept and what leaves is `kept_responses`' to say; here are
the bytes.  A response is kept with every item that led to it, so one that leaves takes nothing
from those that continued it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mlxbun.application.event_log import EventLog
from mlxbun.domain.kept_responses import (
    Command,
    Delete,
    Event,
    Keep,
    KeptResponses,
    ResponseId,
    ResponseKept,
    ResponseLeft,
    Use,
    decide,
    evolve,
)
from mlxbun.domain.refusal import Refused

MAX_BYTES = 32 << 20
TTL_SECONDS = 3600.0


class StoredResponse(Struct, frozen=True, tag="response"):
    """One answer.  `items` are what it was made from, earlier turns included, all with ids."""

    response: Mapping[str, Any]
    items: list[dict[str, Any]]
    instructions: str | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The items that a request which continues this one begins with."""
        return [*self.items, *self.response["output"]]


class Conversation(Struct, frozen=True, tag="conversation"):
    """Items, all with ids, that requests begin with and are added to."""

    id: str
    created_at: int  # in seconds since 1970
    metadata: dict[str, str]
    items: list[dict[str, Any]]

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.items

    def with_items(self, items: Sequence[dict[str, Any]]) -> Conversation:
        """Return it with `items` at its end, but for those that are there already."""
        known = {item["id"] for item in self.items}
        return replace(self, items=[*self.items, *(i for i in items if i["id"] not in known)])


class StoreReport(Struct, frozen=True):
    """What `/stats` says of the store."""

    entries: int
    bytes: int
    max_bytes: int
    ttl_ms: int


class _Kept(Struct, frozen=True):
    encoded: bytes
    item_ids: tuple[str, ...]
    log: EventLog | None


_DECODER = msgspec.json.Decoder(StoredResponse | Conversation)


class ResponsesStore:
    """Keeps `max_bytes` for `ttl_seconds` after it last changed; `now` is of any origin."""

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        ttl_seconds: float = TTL_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = KeptResponses(max_bytes, ttl_seconds)
        self._now = now
        self._kept: dict[ResponseId, _Kept] = {}
        self._holders: dict[str, set[ResponseId]] = {}  # of items, by their id

    def keep(self, stored: StoredResponse, log: EventLog | None = None) -> None:
        """Keep a response under its id; one that is larger than the store is not kept.

        A `log`, closed, is what its stream said; it is left out where there is no room for both.
        """
        response_id = ResponseId(stored.response["id"])
        encoded = msgspec.json.encode(stored)
        if log is not None and len(encoded) + log.num_bytes > self._state.max_bytes:
            log = None
        self._put(response_id, encoded, stored.history, log)

    def keep_conversation(self, conversation: Conversation, field: str) -> None:
        """Keep a conversation under its id, as it is now.

        Raises Refused, naming `field`, if it is larger than the store; what is kept then stays.
        """
        encoded = msgspec.json.encode(conversation)
        if len(encoded) > self._state.max_bytes:
            message = f"{field}: a conversation may have {self._state.max_bytes} bytes at most"
            raise Refused("invalid_value", message, field)
        self._put(ResponseId(conversation.id), encoded, conversation.items, None)

    def conversation(self, conversation_id: str, field: str) -> Conversation:
        """Return a conversation.  Raises Refused, naming `field`, for one that is not kept."""
        found = self._use(ResponseId(conversation_id))
        if not isinstance(found, Conversation):
            raise self._missing(conversation_id, "Conversation", field)
        return found

    def find(self, response_id: str) -> StoredResponse:
        """Return a response.  Raises Refused, not_found, for one that is not kept (any more)."""
        stored = self._use(ResponseId(response_id))
        if not isinstance(stored, StoredResponse):
            raise self._missing(response_id)
        return stored

    def log(self, response_id: str) -> EventLog | None:
        """Return what the stream of a response said, None where that is not kept.

        Raises Refused as `find` does.
        """
        self.find(response_id)
        return self._kept[ResponseId(response_id)].log

    def previous(self, response_id: str) -> StoredResponse:
        """Return the response that a request continues.  Raises Refused as clients know it."""
        stored = self._use(ResponseId(response_id))
        if not isinstance(stored, StoredResponse):
            message = (
                f"Previous response with id '{response_id}' not found. {self._rules}, nor "
                "is one kept with store: false. Send the whole conversation as input."
            )
            raise Refused("previous_response_not_found", message, "previous_response_id")
        return stored

    def item(self, item_id: str, field: str) -> dict[str, Any]:
        """Return a kept item.  Raises Refused, naming `field`, where none has this id."""
        holder = next(iter(self._holders.get(item_id, ())), None)
        stored = self._use(holder) if holder is not None else None
        if stored is None:
            message = (
                f"Item with id '{item_id}' not found. Items are not kept when store is false, "
                "and not for ever: send the item itself."
            )
            raise Refused("not_found", message, field)
        return next(item for item in stored.history if item["id"] == item_id)

    def delete(self, response_id: str) -> None:
        """Forget a response.  Raises Refused, not_found, for one that is not kept."""
        self.find(response_id)
        self._settle(Delete(ResponseId(response_id), self._now()))

    def delete_conversation(self, conversation_id: str) -> None:
        """Forget a conversation, as `delete` does; responses that were part of it stay."""
        self.conversation(conversation_id, "id")
        self._settle(Delete(ResponseId(conversation_id), self._now()))

    def report(self) -> StoreReport:
        state = self._state
        return StoreReport(len(state.responses), state.used_bytes, state.max_bytes,
                           int(state.ttl_seconds * 1000))  # fmt: skip

    @property
    def _rules(self) -> str:
        return (
            f"They are kept for {self._state.ttl_seconds / 60:g} minutes, within "
            f"{self._state.max_bytes} bytes of memory, and no restart of the server keeps them"
        )

    def _missing(self, id: str, kind: str = "Response", field: str = "id") -> Refused:
        return Refused("not_found", f"{kind} with id '{id}' not found. {self._rules}.", field)

    def _put(
        self,
        id: ResponseId,
        encoded: bytes,
        history: Sequence[dict[str, Any]],
        log: EventLog | None,
    ) -> None:
        num_bytes = len(encoded) + (log.num_bytes if log is not None else 0)
        events = self._settle(Keep(id, num_bytes, self._now()))
        if any(isinstance(event, ResponseKept) for event in events):
            self._kept[id] = kept = _Kept(encoded, tuple(item["id"] for item in history), log)
            for item_id in kept.item_ids:
                self._holders.setdefault(item_id, set()).add(id)

    def _use(self, response_id: ResponseId) -> StoredResponse | Conversation | None:
        self._settle(Use(response_id, self._now()))
        kept = self._kept.get(response_id)
        return _DECODER.decode(kept.encoded) if kept is not None else None

    def _settle(self, command: Command) -> list[Event]:
        events = decide(self._state, command)
        for event in events:
            self._state = evolve(self._state, event)
            if isinstance(event, ResponseLeft):
                self._forget(event.response_id)
        return events

    def _forget(self, response_id: ResponseId) -> None:
        for item_id in self._kept.pop(response_id).item_ids:
            holders = self._holders.get(item_id, set())
            holders.discard(response_id)
            if not holders:
                self._holders.pop(item_id, None)
