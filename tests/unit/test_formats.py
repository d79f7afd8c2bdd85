"""Formats as patterns, with the standard library as the judge."""

from __future__ import annotations

import datetime
import ipaddress
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.constraint.automaton import matches
from mlxbun.domain.constraint.formats import pattern_of


def has(name: str, text: str, most: int | None = None) -> bool:
    pattern = pattern_of(name, most)
    assert pattern is not None
    return matches(pattern, text)


@given(st.one_of(st.text("1aF:", max_size=20), st.ip_addresses(v=6).map(str)))
def test_an_address_of_ipv6_is_what_the_library_reads(text: str) -> None:
    try:
        valid = bool(ipaddress.IPv6Address(text))
    except ValueError:
        valid = False
    if "." not in text:
        assert has("ipv6", text) == valid


@given(st.integers(1, 9999), st.integers(1, 12), st.integers(1, 31))
def test_a_date_is_a_day_that_there_is(year: int, month: int, day: int) -> None:
    try:
        valid = bool(datetime.date(year, month, day))
    except ValueError:
        valid = False
    assert has("date", f"{year:04}-{month:02}-{day:02}") == valid


@given(st.uuids(version=4))
def test_an_identifier_may_have_large_letters(value: uuid.UUID) -> None:
    for name in ("uuid", "uuid4"):
        assert has(name, str(value)) and has(name, str(value).upper())
    assert not has("uuid7", str(value))


@pytest.mark.parametrize("text", ["P1DT2H3M4S", "PT1.5S", "P3Y6M", "P2W", "PT5M", "P0D"])
def test_durations(text: str) -> None:
    assert has("duration", text)


@pytest.mark.parametrize("text", ["P", "PT", "P1", "P1DT", "P1Y2D", "1D", "P1W2D"])
def test_what_is_no_duration(text: str) -> None:
    assert not has("duration", text)


@pytest.mark.parametrize("most", [None, 2083])
def test_addresses_of_the_web(most: int | None) -> None:
    for text in ("https://example.com/a?b=c&d=e", "http://localhost:3000/", "ftp://a.b/c"):
        assert has("uri", text, most)
    assert not has("uri", "example.com", most) and not has("uri", "http://", most)
    assert most is None or not has("uri", "https://a.b/" + "x" * most, most)
