"""Reads HTTP/1.1 responses and server-sent events out of bytes, however they were split.

Sans-io: bytes in, bytes and records out.  As small as a load client needs, so that it costs
the machine it measures little: no trailers' contents, no 1xx, no lone CR as a line's end.
"""

from __future__ import annotations

MAX_HEAD_BYTES = 65536


class BadResponse(ValueError):
    """The bytes are not an HTTP/1.1 response, or end before it does."""


class ResponseReader:
    """One response: feed it what arrives, get the body's bytes, free of their framing.

    `status` is 0 until the head is complete; `done` says that the body is.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # names in lower case
        self.done = False
        self.keep_alive = False
        self._pending: bytes = b""
        self._chunked = False
        self._missing: int | None = None  # body bytes to come; None: until the connection closes
        self._after_chunk = False
        self._in_trailers = False

    def feed(self, data: bytes) -> bytes:
        """Return the body bytes that `data` completes.  Raises BadResponse."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if not self.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise BadResponse("the head does not end")
                self._pending = data
                return b""
            self._read_head(data[:end])
            data = data[end + 4 :]
        if self._chunked:
            return self._read_chunks(data)
        if self._missing is None:
            return data
        self._missing -= len(data)
        if self._missing < 0:
            raise BadResponse("more bytes than content-length")
        self.done = self._missing == 0
        return data

    def close(self) -> None:
        """Tell that the connection was closed.  Raises BadResponse if that cuts the body."""
        if not self.status or self._chunked or self._missing is not None:
            if not self.done:
                raise BadResponse("the connection was closed before the response ended")
        else:
            self.done = True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadResponse(f"not a status line: {first[:80]!r}")
        self.status = int(rest[:3])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = connection == "keep-alive" or (
            version == "HTTP/1.1" and connection != "close"
        )
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if self._chunked or self.status in (204, 304):
            self._missing = 0
        elif (length := self.headers.get("content-length")) is not None:
            self._missing = int(length)
        self.done = not self._chunked and self._missing == 0

    def _read_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        at = 0
        missing = self._missing or 0
        while at < len(data) and not self.done:
            if missing:
                piece = data[at : at + missing]
                body.append(piece)
                at += len(piece)
                missing -= len(piece)
                self._after_chunk = not missing
                continue
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            line = data[at:end]
            at = end + 2
            if self._after_chunk:
                if line:
                    raise BadResponse("a chunk is longer than it said")
                self._after_chunk = False
            elif self._in_trailers:
                self.done = not line
            else:
                missing = _chunk_size(line)
                self._in_trailers = missing == 0
        self._missing = missing
        self._pending = data[at:]
        if self.done and self._pending:
            raise BadResponse("bytes after the last chunk")
        return body[0] if len(body) == 1 else b"".join(body)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits.isalnum():
        raise BadResponse(f"not a chunk size: {line[:40]!r}")
    try:
        return int(digits, 16)
    except ValueError:
        raise BadResponse(f"not a chunk size: {line[:40]!r}") from None


class SseReader:
    """Splits an event stream into the data of its events; comments and other fields are dropped.

    Source: WHATWG HTML, 9.2.6 (lines end with LF or CRLF here).
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        """Return the data of every event that `body` completes, in order."""
        lines = (self._pending + body).split(b"\n")
        self._pending = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        return events
