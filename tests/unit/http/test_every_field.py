"""Every field of every endpoint is what the table in `fields` says of it, by what it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from doubles import server
from doubles.carrier import running
from doubles.embedder import ScriptedEmbedder
from doubles.grammar import TextsCompiler
from field_cases import CASES, ENDPOINTS, JSON_TEXT, Case, Desk, Endpoint
from mlxbun.adapters.http import fields
from mlxbun.adapters.http.fields import Field
from mlxbun.application.service import Service

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
BY_STANCE = {
    stance: [(e, f) for e in ENDPOINTS for f in e.fields if f.stance == stance]
    for stance in ("honoured", "partly", "refused", "ignored")
}
SHOWN = [
    (e, f, case)
    for e in ENDPOINTS
    for f in e.fields
    for case in CASES[e.name].get(f.name, ())
]  # fmt: skip
ANYTHING: tuple[Any, ...] = (True, 3, 0.5, "x", "", ["x"], [], {"type": "x"}, {})


def shown(value: Any) -> str:
    if isinstance(value, Endpoint | Field):
        return value.name
    return str(value.value)[:40] if isinstance(value, Case) else ""


def each(stance: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("endpoint", "field"), BY_STANCE[stance], ids=shown)


def made() -> Service:
    """Return a service that does everything."""
    return server.service(grammars=TextsCompiler([JSON_TEXT]), embedder=ScriptedEmbedder())


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with running(made()) as service:
        await service.model()
        yield Desk(service)


def test_every_table_of_fields_is_an_endpoint() -> None:
    tables = [
        value
        for name, value in vars(fields).items()
        if not name.startswith("_") and name != "SAMPLING" and isinstance(value, tuple)
    ]
    assert [endpoint.fields for endpoint in ENDPOINTS if endpoint.fields in tables] == [
        endpoint.fields for endpoint in ENDPOINTS
    ]
    assert len(tables) == len(ENDPOINTS)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=shown)
def test_every_field_that_does_something_has_its_case(endpoint: Endpoint) -> None:
    doing = {f.name for f in endpoint.fields if f.stance in ("honoured", "partly")}
    assert doing == set(CASES[endpoint.name])
    partly = {f.name for f in endpoint.fields if f.stance == "partly"}
    assert all(len(CASES[endpoint.name][name]) > 1 for name in partly), "and what is missing, too"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=shown)
def test_every_field_is_in_the_documentation(endpoint: Endpoint) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    _, _, rest = page.partition(f"<!-- made: {endpoint.name} fields -->")
    part, _, _ = rest.partition("<!-- end -->")
    for field in endpoint.fields:
        rows = [line for line in part.splitlines() if line.startswith(f"| `{field.name}`")]
        assert len(rows) == 1 and field.note in rows[0], field.name


@pytest.mark.parametrize(("endpoint", "field", "case"), SHOWN, ids=shown)
async def test_a_field_changes_what_its_case_shows(
    desk: Desk, endpoint: Endpoint, field: Field, case: Case
) -> None:
    asked = "hi" if case.says is None else f"[say:{case.says}]"
    base = {**endpoint.base(asked), **case.beside}
    with_it = await desk.send(endpoint, {**base, field.name: case.value})
    assert case.see(with_it) == case.expected
    without = await desk.send(endpoint, base)
    assert case.see(without) != case.expected, "it is the field that makes the difference"


@each("ignored")
async def test_an_ignored_field_changes_nothing_and_says_why(
    desk: Desk, endpoint: Endpoint, field: Field
) -> None:
    without = await desk.send(endpoint, endpoint.base())
    assert without.status == 200 and field.note
    for value in ANYTHING:
        assert await desk.send(endpoint, {**endpoint.base(), field.name: value}) == without


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=shown)
async def test_a_field_that_nobody_knows_changes_nothing(desk: Desk, endpoint: Endpoint) -> None:
    without = await desk.send(endpoint, endpoint.base())
    for value in ANYTHING:
        with_it = {**endpoint.base(), "client_metadata": value, "": value, "max tokens": value}
        assert await desk.send(endpoint, with_it) == without


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=shown)
async def test_null_is_as_absent(desk: Desk, endpoint: Endpoint) -> None:
    without = await desk.send(endpoint, endpoint.base())
    nothing = {f.name: None for f in endpoint.fields if f.name not in endpoint.base()}
    assert nothing and await desk.send(endpoint, nothing | endpoint.base()) == without


@each("refused")
async def test_a_refused_field_is_refused_by_its_name(
    desk: Desk, endpoint: Endpoint, field: Field
) -> None:
    refused = [value for value in (*ANYTHING, 2) if value not in field.harmless]
    said: Any = None
    for value in refused:
        reply = await desk.post(endpoint, {**endpoint.base(), field.name: value})
        said = reply.error
        assert (reply.status, said["type"]) == (400, "invalid_request_error"), value
        assert said["message"].startswith(field.name), value
        if endpoint.path.startswith("/v1/messages"):
            assert reply.json["type"] == "error" and "param" not in said
        else:
            assert said["param"] == field.name, value
    assert said["message"] == f"{field.name} is not supported with this value: {field.note}"


@pytest.mark.parametrize(
    ("endpoint", "field"), [(e, f) for e, f in BY_STANCE["refused"] if f.harmless], ids=shown
)
async def test_a_value_that_asks_for_what_there_is_passes(
    desk: Desk, endpoint: Endpoint, field: Field
) -> None:
    without = await desk.send(endpoint, endpoint.base())
    for value in field.harmless:
        assert await desk.send(endpoint, {**endpoint.base(), field.name: value}) == without


async def test_what_a_response_refuses_its_count_refuses_too(desk: Desk) -> None:
    [endpoint] = [e for e in ENDPOINTS if e.path == "/v1/responses"]
    for field in endpoint.fields:
        if field.stance == "refused":
            body = {**endpoint.base(), field.name: 2}
            counted = await desk.post(replace(endpoint, path=f"{endpoint.path}/input_tokens"), body)
            made = await desk.post(endpoint, body)
            assert (counted.status, counted.error) == (made.status, made.error)
