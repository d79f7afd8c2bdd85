"""Server-sent events: bytes that are ready to send.

A token's record is a prebuilt head, its text, a prebuilt tail: what all records of a stream
share is encoded once.
"""

from __future__ import annotations

from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
# A comment: named events or extra records would break clients that parse every record.
KEEP_ALIVE = b": keep-alive\n\n"

encode = msgspec.json.Encoder().encode


def keep_alive() -> bytes:
    return KEEP_ALIVE


def record(value: Any, event: str = "") -> bytes:
    """Return a record with `value` as its data, of the type `event` if it is named."""
    named = f"event: {event}\n".encode() if event else b""
    return named + b"data: " + encode(value) + b"\n\n"


class Template:
    """A record with one hole.  The value that is built with HOLE in it marks the place."""

    HOLE = "\u0000hole\u0000"

    def __init__(self, value: Any, event: str = "") -> None:
        head, found, tail = record(value, event).partition(encode(self.HOLE))
        assert found, "the value has no hole"
        self._head, self._tail = head, tail

    def fill(self, value: Any) -> bytes:
        return self._head + encode(value) + self._tail
