from __future__ import annotations

import pytest

from mlxbun.adapters.http.access import Access
from mlxbun.domain.refusal import Refused


def opens(access: Access, headers: dict[str, str]) -> bool:
    try:
        access.check_key(headers)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer sésame"}, {"authorization": "bearer sésame"},
     {"x-api-key": "sésame"}, {"authorization": "Bearer other", "x-api-key": "sésame"}],
)  # fmt: skip
def test_the_key_opens_as_bearer_and_as_x_api_key(headers: dict[str, str]) -> None:
    assert opens(Access(api_key="sésame"), headers)


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer "}, {"authorization": "Basic sésame"}, {"x-api-key": "sesame"},
     {"x-api-key": ""}],
)  # fmt: skip
def test_another_key_or_none_is_unauthorized(headers: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        Access(api_key="sésame").check_key(headers)
    assert caught.value.code == "unauthorized"
    assert "sésame" not in caught.value.message


def test_a_wrong_key_is_told_from_none() -> None:
    access = Access(api_key="sésame")
    with pytest.raises(Refused, match="none came"):
        access.check_key({})
    with pytest.raises(Refused, match="is another"):
        access.check_key({"x-api-key": "sesame"})


def test_without_a_key_everybody_may_ask() -> None:
    assert opens(Access(), {"authorization": "Bearer whatever"})


PAGE = {"origin": "http://localhost:3000"}


def test_pages_may_read_nothing_unless_told() -> None:
    assert Access().cors(PAGE) == ()
    assert Access().preflight(PAGE, "POST") == ()


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (("*",), "*"),
        (("http://localhost:3000", "http://other"), "http://localhost:3000"),
        (("http://other",), None),
        (("http://localhost",), None),
    ],
)
def test_an_allowed_page_may_read(allowed: tuple[str, ...], expected: str | None) -> None:
    headers = dict(Access(allow_origins=allowed).cors(PAGE))
    assert headers.get("access-control-allow-origin") == expected


def test_a_preflight_echoes_the_headers_it_asks_for() -> None:
    asked = "authorization,content-type,x-stainless-os"
    headers = dict(
        Access(allow_origins=("*",)).preflight(
            PAGE | {"access-control-request-headers": asked}, "POST, OPTIONS"
        )
    )
    assert headers["access-control-allow-headers"] == asked
    assert headers["access-control-allow-methods"] == "POST, OPTIONS"
