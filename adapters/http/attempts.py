"""Attempts: what says that a request may be sent again, and is to be answered once."""

from __future__ import annotations

import hashlib

from mlxbun.adapters.http.request import Request
from mlxbun.application.idempotency import HEADER, Attempt, check_key


def attempt_of(request: Request) -> Attempt | None:
    """Return a request's key, and a hash of where it was sent and of its bytes; None without one.

    Raises Refused for a key that is none.
    """
    key = check_key(request.head.headers.get(HEADER.lower()))
    if key is None:
        return None
    sent = hashlib.sha256(request.head.path.rstrip("/").encode() + b"\0" + request.body)
    return Attempt(key, sent.digest())
