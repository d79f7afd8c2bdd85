from __future__ import annotations

import json

import pytest

from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.request import Head, Request
from mlxbun.adapters.http.routing import Router


async def listing(request: Request) -> Answer:
    return Answer(200)


async def below(request: Request) -> Answer:
    return Answer(200)


async def shaped(request: Request) -> Answer:
    return Answer(200)


ROUTER = Router(
    {
        "/": {"GET": listing},
        "/v1/x": {"GET": listing},
        "/v1/x/*": {"GET": below},
        "/v1/y/named": {"GET": listing},
        "/v1/y/{id}": {"GET": shaped},
        "/v1/y/{id}/z": {"GET": shaped},
    }
)


def find(method: str, path: str) -> object:
    headers: dict[str, str] = {}
    return ROUTER.find(Head(method, path, headers, "req"))


@pytest.mark.parametrize(
    ("path", "handler"),
    [
        ("/", listing),
        ("/v1/x", listing),
        ("/v1/x/", listing),
        ("/v1/x/a/b", below),
        ("/v1/y/named", listing),
        ("/v1/y/a", shaped),
        ("/v1/y/a/", shaped),
        ("/v1/y/a/z", shaped),
    ],
)
def test_a_path_has_one_handler(path: str, handler: object) -> None:
    assert find("GET", path) is handler
    assert find("HEAD", path) is handler


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v1/xy", "/v1/y", "/v1/y/a/b", "/v1/y//z", "/v1/y/a/z/z", "/favicon.ico", "", "//"],
)
def test_elsewhere_is_nothing(path: str) -> None:
    found = find("GET", path)
    if path in ("", "//"):  # the root, spelled by hand
        assert found is listing
        return
    assert isinstance(found, Answer)
    assert found.status == 404
    assert json.loads(found.body)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("path", "near"),
    [("/x", "/v1/x"), ("/x/a/b", "/v1/x/a/b"), ("/v1/v1/y/named", "/v1/y/named"), ("/v1/z", None)],
)
def test_a_base_url_without_v1_or_with_two_is_told_the_right_path(
    path: str, near: str | None
) -> None:
    found = find("GET", path)
    assert isinstance(found, Answer)
    message = json.loads(found.body)["error"]["message"]
    assert (f"there is something at {near}" in message) == (near is not None)
    assert found.status == 404


def test_another_method_is_told_which_there_are() -> None:
    found = find("DELETE", "/v1/x")
    assert isinstance(found, Answer)
    assert found.status == 405
    assert ("allow", "GET, HEAD, OPTIONS") in found.headers
