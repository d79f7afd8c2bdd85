"""JSON schemas read as shapes, with the package jsonschema as the judge."""

from __future__ import annotations

import copy
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import random_schemas
from mlxbun.domain.constraint import (
    Constraint,
    JsonObject,
    JsonSchema,
    Translation,
    translate,
)
from mlxbun.domain.constraint.schema_keywords import SchemaRefused
from mlxbun.domain.constraint.schemas import Schemas, Strictness
from mlxbun.domain.refusal import Refused

FIELD = "response_format.json_schema.schema"

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3000, 3000),
        st.integers(-8000, 8000).map(lambda n: n / 8),
        st.sampled_from(("red", "abc", "x-1", "Ab", "1", "", "é", "a b", "circle", "square")),
        st.text("abx-1é", max_size=8),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from((*random_schemas.NAMES, "value", "next", "x-2")), inner, max_size=4
        )
    ),
    max_leaves=6,
)


def translated(schema: Any, *, strict: bool = False) -> Translation:
    return translate(Constraint(JsonSchema(schema, strict), FIELD))


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@given(st.integers(0, 3000), values)
def test_a_value_is_in_a_schema_as_the_validator_says(seed: int, value: Any) -> None:
    schema = without_formats(random_schemas.schema(seed))
    schemas = Schemas(schema, Strictness.USUAL)
    found = any(schemas.membership.has(shape, value) for shape in schemas.shapes(schemas.root()))
    if not schemas.unenforced:
        assert found == is_valid(schema, value)


@given(st.integers(0, 3000), st.integers(0, 3000), values)
def test_an_intersection_is_what_is_in_both(one: int, other: int, value: Any) -> None:
    whole = {"allOf": [without_formats(random_schemas.schema(s)) for s in (one, other)]}
    for part in whole["allOf"]:  # their definitions would be elsewhere
        if isinstance(part, dict) and "$defs" in part:
            return
    schemas = Schemas(whole, Strictness.USUAL)
    try:
        shapes = schemas.shapes(schemas.root())
    except SchemaRefused as refused:
        assert "too many alternatives" in refused.why
        return
    if not schemas.unenforced:
        assert any(schemas.membership.has(shape, value) for shape in shapes) == is_valid(
            whole, value
        )


@given(st.integers(0, 3000), st.integers(0, 3000), values)
def test_what_is_apart_has_nothing_in_common(one: int, other: int, value: Any) -> None:
    read = [Schemas(random_schemas.schema(s), Strictness.USUAL) for s in (one, other)]
    a, b = (r.shapes(r.root()) for r in read)
    membership = read[0].membership
    for x in a:
        for y in b:
            if closed(x) or closed(y):
                continue  # of what is written, not of all that is valid
            if membership.apart(x, y):
                assert not (read[0].membership.has(x, value) and read[1].membership.has(y, value))


def closed(shape: Any) -> bool:
    return hasattr(shape, "members")


def without_formats(schema: Any) -> Any:
    """Return `schema` without what the validator takes for an annotation."""
    if isinstance(schema, list):
        return [without_formats(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: without_formats(v) for k, v in schema.items() if k != "format" or v not in FORMATS}


FORMATS = random_schemas.FORMATS


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"if": {"additionalProperties": False}, "then": {"maxProperties": 3}}, "/if"),
        ({"allOf": [{"not": {"patternProperties": {"^a": {"type": "string"}}}}]}, "/allOf/0/not"),
        ({"type": "string", "not": {"format": "date"}}, "/not"),
        ({"properties": {"a": {"items": {"type": "string"}, "uniqueItems": True}}},
         "/properties/a/uniqueItems"),
        ({"type": "string", "pattern": r"(a)\1"}, "/pattern"),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2000}, "/contains"),
        ({"oneOf": [{"multipleOf": 2, "type": "integer"}, {"multipleOf": 3}]}, "/oneOf/1"),
        ({"$defs": {"a": {"$id": "x:a"}}, "$recursiveRef": "#"}, "/$recursiveRef"),
        ({"$ref": "https://example.com/schema"}, "/$ref"),
        ({"type": "object", "minProperties": 3, "additionalProperties": True}, "/minProperties"),
        ({"items": {"a/b~c": {"pattern": r"(a)\1"}, "$ref": "#/items/a~1b~0c"}},
         "/items/a~1b~0c/pattern"),
        ({"prefixItems": [{}], "contains": {}, "unevaluatedItems": False}, "/unevaluatedItems"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_if_strict_and_named_if_not(
    schema: Any, pointer: str
) -> None:
    with pytest.raises(Refused) as caught:
        translated(schema, strict=True)
    assert caught.value.field == FIELD + pointer
    assert FIELD + pointer in caught.value.message
    assert pointer in translated(schema).unenforced


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "text"}, "/type"),
        ({"properties": {"a/b": {"type": ["string", "float"]}}}, "/properties/a~1b/type"),
        ({"required": "a"}, "/required"),
        ({"properties": []}, "/properties"),
        ({"anyOf": {"type": "string"}}, "/anyOf"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "#"}, ""),
        ({"minLength": -1}, "/minLength"),
        ({"minimum": "3"}, "/minimum"),
        ({"enum": "a"}, "/enum"),
        ({"items": 3}, "/items"),
        ({"multipleOf": 0}, "/multipleOf"),
        (False, ""),
        ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, ""),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, ""),
        ({"enum": [1, 2], "type": "string"}, ""),
        ({"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}},
          "$ref": "#/$defs/n"}, ""),
    ],
)  # fmt: skip
def test_what_no_value_satisfies_or_is_malformed_is_refused_anyway(
    schema: Any, pointer: str
) -> None:
    with pytest.raises(Refused) as caught:
        translated(schema)
    assert (caught.value.code, caught.value.field) == ("invalid_value", FIELD + pointer)


def test_what_clients_emit_and_nobody_enforces_is_no_reason_to_refuse() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/thing",
        "title": "T",
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": -(2**53) + 1, "maximum": 2**53 - 1},
            "p": {"type": "number", "exclusiveMinimum": 0, "default": 1, "examples": [2]},
            "e": {"type": "string", "format": "email", "$comment": "ours", "deprecated": True},
            "m": {"anyOf": [{"$ref": "#/definitions/K"}, {"type": "null"}], "readOnly": True},
            "f": {"type": "string", "format": "color", "contentMediaType": "text/plain"},
        },
        "required": ["n"],
        "additionalProperties": False,
        "definitions": {"K": {"type": "string", "enum": ["a"]}},
    }
    said = copy.deepcopy(schema)
    assert translated(schema, strict=True).unenforced == ("/properties/f/format",)
    assert schema == said, "what was sent stays as it is"


def test_equal_schemas_have_equal_rules_and_digests() -> None:
    one, other = (Constraint(JsonSchema(random_schemas.schema(5)), FIELD) for _ in range(2))
    assert translate(one) == translate(other) and one.digest == other.digest
    assert one.digest != Constraint(JsonObject(), FIELD).digest
    assert one.digest != Constraint(one.wanted, FIELD, after="</think>").digest


def test_a_schema_of_great_depth_is_refused_and_no_crash() -> None:
    schema: Any = {"type": "string"}
    for _ in range(3000):
        schema = {"type": "array", "items": schema, "minItems": 1}
    with pytest.raises(Refused):
        translated(schema)


def test_reading_a_schema_is_the_same_every_time() -> None:
    for seed in random.Random(1).sample(range(10_000), 20):
        schema = random_schemas.schema(seed)
        try:
            assert translated(schema) == translated(schema)
        except Refused as refused:
            assert refused.field is not None and refused.field.startswith(FIELD)
