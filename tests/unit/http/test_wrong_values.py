"""Any JSON in any field of any endpoint: served, or refused by the field's name; never a failure.

What the field's schema in /openapi.json does not allow must be refused.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from doubles import server
from doubles.carrier import Carrier, Reply
from doubles.embedder import ScriptedEmbedder
from doubles.grammar import TextsCompiler
from field_cases import CASES, ENDPOINTS, JSON_TEXT, Endpoint
from mlxbun.adapters.http.fields import Field
from mlxbun.adapters.http.openapi import document

COMPONENTS = json.loads(json.dumps(document()["components"]))
PARSED = [
    (endpoint, field) for endpoint in ENDPOINTS for field in endpoint.fields
    if field.stance != "ignored"
]  # fmt: skip
WORDS = ("type", "text", "role", "user", "content", "name", "function", "id", "image_url", "format")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 8)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
Post = Callable[[Endpoint, dict[str, Any]], Reply]


@st.composite
def spoilt(draw: st.DrawFn, sample: Any) -> Any:
    """Return `sample` with something in it replaced, left out or added."""
    if isinstance(sample, dict) and sample and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(sample)))
        if draw(st.integers(0, 3)) == 0:
            return {k: v for k, v in sample.items() if k != key}
        return {**sample, key: draw(spoilt(sample[key]))}
    if isinstance(sample, list) and sample and draw(st.booleans()):
        at = draw(st.integers(0, len(sample) - 1))
        return [*sample[:at], draw(spoilt(sample[at])), *sample[at + 1 :]]
    return draw(ANY_JSON)


def values(endpoint: Endpoint, field: Field) -> st.SearchStrategy[Any]:
    samples = [case.value for case in CASES[endpoint.name].get(field.name, ())]
    any_value = ANY_JSON
    if any(isinstance(sample, dict | list) for sample in samples):
        any_value |= st.sampled_from(samples).flatmap(spoilt)
    return any_value


def shown(value: Any) -> str:
    return str(value.name)


@pytest.fixture(scope="module")
def post() -> Iterator[Post]:
    service = server.service(grammars=TextsCompiler([JSON_TEXT]), embedder=ScriptedEmbedder())

    async def start() -> Carrier:
        service.start(asyncio.get_running_loop().call_soon_threadsafe)
        await service.model()
        return Carrier(service)

    async def stop() -> None:
        service.stop()

    with asyncio.Runner() as runner:
        carrier = runner.run(start())
        yield lambda endpoint, body: runner.run(carrier.post(endpoint.path, body))
        runner.run(stop())


def names(said: str | None, field: str) -> bool:
    return said is not None and re.match(rf"{re.escape(field)}($|[.\[/])", said) is not None


@pytest.mark.parametrize(("endpoint", "field"), PARSED, ids=shown)
def test_a_value_of_any_kind_is_served_or_refused_by_name(
    post: Post, endpoint: Endpoint, field: Field
) -> None:
    properties = COMPONENTS["schemas"][endpoint.body.__name__]["properties"]
    schema = Draft202012Validator({**properties[field.name], "components": COMPONENTS})
    short = {"max_tokens": 4} if "max_tokens" in endpoint.needed else {}

    @settings(max_examples=20, deadline=None)
    @given(values(endpoint, field))
    def check(value: Any) -> None:
        reply = post(endpoint, {**endpoint.base(), **short, field.name: value})
        if reply.status == 200:
            assert schema.is_valid(value)
            return
        assert reply.status in (400, 404)
        if endpoint.path.startswith("/v1/messages"):
            assert reply.json["type"] == "error"
            assert field.name in reply.error["message"]
        else:
            assert names(reply.error["param"], field.name)

    check()
