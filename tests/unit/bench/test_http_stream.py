"""Responses and event streams, cut anywhere."""

from __future__ import annotations

import json

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench.http_stream import BadResponse, ResponseReader, SseReader


def cuts(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """Return ways to cut `data` into pieces."""
    positions = st.lists(st.integers(0, len(data)), max_size=12).map(sorted)
    return positions.map(
        lambda at: [data[i:j] for i, j in zip([0, *at], [*at, len(data)], strict=True)]
    )


def written(body: list[bytes], headers: list[tuple[str, str]]) -> bytes:
    """Return a whole response as h11 writes it."""
    server = h11.Connection(h11.SERVER)
    server.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    server.next_event()
    sent: list[bytes | None] = [server.send(h11.Response(status_code=200, headers=headers))]
    sent += [server.send(h11.Data(data=piece)) for piece in body]
    sent.append(server.send(h11.EndOfMessage()))
    return b"".join(piece for piece in sent if piece)


bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=6)


@given(st.data(), bodies)
def test_a_chunked_body_is_the_same_however_it_was_cut(
    data: st.DataObject, body: list[bytes]
) -> None:
    whole = written(body, [("Transfer-Encoding", "chunked")])
    reader = ResponseReader()
    read = b"".join([reader.feed(piece) for piece in data.draw(cuts(whole))])
    assert (read, reader.done, reader.status) == (b"".join(body), True, 200)
    assert reader.keep_alive


@given(st.data(), bodies)
def test_a_body_of_known_length_is_the_same_however_it_was_cut(
    data: st.DataObject, body: list[bytes]
) -> None:
    length = str(sum(map(len, body)))
    whole = written(body, [("Content-Length", length), ("Connection", "close")])
    reader = ResponseReader()
    read = b"".join([reader.feed(piece) for piece in data.draw(cuts(whole))])
    assert (read, reader.done, reader.keep_alive) == (b"".join(body), True, False)


def test_a_body_without_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    read = reader.feed(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\nab")
    assert (read, reader.done) == (b"ab", False)
    reader.close()
    assert reader.done and not reader.keep_alive


def test_a_response_without_content_is_done_at_its_head() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert reader.done


@pytest.mark.parametrize(
    "cut",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
)
def test_a_response_that_is_cut_off_is_an_error(cut: bytes) -> None:
    reader = ResponseReader()
    reader.feed(cut)
    with pytest.raises(BadResponse):
        reader.close()


@pytest.mark.parametrize(
    "wrong",
    [
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore",
    ],
)
def test_bytes_that_are_no_response_are_an_error(wrong: bytes) -> None:
    with pytest.raises(BadResponse):
        ResponseReader().feed(wrong)


records = st.lists(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3))


@given(st.data(), records, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_events_are_the_same_however_the_stream_was_cut(
    data: st.DataObject, sent: list[dict[str, str]], newline: str, comments: bool
) -> None:
    stream = ""
    for record in sent:
        stream += f": keep-alive{newline}{newline}" if comments else ""
        stream += f"event: x{newline}data: {json.dumps(record)}{newline}{newline}"
    reader = SseReader()
    pieces = data.draw(cuts(stream.encode()))
    assert [json.loads(r) for piece in pieces for r in reader.feed(piece)] == sent


def test_data_of_several_lines_is_joined() -> None:
    assert SseReader().feed(b"data: a\ndata:b\n\ndata: unfinished\n") == [b"a\nb"]
