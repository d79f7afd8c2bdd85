"""Answers of the Responses protocol that a later request may name, in memory.

One owner: the event loop.  What is kept and what leaves is `kept_responses`' to say; here are
the bytes.  A response is kept with every item that led to it, so one that leaves takes nothing
from those that continued it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

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


class StoredResponse(Struct, frozen=True):
    """One answer.  `items` are what it was made from, earlier turns included, all with ids."""

    response: Mapping[str, Any]
    items: list[dict[str, Any]]
    instructions: str | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        """The items that a request which continues this one begins with."""
        return [*self.items, *self.response["output"]]


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


_DECODER = msgspec.json.Decoder(StoredResponse)


class ResponsesStore:
    """Keeps `max_bytes` of responses for `ttl_seconds`; `now` is in seconds of any origin."""

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
        num_bytes = len(encoded) + (log.num_bytes if log is not None else 0)
        events = self._settle(Keep(response_id, num_bytes, self._now()))
        if any(isinstance(event, ResponseKept) for event in events):
            kept = _Kept(encoded, tuple(item["id"] for item in stored.history), log)
            self._kept[response_id] = kept
            for item_id in kept.item_ids:
                self._holders.setdefault(item_id, set()).add(response_id)

    def find(self, response_id: str) -> StoredResponse:
        """Return a response.  Raises Refused, not_found, for one that is not kept (any more)."""
        stored = self._use(ResponseId(response_id))
        if stored is None:
            raise self._missing(response_id)
        return stored

    def log(self, response_id: str) -> EventLog | None:
        """Return what the stream of a response said, None where that is not kept.

        Raises Refused as `find` does.
        """
        self._settle(Use(ResponseId(response_id), self._now()))
        kept = self._kept.get(ResponseId(response_id))
        if kept is None:
            raise self._missing(response_id)
        return kept.log

    def previous(self, response_id: str) -> StoredResponse:
        """Return the response that a request continues.  Raises Refused as clients know it."""
        stored = self._use(ResponseId(response_id))
        if stored is None:
            message = (
                f"Previous response with id '{response_id}' not found. {self._rules}: send the "
                "whole conversation as input."
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
        events = self._settle(Delete(ResponseId(response_id), self._now()))
        if ResponseLeft(ResponseId(response_id), "deleted") not in events:
            raise self._missing(response_id)

    def report(self) -> StoreReport:
        state = self._state
        return StoreReport(len(state.responses), state.used_bytes, state.max_bytes,
                           int(state.ttl_seconds * 1000))  # fmt: skip

    @property
    def _rules(self) -> str:
        return (
            f"Responses are kept for {self._state.ttl_seconds / 60:g} minutes, within "
            f"{self._state.max_bytes} bytes of memory, unless store is false, and no restart of "
            "the server keeps them"
        )

    def _missing(self, response_id: str) -> Refused:
        message = f"Response with id '{response_id}' not found. {self._rules}."
        return Refused("not_found", message, "id")

    def _use(self, response_id: ResponseId) -> StoredResponse | None:
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
