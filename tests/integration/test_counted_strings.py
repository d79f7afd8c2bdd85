"""Strings of bounded length over xgrammar: what fits is written, escapes included, nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
from mlxbun.domain.constraint import CompiledGrammar, Constraint, JsonSchema, translate
from mlxbun.domain.sampling import TokenId

END = TokenId(256)
BYTES = Vocabulary([*(bytes([i]) for i in range(256)), b""], 257, frozenset({END}))


@pytest.fixture(scope="module")
def compiler() -> XGrammarCompiler:
    return XGrammarCompiler(lambda: BYTES)


def compiled(compiler: XGrammarCompiler, schema: Any) -> CompiledGrammar:
    return compiler.compile(translate(Constraint(JsonSchema(schema, strict=True), "x")).rules)


def takes(grammar: CompiledGrammar, text: str) -> bool:
    """Return whether `text` is one of the grammar's, as a whole."""
    matcher = grammar.matcher()
    if not matcher.accept_text(text.encode()):
        return False
    words = np.zeros(9, dtype=np.int32)
    bits = words.view(np.uint8)
    complete = matcher.fill(words.data)
    return complete or bool(np.unpackbits(bits, bitorder="little")[END])


@pytest.mark.parametrize(
    ("least", "most"), [(0, 5), (1, 100), (3, 9), (2, None), (30, None), (10, 300), (0, 2000)]
)
def test_a_text_of_bounded_length_may_have_any_characters(
    compiler: XGrammarCompiler, least: int, most: int | None
) -> None:
    schema: dict[str, Any] = {"type": "string", "minLength": least}
    if most is not None:
        schema["maxLength"] = most
    grammar, rng = compiled(compiler, schema), random.Random(least)
    lengths = {0, least - 1, least, least + 1, 2 * least, most or 0, (most or 0) + 1}
    for length in sorted(n for n in lengths if n >= 0):
        for share in (0, 0.1, 1):
            text = "".join(
                rng.choice('"\n\\\x01') if rng.random() < share else rng.choice("xé😀 ")
                for _ in range(length)
            )
            valid = jsonschema.Draft202012Validator(schema).is_valid(text)
            written = takes(grammar, json.dumps(text, ensure_ascii=False))
            assert valid or not written, text
            if share == 0:
                assert written == valid, text


def test_a_few_escapes_in_a_long_text_leave_room_for_the_rest(compiler: XGrammarCompiler) -> None:
    grammar = compiled(compiler, {"type": "string", "minLength": 1, "maxLength": 500})
    lines = 'He said "no", and left.\n' * 8
    assert takes(grammar, json.dumps(lines))
    assert takes(grammar, json.dumps('"'))
    assert takes(grammar, json.dumps("\n" * 31))


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        ("^[a-z].{0,400}$", ["a", 'a"\\b', "z" + "é" * 400], ["", "A", "a\n", "z" * 402]),
        (r"^[\s\S]{2,90}$", ["\n\n", 'a"', "x" * 90], ["\n", "x" * 91]),
        ('^"{1,50}$', ['"', '"' * 50], ["", '"' * 51, "a"]),
    ],
)
def test_a_pattern_that_ends_in_a_count_is_kept_to(
    compiler: XGrammarCompiler, pattern: str, texts: list[str], others: list[str]
) -> None:
    grammar = compiled(compiler, {"type": "string", "pattern": pattern})
    assert all(takes(grammar, json.dumps(text, ensure_ascii=False)) for text in texts)
    assert not any(takes(grammar, json.dumps(text, ensure_ascii=False)) for text in others)
