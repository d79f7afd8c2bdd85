from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.http.openai_types import ChatRequest
from mlxbun.adapters.http.request import MAX_MENDED_BYTES, decode, read_body, tidy
from mlxbun.domain.refusal import Refused

CHAT = msgspec.json.Decoder(ChatRequest)
ANY = msgspec.json.Decoder(Any)


def refusal(body: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        decode(CHAT, body)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [], "temperature": "hot"}, "temperature"),
        ({"messages": [], "max_tokens": 0}, "max_tokens"),
        ({"messages": [], "n": 65}, "n"),
        ({"messages": [], "logprobs": 1}, "logprobs"),
        ({"messages": [], "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [], "stop": ["a", 1]}, "stop[1]"),
        ({"messages": [], "logit_bias": {"1": "x"}}, "logit_bias"),
        ({"messages": [], "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": [], "reasoning_effort": "vast"}, "reasoning_effort"),
    ],
)
def test_a_wrong_value_is_refused_by_the_path_to_it(fields: Any, param: str) -> None:
    refused = refusal(json.dumps(fields).encode())
    assert (refused.code, refused.field) == ("invalid_value", param)
    assert refused.message.startswith(param)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'"x"', b'{"messages":NaN}', b'{"messages":[]}x',
     b'{"messages":[],"seed":1e999}', b'{"messages":[],"seed":' + b"9" * 5000 + b"}",
     b'{"messages":[{"role":"\xed\xa0\xbd"}]}', b'{"messages":[{"role":"\x00"}]}'],
)  # fmt: skip
def test_what_is_no_request_is_refused(body: bytes) -> None:
    assert refusal(body).code == "invalid_value"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            b'{"messages":[],"reasoning_effort":"vast"}',
            "reasoning_effort must be one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh'",
        ),
        (
            b'{"messages":[],"reasoning":{"effort":"vast"}}',
            "reasoning.effort must be one of 'none', 'minimal', 'low', 'medium', 'high', 'xhigh'",
        ),
    ],
)
def test_a_value_that_is_none_of_a_few_is_told_which_there_are(body: bytes, said: str) -> None:
    assert refusal(body).message == said


def test_nesting_beyond_the_interpreters_depth_is_refused() -> None:
    deep = b'{"messages":[{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    assert "deep" in refusal(deep).message


def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    nulls = dict.fromkeys(ChatRequest.__struct_fields__) | {"messages": [], "brand_new": {"a": [1]}}
    assert decode(CHAT, json.dumps(nulls).encode()) == ChatRequest(messages=[])


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (rb"x \ud83d y", "x \ufffd y"),
        (rb"\ude00", "\ufffd"),
        (rb"\ud83d\ude00 \ud83d", "😀 \ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd😀"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_sign(escaped: bytes, text: str) -> None:
    assert decode(ANY, b'"' + escaped + b'"') == text


def test_a_long_body_is_not_mended() -> None:
    body = rb'"\ud83d' + b"x" * MAX_MENDED_BYTES + b'"'
    with pytest.raises(Refused):
        decode(ANY, body)


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    assert decode(ANY, "\ufeff[1]".encode()) == [1]
    assert decode(ANY, '\ufeff["\\ud83d"]'.encode()) == ["\ufffd"]


@given(st.integers(-(2**53), 2**53), st.sampled_from(["{}.0", "{}.000", "{}e0", "{}.0E+0"]))
def test_a_whole_number_is_one_however_it_is_spelled(number: int, spelling: str) -> None:
    """As in JSON Schema: 1.0 is an integer."""
    body = f'{{"messages":[],"seed":{spelling.format(number)}}}'
    assert decode(CHAT, body.encode()).seed == number


@pytest.mark.parametrize("number", ["5.5", "1e-1", "1e300", "-0.1", "1e16"])
def test_another_number_is_none_where_a_whole_one_belongs(number: str) -> None:
    assert refusal(b'{"messages":[],"seed":%s}' % number.encode()).field == "seed"


def test_numbers_that_may_have_a_fraction_keep_their_spelling() -> None:
    body = b'{"messages":[{"x":5.0}],"seed":5.0,"temperature":1.0}'
    said = decode(CHAT, body)
    assert (said.seed, said.temperature, said.messages) == (5, 1.0, [{"x": 5}])
    kept = decode(CHAT, body.replace(b'"seed":5.0', b'"seed":5'))
    assert isinstance(kept.messages[0]["x"], float)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_that_a_client_can_escape_is_read(text: str) -> None:
    """Oracle: utf-16 with `replace`, which pairs the halves that belong together."""
    expected = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert decode(ANY, json.dumps(text).encode()) == expected


@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused_and_nothing_else(body: bytes) -> None:
    try:
        decode(ANY, body)
    except Refused as refused:
        assert refused.code == "invalid_value"


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in (*parts, b""):
        yield part


def headers(length: int | None) -> dict[str, str]:
    return {} if length is None else {"content-length": str(length)}


@pytest.mark.anyio
@pytest.mark.parametrize("length", [None, 6])
async def test_a_body_is_read_whole(length: int | None) -> None:
    assert await read_body(chunks(b"abc", b"def"), headers(length), 6) == b"abcdef"


@pytest.mark.anyio
@pytest.mark.parametrize(("parts", "length"), [([b"abc", b"def"], None), ([], 6)])
async def test_a_body_is_never_read_beyond_its_limit(
    parts: Iterable[bytes], length: int | None
) -> None:
    with pytest.raises(Refused) as caught:
        await read_body(chunks(*parts), headers(length), 5)
    assert caught.value.code == "body_too_large"


@pytest.mark.anyio
async def test_a_body_that_ends_early_is_refused() -> None:
    with pytest.raises(Refused, match="ended after 3 of its 6 bytes") as caught:
        await read_body(chunks(b"abc"), headers(6), 100)
    assert caught.value.code == "invalid_value"


@pytest.mark.anyio
@pytest.mark.parametrize("coding", ["gzip", "ZSTD ", "br", "deflate"])
async def test_a_compressed_body_is_refused_by_the_name_of_its_coding(coding: str) -> None:
    with pytest.raises(Refused, match=coding.strip().lower()) as caught:
        await read_body(chunks(b"{}"), {"content-encoding": coding}, 100)
    assert caught.value.code == "unsupported"


@pytest.mark.anyio
@pytest.mark.parametrize("coding", ["", "identity", "UTF-8"])
async def test_a_coding_that_changes_nothing_is_read(coding: str) -> None:
    assert await read_body(chunks(b"{}"), {"content-encoding": coding}, 100) == b"{}"


@pytest.mark.parametrize(
    ("path", "tidied"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1///models//", "/v1/models"),
        ("/", "/"),
        ("//", "/"),
        ("", "/"),
    ],
)
def test_slashes_too_many_mean_nothing(path: str, tidied: str) -> None:
    assert tidy(path) == tidied
