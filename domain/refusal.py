"""Why a request is not served, as a value: a code, a sentence, and the field at fault.

Adapters map codes to their protocol's status and envelope, in one table each.
"""

from __future__ import annotations

from typing import Literal

Code = Literal[
    "invalid_value",  # a field is malformed, out of range, or missing
    "unsupported",  # understood, and not offered here: `field` names what
    "context_length_exceeded",  # the prompt leaves no room for one token
    "model_not_found",
    "not_found",
    "previous_response_not_found",
    "unauthorized",
    "body_too_large",
    "queue_full",  # worth a retry
    "unavailable",  # the model is not there yet, or did not load: worth a retry
    "draining",  # the server is stopping: worth a retry elsewhere
    "engine_failed",  # our fault; the request's row or step broke
]


class Refused(ValueError):
    """A request that will not be served.  `field` is the wire name, as in `messages[2].role`."""

    def __init__(self, code: Code, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.field = field

    def __repr__(self) -> str:
        return f"Refused({self.code!r}, {self.message!r}, {self.field!r})"
