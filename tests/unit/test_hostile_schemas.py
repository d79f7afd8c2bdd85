"""Schemas that are huge, deep or made to explode: refused or given up within bounded work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlxbun.domain.constraint import Constraint, JsonSchema, Translation, translate
from mlxbun.domain.refusal import Refused

FIELD = "schema"


def translated(schema: Any, *, strict: bool = True) -> Translation:
    return translate(Constraint(JsonSchema(schema, strict), FIELD))


def nested(depth: int, around: Callable[[Any], Any], inner: Any) -> Any:
    for _ in range(depth):
        inner = around(inner)
    return inner


@pytest.mark.parametrize(
    ("schema", "pointer", "why"),
    [
        ({"enum": list(range(10**6))}, "/enum", "more than 20000 parts"),
        ({"properties": {f"p{i}": {} for i in range(5000)}}, "/properties", "1000 members"),
        ({"type": "array", "minItems": 10**9}, "/minItems", "2000 items"),
        ({"type": "string", "pattern": "a" * 10**6}, "/pattern", "1000000 characters"),
        ({"allOf": [{"anyOf": [{"minimum": i}, {"maxLength": i}, {"minItems": i}]}
                    for i in range(30)]}, "", "too many alternatives"),
        (nested(2000, lambda inner: {"type": "array", "items": inner, "minItems": 1}, {}), "",
         "nests too deeply"),
        (nested(900, lambda inner: {"anyOf": [inner, {"type": "null"}]}, {"type": "string"}), "",
         "nests too deeply"),
        ({"const": nested(900, lambda inner: [inner], 1)}, "", "nests too deeply"),
        ({"not": {"$ref": "#"}}, "", "refers to itself without end"),
    ],
)  # fmt: skip
def test_what_is_too_large_is_refused_by_the_place_and_the_reason(
    schema: Any, pointer: str, why: str
) -> None:
    with pytest.raises(Refused) as caught:
        translated(schema)
    assert (caught.value.code, caught.value.field) == ("invalid_value", FIELD + pointer)
    assert why in caught.value.message


@pytest.mark.parametrize(
    "pattern",
    [
        "^((a{0,100}){0,100}){0,100}$",
        "^(a{1,100000}){1,100000}$",
        ".*a.{30}",
        "^(a|b)?" + "(a|b)?" * 400 + "$",
        "|".join("a" * i + ".*b" for i in range(200)),
        "^(?=.*a.{8})(?=.*b.{9})(?=.*c.{10})(?=.*d.{11}).*$",
    ],
)
def test_an_expression_that_explodes_is_given_up(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    with pytest.raises(Refused) as caught:
        translated(schema)
    assert caught.value.field == FIELD + "/pattern"
    assert translated(schema, strict=False).unenforced == ("/pattern",)


@pytest.mark.parametrize("pattern", ["^(a|a)*b$", "^(([a-z]+)+)+$", "^(a?){40}a{40}$"])
def test_what_explodes_only_in_a_backtracking_matcher_is_enforced(pattern: str) -> None:
    assert not translated({"type": "string", "pattern": pattern}).unenforced


def test_alternatives_that_exclude_each_other_in_too_many_ways_are_not_tried_out() -> None:
    properties = {f"p{i}": {"type": "integer"} for i in range(20)}
    branches = [{"properties": properties, "required": [f"p{i}"]} for i in range(20)]
    with pytest.raises(Refused) as caught:
        translated({"oneOf": branches})
    assert caught.value.field is not None and caught.value.field.startswith(FIELD + "/oneOf")
