"""Kept responses: which answers (and conversations) may still be named, which leave for others.

Pure: no clock, no bytes, only their sizes.  What was not used for longest leaves first; what is
older than the time to live is gone, used or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NewType, assert_never

from msgspec import Struct, field

ResponseId = NewType("ResponseId", str)


class Keep(Struct, frozen=True):
    """Keep a response of `num_bytes`, whatever must leave for it; a kept one is replaced."""

    response_id: ResponseId
    num_bytes: int
    now_seconds: float


class Use(Struct, frozen=True):
    """A client named a response."""

    response_id: ResponseId
    now_seconds: float


class Delete(Struct, frozen=True):
    """A client wants a response gone."""

    response_id: ResponseId
    now_seconds: float


Command = Keep | Use | Delete


class ResponseKept(Struct, frozen=True, gc=False, tag="response_kept"):
    response_id: ResponseId
    num_bytes: int
    at_seconds: float


class ResponseUsed(Struct, frozen=True, gc=False, tag="response_used"):
    response_id: ResponseId


class ResponseLeft(Struct, frozen=True, gc=False, tag="response_left"):
    response_id: ResponseId
    why: Literal["deleted", "replaced", "expired", "evicted"]


class ResponseTooLarge(Struct, frozen=True, gc=False, tag="response_too_large"):
    """It alone is larger than all the room there is: it was not kept."""

    response_id: ResponseId
    num_bytes: int


Event = ResponseKept | ResponseUsed | ResponseLeft | ResponseTooLarge


class Kept(Struct, frozen=True, gc=False):
    num_bytes: int
    at_seconds: float


class KeptResponses(Struct):
    """What is kept, least recently used first.  Only `evolve` writes it."""

    max_bytes: int
    ttl_seconds: float
    used_bytes: int = 0
    responses: dict[ResponseId, Kept] = field(default_factory=dict[ResponseId, Kept])


def decide(state: KeptResponses, command: Command) -> list[Event]:
    """Return the events that make `command` so; whatever expired by its time leaves, too."""
    left: list[Event] = [
        ResponseLeft(response_id, "expired")
        for response_id, kept in state.responses.items()
        if command.now_seconds - kept.at_seconds >= state.ttl_seconds
    ]
    gone = {event.response_id for event in left}
    here = command.response_id in state.responses and command.response_id not in gone
    match command:
        case Keep(response_id=response_id, num_bytes=num_bytes, now_seconds=now):
            if here:
                left.append(ResponseLeft(response_id, "replaced"))
                gone.add(response_id)
            if num_bytes > state.max_bytes:
                return [*left, ResponseTooLarge(response_id, num_bytes)]
            used = state.used_bytes - sum(state.responses[i].num_bytes for i in gone)
            for old, kept in state.responses.items():
                if used + num_bytes <= state.max_bytes:
                    break
                if old not in gone:
                    left.append(ResponseLeft(old, "evicted"))
                    used -= kept.num_bytes
            return [*left, ResponseKept(response_id, num_bytes, now)]
        case Use(response_id=response_id):
            return [*left, ResponseUsed(response_id)] if here else left
        case Delete(response_id=response_id):
            return [*left, ResponseLeft(response_id, "deleted")] if here else left
        case _:
            assert_never(command)


def evolve(state: KeptResponses, event: Event) -> KeptResponses:
    """Take ownership of `state`, apply `event`, hand it back.  Never fails, never decides."""
    match event:
        case ResponseKept(response_id=response_id, num_bytes=num_bytes, at_seconds=at):
            state.responses[response_id] = Kept(num_bytes, at)
            state.used_bytes += num_bytes
        case ResponseUsed(response_id=response_id):
            state.responses[response_id] = state.responses.pop(response_id)
        case ResponseLeft(response_id=response_id):
            state.used_bytes -= state.responses.pop(response_id).num_bytes
        case ResponseTooLarge():
            pass
        case _:
            assert_never(event)
    return state


def fold(state: KeptResponses, events: Iterable[Event]) -> KeptResponses:
    for event in events:
        state = evolve(state, event)
    return state
