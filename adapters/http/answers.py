"""What a handler gives back: one whole answer, or a stream of server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mlxbun.adapters.http import sse
from mlxbun.domain.refusal import Refused

Headers = tuple[tuple[str, str], ...]

JSON: Headers = (("content-type", "application/json"),)
EVENTS: Headers = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would hold the tokens back
)


_MAX_NAMED = 8


class Answer(Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: Headers = JSON


class EventStream(Struct, frozen=True):
    """Records, each ready to send.

    The first is asked for before the status goes out, so whatever refuses the request must
    raise before it.  Closing the generator ends the work behind it.

    `heartbeat` makes the record for when nothing else was sent for a while, `broken` the last
    one of a stream that a refusal ended; None is the protocol's usual one.
    """

    records: AsyncGenerator[bytes, None]
    headers: Headers = ()
    heartbeat: Callable[[], bytes] = sse.keep_alive
    broken: Callable[[Refused], bytes] | None = None


def warning(*texts: str) -> Headers:
    """Return a Warning header that says `texts`, nothing for none."""
    said = ", ".join(f"199 - {msgspec.json.encode(text).decode()}" for text in texts)
    return (("warning", said),) if said else ()


def named(names: Sequence[str]) -> str:
    """Return clients' words as a header may have them: few, short and in ASCII."""
    said = ", ".join(ascii(name[:40])[1:-1] for name in names[:_MAX_NAMED])
    more = len(names) - _MAX_NAMED
    return f"{said} and {more} more" if more > 0 else said


def json_answer(value: Any, status: int = 200, headers: Headers = ()) -> Answer:
    return Answer(status, msgspec.json.encode(value), JSON + headers)
