"""The front: from a request's head to its answer, whatever carries the bytes.

The order is: preflight, API key, route, drain, body, handler.  Nothing raises past here but
cancellation: what goes wrong is an answer, or the last record of a stream.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from msgspec import Struct

from mlxbun.adapters.http.access import Access
from mlxbun.adapters.http.answers import EVENTS, Answer, EventStream, Headers
from mlxbun.adapters.http.errors import Failed, error_answer, error_record
from mlxbun.adapters.http.request import Head, HeaderMap, Request
from mlxbun.adapters.http.routing import Handler, Router
from mlxbun.domain.refusal import Refused

log = logging.getLogger("mlxbun.http")

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)

DRAINING = Refused("draining", "the server is shutting down; no new requests are taken")


class Opened(Struct, frozen=True):
    """A stream that was admitted: its first record is there, its status may go out."""

    first: bytes
    rest: AsyncGenerator[bytes, None]
    headers: Headers
    heartbeat: Callable[[], bytes]
    broken: Callable[[Refused], bytes]


def request_id(headers: HeaderMap) -> str:
    """Return the client's own id if it is one, else a new one."""
    said = headers.get("x-request-id") or ""
    return said if _REQUEST_ID.fullmatch(said) else f"req_{secrets.token_hex(12)}"


class Front:
    def __init__(self, router: Router, access: Access) -> None:
        self._router = router
        self._access = access
        self.draining = False

    def open(self, head: Head) -> Handler | Answer:
        """Return who handles the request, or the answer that needs no body."""
        if head.method == "OPTIONS":
            return self._preflight(head)
        if head.path not in ("/", "/health"):
            try:
                self._access.check_key(head.headers)
            except Refused as refused:
                return error_answer(head, refused)
        found = self._router.find(head)
        if self.draining and head.method == "POST":
            return error_answer(head, DRAINING)
        return found

    async def respond(self, handler: Handler, request: Request) -> Answer | Opened:
        """Run the handler until its status is known."""
        head = request.head
        try:
            answer = await handler(request)
            if not isinstance(answer, EventStream):
                return answer
            first = await anext(answer.records)
            broken = answer.broken or partial(error_record, head)
            headers = EVENTS + answer.headers
            return Opened(first, answer.records, headers, answer.heartbeat, broken)
        except Refused as refused:
            return error_answer(head, refused)
        except Exception as error:  # the request's edge: the others go on
            return error_answer(head, Failed("internal", self._unexpected(head, error)))

    async def records(self, head: Head, opened: Opened) -> AsyncGenerator[bytes, None]:
        """Yield the records of a stream to its end, be it an error's record."""
        yield opened.first
        async with aclosing(opened.rest):
            try:
                async for record in opened.rest:
                    yield record
            except Refused as refused:
                yield opened.broken(refused)
            except Exception as error:  # as above; the status is out
                message = self._unexpected(head, error)
                yield opened.broken(Refused("engine_failed", message))

    def dress(self, head: Head, headers: Headers) -> list[tuple[str, str]]:
        """Return `headers` with what every answer carries: the request's id, and CORS."""
        ids = (("x-request-id", head.id), ("request-id", head.id))
        return [*headers, *ids, *self._access.cors(head.headers)]

    def _preflight(self, head: Head) -> Answer:
        methods = self._router.allowed(head.path)
        if methods is None:
            return error_answer(head, self._router.nothing_at(head.path))
        return Answer(
            204, headers=(("allow", methods), *self._access.preflight(head.headers, methods))
        )

    def _unexpected(self, head: Head, error: Exception) -> str:
        log.error("%s %s broke (request %s)", head.method, head.path, head.id, exc_info=error)
        return f"something broke in the server; its log has more under request {head.id}"
