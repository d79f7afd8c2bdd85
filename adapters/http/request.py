"""A request as handlers see it, and how its body becomes one of our types.

Limits are kept here: a body is never read beyond `max_bytes`, and nothing that a client can
put in a body raises anything but Refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from mlxbun.domain.refusal import Refused

T = TypeVar("T")

MAX_MENDED_BYTES = 8 << 20


class HeaderMap(Protocol):
    """Header values by lower-case name; the first of several."""

    def get(self, key: str, /) -> str | None: ...


class Head(Struct, frozen=True):
    """What is known before the body.  `path` is percent-decoded, `query` as it came."""

    method: str
    path: str
    headers: HeaderMap
    id: str  # goes out as x-request-id
    query: str = ""


class Request(Struct, frozen=True):
    head: Head
    body: bytes


class ClientGone(Exception):
    """The client left before its body was whole; there is nobody to answer."""


def content_length(headers: HeaderMap) -> int | None:
    said = headers.get("content-length")
    return int(said) if said is not None and said.isascii() and said.isdigit() else None


def check_length(headers: HeaderMap, max_bytes: int) -> None:
    """Raise Refused when the client itself says that its body is too long."""
    if (content_length(headers) or 0) > max_bytes:
        raise _too_large(max_bytes)


async def read_body(chunks: AsyncIterable[bytes], headers: HeaderMap, max_bytes: int) -> bytes:
    """Return the whole body.  Raises Refused above `max_bytes`, ClientGone when it ends early."""
    check_length(headers, max_bytes)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    if len(body) < (content_length(headers) or 0):
        raise ClientGone
    return bytes(body)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type.

    Raises Refused: for JSON that is none, for a value of the wrong type (naming its path), for
    nesting beyond the interpreter's depth.  Half of a surrogate pair, which clients that cut
    texts send, becomes U+FFFD.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None
    except RecursionError:
        raise Refused("invalid_value", "the body nests too deeply") from None
    except msgspec.DecodeError as error:
        mended = _mend(body)
        if mended != body:
            return decode(decoder, mended)
        raise Refused("invalid_value", f"the body is not JSON: {error}") from None


_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_AT = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$", re.DOTALL)


def _invalid(error: msgspec.ValidationError) -> Refused:
    """Turn `Expected x, got y - at $.a[0].b` into a sentence and the field's name."""
    message = str(error)
    at = _AT.search(message)
    what = message[: at.start()] if at else message
    path = at[1].replace("[...]", "") if at else ""
    missing = _MISSING.fullmatch(what)
    if missing is not None:
        field = f"{path}.{missing[1]}" if path else missing[1]
        return Refused("invalid_value", f"{field} is missing", field)
    if not path:
        return Refused("invalid_value", f"the body is not what this path takes: {message}")
    return Refused("invalid_value", f"{path}: {what[:1].lower()}{what[1:]}", path)


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def _mend(body: bytes) -> bytes:
    """Return `body` with lone surrogates replaced, or as it is when that is not what ails it."""
    if len(body) > MAX_MENDED_BYTES or _SURROGATE.search(body) is None:
        return body
    try:
        text = json.dumps(json.loads(body.decode()), ensure_ascii=False)
    except (ValueError, RecursionError):
        return body
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _too_large(max_bytes: int) -> Refused:
    return Refused("body_too_large", f"the body is longer than {max_bytes} bytes")
