"""A request as handlers see it, and how its body becomes one of our types.

Limits are kept here: a body is never read beyond `max_bytes`, and nothing that a client can
put in a body raises anything but Refused.  What real clients get wrong in their JSON, and what
has one meaning only, is mended.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import AsyncIterable, Iterable, Iterator
from types import UnionType
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from mlxbun.domain.refusal import Refused

T = TypeVar("T")

MAX_MENDED_BYTES = 8 << 20
COMPRESSED = frozenset({"gzip", "x-gzip", "deflate", "compress", "br", "zstd"})


class HeaderMap(Protocol):
    """Header values by lower-case name; the first of several."""

    def get(self, key: str, /) -> str | None: ...


class Head(Struct, frozen=True):
    """What is known before the body.  `path` is percent-decoded and tidy, `query` as it came."""

    method: str
    path: str
    headers: HeaderMap
    id: str  # goes out as x-request-id
    query: str = ""


class Request(Struct, frozen=True):
    head: Head
    body: bytes


def tidy(path: str) -> str:
    """Return `path` without doubled slashes and one at its end.

    Clients join a base URL that ends in one and a path that begins with one.
    """
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def content_length(headers: HeaderMap) -> int | None:
    said = headers.get("content-length")
    return int(said) if said is not None and said.isascii() and said.isdigit() else None


def check_length(headers: HeaderMap, max_bytes: int) -> None:
    """Raise Refused when the client itself says that its body is too long."""
    if (content_length(headers) or 0) > max_bytes:
        raise _too_large(max_bytes)


async def read_body(chunks: AsyncIterable[bytes], headers: HeaderMap, max_bytes: int) -> bytes:
    """Return the whole body.

    Raises Refused above `max_bytes`, for a body that ends early, and for one that is compressed.
    """
    check_length(headers, max_bytes)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    if len(body) < (content_length(headers) or 0):
        message = f"the body ended after {len(body)} of its {content_length(headers)} bytes"
        raise Refused("invalid_value", message)
    coding = (headers.get("content-encoding") or "").strip().lower()
    if coding in COMPRESSED:  # others name a charset there, and mean nothing by it
        raise Refused("unsupported", f"the body is compressed ({coding}); send it as it is")
    return bytes(body)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return the body as the decoder's type.

    Raises Refused: for JSON that is none, for a value of the wrong type (naming its path), for
    nesting beyond the interpreter's depth.  Three things are mended: half of a surrogate pair,
    which clients that cut texts send, becomes U+FFFD; the byte order mark that Windows puts before
    a file is left out; 5.0 is a whole number, as it is in JSON.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        mended = _mend(body, error)
        if mended is None:
            raise _refusal(error, decoder.type) from None
    try:
        return decoder.decode(mended)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(error, decoder.type) from None


def _refusal(error: msgspec.DecodeError | RecursionError, kind: Any) -> Refused:
    if isinstance(error, msgspec.ValidationError):
        return _invalid(error, kind)
    if isinstance(error, RecursionError):
        return Refused("invalid_value", "the body nests too deeply")
    return Refused("invalid_value", f"the body is not JSON: {error}")


_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_AT = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$", re.DOTALL)


def _invalid(error: msgspec.ValidationError, kind: Any) -> Refused:
    """Turn `Expected x, got y - at $.a[0].b`, of a `kind`, into a sentence and the field's name."""
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
    if what.startswith("Invalid enum value") and (choices := _choices(kind, path)):
        message = f"{path} must be one of {', '.join(map(repr, choices))}"
        return Refused("invalid_value", message, path)
    return Refused("invalid_value", f"{path}: {what[:1].lower()}{what[1:]}", path)


def _choices(kind: Any, path: str) -> list[Any]:
    """Return what may stand at `path` of a struct `kind`, where that is named one by one."""
    kinds: list[Any] = [kind]
    for name in path.split("."):
        structs = [k for k in _alternatives(kinds) if isinstance(k, type) and issubclass(k, Struct)]
        fields = [field for k in structs for field in msgspec.structs.fields(k)]
        kinds = [field.type for field in fields if field.encode_name == name]
    literals = [k for k in _alternatives(kinds) if get_origin(k) is Literal]
    return [choice for literal in literals for choice in get_args(literal)]


def _alternatives(kinds: Iterable[Any]) -> Iterator[Any]:
    for kind in kinds:
        if get_origin(kind) in (Union, UnionType):
            yield from _alternatives(get_args(kind))
        else:
            yield kind


_SLASHES = re.compile("//+")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_EXACT = 1 << 53  # up to here each float that is whole is one integer


def _mend(body: bytes, error: Exception) -> bytes | None:
    """Return `body` without what can be mended, None when that is not what ails it."""
    marked = body.startswith(codecs.BOM_UTF8)
    floats = isinstance(error, msgspec.ValidationError) and "got `float`" in str(error)
    if len(body) > MAX_MENDED_BYTES or not (marked or floats or _SURROGATE.search(body)):
        return None
    try:
        read = json.loads(body.decode("utf-8-sig"), parse_float=_number if floats else None)
        text = json.dumps(read, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _number(spelled: str) -> float | int:
    number = float(spelled)
    return int(number) if number.is_integer() and abs(number) <= _MAX_EXACT else number


def _too_large(max_bytes: int) -> Refused:
    return Refused("body_too_large", f"the body is longer than {max_bytes} bytes")
