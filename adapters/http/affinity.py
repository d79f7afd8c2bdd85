"""Sessions: what a client calls the conversation that a request goes on with."""

from __future__ import annotations

from mlxbun.adapters.http.request import HeaderMap

HEADERS = ("x-session-affinity", "session_id")


def session_of(headers: HeaderMap, *said: str | int | None) -> str | None:
    """Return the first name that was said: in fields of the body, then in a header."""
    names = [str(name) for name in said if name is not None]
    return next(filter(None, (*names, *map(headers.get, HEADERS))), None)
