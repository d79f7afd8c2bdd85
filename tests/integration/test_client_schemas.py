"""Schemas as pydantic and the OpenAI SDK make them: taken as strict, and written in full."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema
import numpy as np
import pytest
from openai.lib._pydantic import to_strict_json_schema
from pydantic import (
    AnyUrl,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    NonNegativeInt,
    create_model,
)

from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
from mlxbun.domain.constraint import Constraint, JsonSchema, translate
from mlxbun.domain.sampling import TokenId

END = TokenId(256)
BYTES = Vocabulary([*(bytes([i]) for i in range(256)), b""], 257, frozenset({END}))


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["dog"]
    name: Annotated[str, Field(min_length=1, max_length=40)]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []
    parent: Tree | None = None


class Point(NamedTuple):
    x: float
    y: float


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
KINDS: dict[str, tuple[Any, list[Any]]] = {
    "discriminated": (Pet, [{"kind": "cat", "lives": 3}, {"kind": "dog", "name": 'A "dog"\n'}]),
    "list of them": (list[Pet], [[], [{"kind": "cat", "lives": 3}]]),
    "recursive": (Tree, [{"value": 1, "children": [{"value": 2, "children": [], "parent": None}],
                          "parent": None}]),
    "bounds": (Annotated[int, Field(ge=3, lt=10, multiple_of=2)], [4, 8]),
    "probability": (Annotated[float, Field(ge=0, le=1)], [0, 1, 0.5, 1.0, 0.123456789]),
    "float": (float, [0.0, -0.5, 1e10, 1.5e-7]),
    "count": (NonNegativeInt, [0, 10**12]),
    "pattern": (Annotated[str, Field(pattern=r"^[a-z]\w*$", max_length=400)], ["a", "a_1"]),
    "prose": (Annotated[str, Field(min_length=1, max_length=500)],
              ["a", 'He said "no".\nThen\tleft: \\o/ 😀']),
    "map": (dict[str, int], [{}, {"": 1}, {"a b": 2, 'ü"': 3, "😀": 4}]),
    "map of few": (dict[Literal["a", "b"], int], [{}, {"a": 1}, {"a": 1, "b": 2}]),
    "tuple": (tuple[int, str, bool], [[1, "a", True]]),
    "named tuple": (Point, [[1, 2.5], [-0.5, 100000.0]]),
    "literal": (Literal["a", 1, True, None], ["a", 1, True, None]),
    "enum": (Colour, ["red"]),
    "set of few": (set[Colour], [[], ["blue", "red"]]),
    "decimal": (decimal.Decimal, [1.5, "1.5", "-0.5", "+3.25"]),
    "time": (datetime.datetime, ["2024-02-29T12:00:00+01:00", "2026-01-01T00:00:00.123456Z"]),
    "date": (datetime.date, ["2024-02-29"]),
    "delta": (datetime.timedelta, ["P1DT2H3M4S", "PT0.5S"]),
    "uuid": (uuid.UUID, ["7170a15b-1216-44a2-b685-1df51b659094"]),
    "url": (AnyUrl, ["https://example.com/a?b=c&d=%20#x"]),
    "web url": (HttpUrl, ["https://example.com/a?b=c"]),
    "optional": (Annotated[str | None, Field(max_length=9)], ["a", None]),
    "anything": (Any, [1, "a", None, {"a": [1, {}]}, []]),
    "json": (Json[list[int]], ["[1]"]),
    "union": (Cat | int | list[str] | None, [{"kind": "cat", "lives": 1}, 3, ["a"], None]),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> XGrammarCompiler:
    return XGrammarCompiler(lambda: BYTES)


def takes(compiler: XGrammarCompiler, schema: Any, value: Any) -> bool:
    rules = translate(Constraint(JsonSchema(schema, strict=True), "x")).rules
    matcher = compiler.compile(rules).matcher()
    if not matcher.accept_text(spelled(value)):
        return False
    words = np.zeros(9, dtype=np.int32)
    complete = matcher.fill(words.data)
    return complete or bool(np.unpackbits(words.view(np.uint8), bitorder="little")[END])


def spelled(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


@pytest.mark.parametrize("name", KINDS)
def test_a_model_of_pydantic_is_enforced_and_can_be_written(
    compiler: XGrammarCompiler, name: str
) -> None:
    kind, examples = KINDS[name]
    model = create_model("Model", x=(kind, ...))
    for schema in (model.model_json_schema(), to_strict_json_schema(model)):
        validator = jsonschema.Draft202012Validator(schema)
        for value in ({"x": example} for example in examples):
            if validator.is_valid(value):
                assert takes(compiler, schema, value), (schema, value)
        assert not takes(compiler, schema, {"x": 1, "y": 2})
        assert not takes(compiler, schema, {})


def test_alternatives_of_every_kind_are_all_meant(compiler: XGrammarCompiler) -> None:
    """As zod spells any JSON."""
    kinds: list[Any] = [{"type": kind} for kind in ("string", "number", "boolean", "null")]
    again = {"$ref": "#/$defs/json"}
    kinds.append({"type": "array", "items": again})
    kinds.append({"type": "object", "additionalProperties": again})
    schema = {"$defs": {"json": {"anyOf": kinds}}, **again}
    for value in (1, "a", None, True, [1, ["a"]], {"a": {"b": None}}):
        assert takes(compiler, schema, value)
