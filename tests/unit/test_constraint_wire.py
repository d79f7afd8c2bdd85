"""What requests say of their constraint."""

from __future__ import annotations

from typing import Any

import pytest

from mlxbun.domain.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Wanted,
    constraint_of,
    hint_of,
)
from mlxbun.domain.refusal import Refused

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}}
CHAT_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("fields", "wanted", "field"),
    [
        ({"response_format": {"type": "json_object"}}, JsonObject(), "response_format.type"),
        ({"response_format": CHAT_FORM}, JsonSchema(SCHEMA), "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema":
            {"schema": SCHEMA, "strict": True, "any_whitespace": False}}},
         JsonSchema(SCHEMA, strict=True, compact=True), "response_format.json_schema.schema"),
        ({"text.format": {"type": "json_schema", "schema": SCHEMA, "strict": True}},
         JsonSchema(SCHEMA, strict=True), "text.format.schema"),
        ({"output_config.format": {"type": "json_schema", "schema": SCHEMA}},
         JsonSchema(SCHEMA), "output_config.format.schema"),
        ({"guided_json": SCHEMA}, JsonSchema(SCHEMA), "guided_json"),
        ({"guided_json": '{"type": "null"}'}, JsonSchema({"type": "null"}), "guided_json"),
        ({"guided_json": True}, JsonSchema(True), "guided_json"),
        ({"guided_regex": "a+"}, Regex("a+"), "guided_regex"),
        ({"guided_grammar": 'root ::= "a"'}, Grammar('root ::= "a"'), "guided_grammar"),
        ({"guided_choice": ["a", "b", "a"]}, Choice(("a", "b")), "guided_choice"),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(SCHEMA), "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a"}}, Regex("a"), "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, Choice(("a",)), "structured_outputs.choice"),
        ({"structured_outputs": {"json_object": True}}, JsonObject(),
         "structured_outputs.json_object"),
        ({"structured_outputs": SCHEMA}, JsonSchema(SCHEMA), "structured_outputs"),
        ({"guided_choice": ["\ud800"]}, Choice(("\ufffd",)), "guided_choice"),
    ],
)  # fmt: skip
def test_every_spelling_is_a_constraint(fields: dict[str, Any], wanted: Wanted, field: str) -> None:
    assert constraint_of(fields) == Constraint(wanted, field)


@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": None, "guided_json": None}, {"response_format": {"type": "text"}},
     {"structured_outputs": {}}],
)  # fmt: skip
def test_text_and_nothing_are_no_constraint(fields: dict[str, Any]) -> None:
    assert constraint_of(fields) is None


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": 3}},
         "response_format.json_schema"),
        ({"text.format": {"type": "json_schema", "name": "x"}}, "text.format.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 3}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_grammar": ["a"]}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "ab"}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
    ],
)  # fmt: skip
def test_what_is_malformed_or_said_twice_is_refused_by_name(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as caught:
        constraint_of(fields)
    assert (caught.value.code, caught.value.field) == ("invalid_value", field)


def test_text_beside_a_constraint_is_harmless() -> None:
    found = constraint_of({"response_format": {"type": "text"}, "guided_regex": "a"})
    assert found == Constraint(Regex("a"), "guided_regex")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (JsonObject(), "JSON object"),
        (JsonSchema(SCHEMA), '"const":1'),
        (Regex("a+b"), "a+b"),
        (Grammar('root ::= "q"'), 'root ::= "q"'),
        (Choice(("one", "two")), "one\ntwo"),
    ],
)
def test_a_hint_says_what_is_wanted(wanted: Wanted, said: str) -> None:
    assert said in hint_of(wanted)
