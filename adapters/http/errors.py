"""Refusals and failures in each protocol's envelope: one table from code to status and type.

OpenAI's clients get {"error": {"message", "type", "param", "code"}}, Anthropic's
{"type": "error", "error": {"type", "message"}, "request_id"}:

                                                           OpenAI's type, and Anthropic's
    invalid_value, unsupported, context_length_exceeded    400 invalid_request_error
    unauthorized                                           401 authentication_error
    model_not_found, not_found                             404 not_found_error
    previous_response_not_found                            404 not_found_error
    method_not_allowed                                     405 invalid_request_error
    timeout                                                408 timeout_error
    body_too_large                                         413 request_too_large
    queue_full                                             429 rate_limit_error      retry-after
    engine_failed, internal                                500 server_error, api_error
    unavailable, draining                         503 and 529 overloaded_error      retry-after

Clients retry 408, 409, 429 and 5xx, so what a retry cannot mend is none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mlxbun.adapters.http.answers import Answer, Headers, json_answer
from mlxbun.adapters.http.request import Head
from mlxbun.domain.refusal import Refused


class ErrorBody(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct, frozen=True):
    error: ErrorBody


class MessagesErrorBody(Struct, frozen=True):
    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class MessagesError(Struct, frozen=True, kw_only=True):
    type: Literal["error"] = "error"
    error: MessagesErrorBody
    request_id: str


class Rule(Struct, frozen=True):
    """How a code leaves the server.  `retry_after_seconds` 0 sends no header."""

    status: int
    type: str
    retry_after_seconds: int = 0


class Dialect(Struct, frozen=True):
    """How one protocol tells its clients what went wrong.

    `event` stands before the data of the record that ends a broken stream.
    """

    rules: Mapping[str, Rule]
    envelope: Callable[[Refused | Failed, str], Struct]
    event: bytes = b""


class Failed(Struct, frozen=True):
    """What goes wrong before or beside a handler, in the words of a Refused."""

    code: Literal["method_not_allowed", "timeout", "internal"]
    message: str
    field: str | None = None


MAX_SAID = 4096  # characters of a message

_REQUEST = "invalid_request_error"

RULES: dict[str, Rule] = {
    "invalid_value": Rule(400, _REQUEST),
    "unsupported": Rule(400, _REQUEST),
    "context_length_exceeded": Rule(400, _REQUEST),
    "unauthorized": Rule(401, "authentication_error"),
    "model_not_found": Rule(404, "not_found_error"),
    "not_found": Rule(404, "not_found_error"),
    "previous_response_not_found": Rule(404, "not_found_error"),
    "method_not_allowed": Rule(405, _REQUEST),
    "timeout": Rule(408, "timeout_error"),
    "body_too_large": Rule(413, "request_too_large"),
    "queue_full": Rule(429, "rate_limit_error", retry_after_seconds=1),
    "engine_failed": Rule(500, "server_error"),
    "internal": Rule(500, "server_error"),
    "unavailable": Rule(503, "overloaded_error", retry_after_seconds=5),
    "draining": Rule(503, "overloaded_error", retry_after_seconds=5),
}
_MESSAGES_TYPES = {"server_error": "api_error"}
_MESSAGES_STATUSES = {503: 529}
MESSAGES_RULES: dict[str, Rule] = {
    code: replace(
        rule,
        status=_MESSAGES_STATUSES.get(rule.status, rule.status),
        type=_MESSAGES_TYPES.get(rule.type, rule.type),
    )
    for code, rule in RULES.items()
}
# Anthropic's SDKs begin their tool loops with a thread, and without one when told in these words.
_MESSAGES_DETAILS: dict[tuple[str, str | None], dict[str, Any]] = {
    ("unsupported", "thread"): {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
}


def envelope(fault: Refused | Failed, request_id: str) -> ErrorEnvelope:
    field = None if fault.field is None else _clipped(fault.field)
    body = ErrorBody(_clipped(fault.message), RULES[fault.code].type, field, fault.code)
    return ErrorEnvelope(body)


def messages_error(fault: Refused | Failed, request_id: str) -> MessagesError:
    details = _MESSAGES_DETAILS.get((fault.code, fault.field), UNSET)
    said = MessagesErrorBody(MESSAGES_RULES[fault.code].type, _clipped(fault.message), details)
    return MessagesError(error=said, request_id=request_id)


def _clipped(said: str) -> str:
    """Return `said` without the middle of a very long one, which quotes what a client sent."""
    half = MAX_SAID // 2
    return said if len(said) <= MAX_SAID else f"{said[:half]} ... {said[-half:]}"


OPENAI = Dialect(RULES, envelope)
ANTHROPIC = Dialect(MESSAGES_RULES, messages_error, b"event: error\n")


def dialect(head: Head) -> Dialect:
    """Return the protocol that the client behind `head` speaks."""
    path = head.path
    if path.startswith("/v1/messages") or head.headers.get("anthropic-version") is not None:
        return ANTHROPIC
    return OPENAI


def error_answer(head: Head, fault: Refused | Failed, headers: Headers = ()) -> Answer:
    """Return the answer to a request that is not served."""
    spoken = dialect(head)
    rule = spoken.rules[fault.code]
    if rule.retry_after_seconds:
        headers += (("retry-after", str(rule.retry_after_seconds)),)
    if fault.code == "unauthorized":
        headers += (("www-authenticate", "Bearer"),)
    elif fault.code in ("body_too_large", "timeout"):
        headers += (("connection", "close"),)  # the rest of the body is not read
    return json_answer(spoken.envelope(fault, head.id), rule.status, headers)


def error_record(head: Head, fault: Refused | Failed) -> bytes:
    """Return the last record of a stream that broke after its status was sent."""
    spoken = dialect(head)
    body = msgspec.json.encode(spoken.envelope(fault, head.id))
    return spoken.event + b"data: " + body + b"\n\n"
