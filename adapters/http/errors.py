"""Refusals and failures in OpenAI's envelope: one table from code to status and type.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

    invalid_value, unsupported, context_length_exceeded    400 invalid_request_error
    unauthorized                                           401 authentication_error
    model_not_found, not_found                             404 not_found_error
    method_not_allowed                                     405 invalid_request_error
    timeout                                                408 timeout_error
    body_too_large                                         413 request_too_large
    queue_full                                             429 rate_limit_error      retry-after
    engine_failed, internal                                500 server_error
    unavailable, draining                                  503 overloaded_error      retry-after

Clients retry 408, 409, 429 and 5xx, so what a retry cannot mend is none of these.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from mlxbun.adapters.http.answers import Answer, Headers, json_answer
from mlxbun.domain.refusal import Refused


class ErrorBody(Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct, frozen=True):
    error: ErrorBody


class Rule(Struct, frozen=True):
    """How a code leaves the server.  `retry_after_seconds` 0 sends no header."""

    status: int
    type: str
    retry_after_seconds: int = 0


_REQUEST = "invalid_request_error"

RULES: dict[str, Rule] = {
    "invalid_value": Rule(400, _REQUEST),
    "unsupported": Rule(400, _REQUEST),
    "context_length_exceeded": Rule(400, _REQUEST),
    "unauthorized": Rule(401, "authentication_error"),
    "model_not_found": Rule(404, "not_found_error"),
    "not_found": Rule(404, "not_found_error"),
    "method_not_allowed": Rule(405, _REQUEST),
    "timeout": Rule(408, "timeout_error"),
    "body_too_large": Rule(413, "request_too_large"),
    "queue_full": Rule(429, "rate_limit_error", retry_after_seconds=1),
    "engine_failed": Rule(500, "server_error"),
    "internal": Rule(500, "server_error"),
    "unavailable": Rule(503, "overloaded_error", retry_after_seconds=5),
    "draining": Rule(503, "overloaded_error", retry_after_seconds=5),
}


def envelope(code: str, message: str, param: str | None = None) -> ErrorEnvelope:
    return ErrorEnvelope(ErrorBody(message, RULES[code].type, param, code))


def error_answer(
    code: str, message: str, param: str | None = None, headers: Headers = ()
) -> Answer:
    rule = RULES[code]
    if rule.retry_after_seconds:
        headers += (("retry-after", str(rule.retry_after_seconds)),)
    return json_answer(envelope(code, message, param), rule.status, headers)


def refusal_answer(refused: Refused) -> Answer:
    """Return the answer to a request that is not served."""
    headers: Headers = ()
    if refused.code == "unauthorized":
        headers = (("www-authenticate", "Bearer"),)
    elif refused.code == "body_too_large":
        headers = (("connection", "close"),)  # the rest of the body is not read
    return error_answer(refused.code, refused.message, refused.field, headers)


def refusal_record(refused: Refused) -> bytes:
    """Return the last record of a stream that broke after its status was sent."""
    body = envelope(refused.code, refused.message, refused.field)
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
