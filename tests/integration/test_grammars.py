"""Grammars over a real vocabulary: what xgrammar lets through is what was asked."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import random_schemas
from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
from mlxbun.adapters.tokenizer.folder import FolderTokenizer, open_tokenizer
from mlxbun.application.wanted_answers import Asked, ForcedCall, wanted
from mlxbun.domain.constraint import (
    Calls,
    CompiledGrammar,
    Constraint,
    JsonSchema,
    Matcher,
    Regex,
    Tag,
    translate,
)
from mlxbun.domain.constraint.automaton import matches
from mlxbun.domain.constraint.expressions import parse
from mlxbun.domain.conversation.markup import Family, family_of
from mlxbun.domain.conversation.parts import CallArguments, CallBegun, Text
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from models import tiny

VOCAB_SIZE = tiny.VOCAB_SIZE + 33  # as if the logits were padded
END = "<|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[[str], Path]) -> FolderTokenizer:
    return open_tokenizer(tiny_model("tiny-llama"))


@pytest.fixture(scope="module")
def speller(tokenizer: FolderTokenizer) -> Speller:
    return Speller(tokenizer)


class Speller:
    """Compiles, and writes random texts that a grammar allows."""

    def __init__(self, tokenizer: FolderTokenizer) -> None:
        tokens = tokenizer.vocabulary(VOCAB_SIZE)
        assert tokens is not None
        self.special = tokenizer.special_tokens()
        self.end = self.special[END]
        spelled = {i: s.encode() for s, i in self.special.items()}
        self.tokens = [spelled.get(TokenId(i), token) for i, token in enumerate(tokens)]
        vocabulary = Vocabulary(tokens, VOCAB_SIZE, {self.end}, self.special)
        self.compiler = XGrammarCompiler(lambda: vocabulary)
        self._closing = np.array([t[:1] in (b'"', b"}", b"]", b"<") for t in self.tokens])

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        rules = translate(constraint, self.compiler.special).rules
        return self.compiler.compile(rules)

    def write(self, matcher: Matcher, rng: random.Random, most: int = 3000) -> str | None:
        """Return a random text; None if it does not end within `most` tokens."""
        said = b""
        for _ in range(most):
            allowed, complete = self.allowed(matcher)
            if complete or (self.end in allowed and rng.random() < 0.5):
                return said.decode()
            going = [i for i in allowed if i != self.end]
            closing = [i for i in going if self._closing[i]]
            token_id = rng.choice(closing if closing and rng.random() < 0.4 else going)
            assert matcher.accept(TokenId(token_id))
            said += self.tokens[token_id]
        return None

    def allowed(self, matcher: Matcher) -> tuple[list[int], bool]:
        words = np.zeros(-(-VOCAB_SIZE // 32), dtype=np.int32)
        complete = matcher.fill(words.data)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")
        assert not bits[VOCAB_SIZE:].any() or complete
        return [int(i) for i in np.flatnonzero(bits[:VOCAB_SIZE])], complete

    def takes(self, grammar: CompiledGrammar, text: str) -> bool:
        """Return whether `text` is one of the grammar's, as a whole."""
        matcher = grammar.matcher()
        if text and not matcher.accept_text(text.encode()):
            return False
        allowed, complete = self.allowed(matcher)
        return complete or self.end in allowed


def valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_what_a_grammar_of_a_schema_allows_is_valid(speller: Speller, first: int) -> None:
    num_whole = 0
    for seed in range(first, first + 20):
        schema = random_schemas.schema(seed)
        try:
            translation = translate(Constraint(JsonSchema(schema), "x"))
        except Refused as refused:
            assert "no value satisfies it" in refused.message
            continue
        grammar, rng = speller.compiler.compile(translation.rules), random.Random(seed)
        for _ in range(3):
            text = speller.write(grammar.matcher(), rng)
            if text is None:
                continue
            num_whole += 1
            value = json.loads(text)
            unenforced = [p for p in translation.unenforced if not p.endswith("/format")]
            assert unenforced or valid(schema, value), (schema, text)
    assert num_whole > 40


@pytest.mark.parametrize("seed", range(0, 60, 6))
def test_an_expression_takes_what_it_matches(speller: Speller, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(6):
        source = random_source(rng, 3)
        grammar = speller.compile(Constraint(Regex(source), "x"))
        pattern = parse(source, search=False)
        written = [speller.write(grammar.matcher(), rng, 40) for _ in range(3)]
        others = ["".join(rng.choices('ab."\\\n é🙂', k=rng.randrange(5))) for _ in range(12)]
        for text in [*filter(None, written), *others]:
            assert speller.takes(grammar, text) == matches(pattern, text), (source, text)


def random_source(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(6 if depth else 2)
    if kind < 2:
        return rng.choice(("a", "b", r"\.", "[ab]", "[^a]", r'["\\]', "é", "🙂", r"\s"))
    parts = [random_source(rng, depth - 1) for _ in range(2)]
    if kind == 2:
        return "".join(parts)
    if kind == 3:
        return f"({'|'.join(parts)})"
    return f"({parts[0]}){rng.choice(('*', '+', '?', '{2}', '{0,2}', '{1,3}'))}"


@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": "integer"}, {"minimum": 3}])
def test_digits_end(speller: Speller, schema: Any) -> None:
    matcher = speller.compile(Constraint(JsonSchema(schema), "x")).matcher()
    digits = [i for i, token in enumerate(speller.tokens) if token.isdigit()]
    for _ in range(60):
        allowed, complete = speller.allowed(matcher)
        going = [i for i in allowed if i in digits]
        if complete or not going:
            return
        assert matcher.accept(TokenId(going[0]))
    pytest.fail("digits never end")


def test_white_space_ends(speller: Speller) -> None:
    matcher = speller.compile(Constraint(JsonSchema({"type": "object"}), "x")).matcher()
    assert matcher.accept_text(b"{")
    blank = {i for i, token in enumerate(speller.tokens) if token and not token.strip()}
    for _ in range(30):
        going = blank.intersection(speller.allowed(matcher)[0])
        if not going:
            return
        assert matcher.accept(TokenId(max(going)))
    pytest.fail("white space never ends")


def test_compact_json_has_no_blank_between_tokens(speller: Speller) -> None:
    schema = {"properties": {"a": {"const": 1}, "b": {"items": {"const": 2}, "minItems": 2}},
              "required": ["a", "b"]}  # fmt: skip
    grammar = speller.compile(Constraint(JsonSchema(schema, compact=True), "x"))
    text = speller.write(grammar.matcher(), random.Random(1))
    assert text is not None and not set(" \n\t") & set(text)
    assert speller.takes(grammar, '{"a":1,"b":[2,2]}')
    assert not speller.takes(grammar, '{"a": 1,"b":[2,2]}')


def test_special_tokens_are_not_spelled_by_others_nor_allowed_in_text(speller: Speller) -> None:
    matcher = speller.compile(Constraint(JsonSchema({"type": "string"}), "x")).matcher()
    assert matcher.accept_text(b'"')
    allowed = speller.allowed(matcher)[0]
    assert not set(speller.special.values()) & set(allowed)
    assert all(i < tiny.VOCAB_SIZE for i in allowed), "ids without a token are masked"


# Chat templates, or what of one names the family.
FAMILIES = {
    "hermes": "tools <tool_call>",
    "qwen": "tools <function= <parameter=",
    "glm": "tools <arg_key>",
    "minimax": "tools <minimax:tool_call>",
    "dsml": "tools ｜DSML｜",
    "gemma4": "tools <|tool_call> <tool_call|>",
    "mistral": "tools [TOOL_CALLS]",
    "deepseek": "tools <｜tool▁call▁begin｜>",
    "kimi": "tools <|tool_calls_section_begin|>",
    "llama": "tools <|python_tag|>",
    "granite": "tools <|tool_call|>",
    "cohere": "tools <|START_ACTION|>",
    "lfm": "tools <|tool_call_start|>",
    "llama4": "tools <|python_start|>",
    "minicpm": 'tools <function name=" <param name="',
    "muse": "tools <atem:function_calls>",
    "longcat": "tools <longcat_tool_call>",
    "function-gemma": "tools <start_function_call>",
    "seed": "tools <seed:tool_call>",
    "nemotron": "tools <TOOLCALL>",
    "call-list": "tools <tool_calls>",
    "apertus": "tools <|tools_prefix|>",
    "olmo": "tools <function_calls>",
    "kimi3": "tools <|open|> <|close|> <|sep|>",
    "harmony": "tools <|channel|><|message|>",
}
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,6}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F", 3, None]},
        "deep": {"type": "object", "properties": {"on": {"type": "boolean"}, "why": {
            "type": "string", "maxLength": 5, "pattern": "^[a-z]+$"}}, "required": ["on"]},
        "more": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
]


def made(family: Family, text: str) -> tuple[list[tuple[str, Any]], str]:
    """Return the calls that `family` reads in `text`, and the text beside them."""
    reader = family.reader(TOOLS, "")
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    beside = ""
    for part in (*reader.feed(text), *reader.flush()):
        match part:
            case CallBegun(index=index, name=name):
                names[index] = name
            case CallArguments(index=index, text=more):
                arguments[index] = arguments.get(index, "") + more
            case Text(text=more):
                beside += more
            case _:
                pass
    return [(names[i], json.loads(arguments[i])) for i in sorted(names)], beside


@pytest.mark.parametrize("name", FAMILIES)
def test_forced_calls_are_read_back_by_their_family(speller: Speller, name: str) -> None:
    family = family_of(FAMILIES[name], lambda _: False)
    assert family.name == name
    asked = Asked(None, TOOLS, ForcedCall("get_weather"), one_call=False)
    found, _ = wanted(asked, family, "", frozenset({"<|call|>"}))
    assert found is not None and isinstance(found.wanted, Calls)
    grammar = speller.compile(Constraint(found.wanted, found.field))
    for seed in range(8):
        text = speller.write(grammar.matcher(), random.Random(seed))
        assert text is not None
        calls, beside = made(family, text)
        assert [tool for tool, _ in calls] == ["get_weather"], text
        assert valid(PARAMETERS, calls[0][1]), (text, calls)
        assert not beside.strip(), text


def test_calls_may_follow_one_another_and_be_of_any_tool(speller: Speller) -> None:
    family = family_of(FAMILIES["hermes"], lambda _: False)
    found, _ = wanted(Asked(None, TOOLS, ForcedCall(), one_call=False), family, "", frozenset())
    assert found is not None
    grammar, names, most = speller.compile(found), set[str](), 0
    for seed in range(20):
        text = speller.write(grammar.matcher(), random.Random(seed))
        calls, _ = made(family, text or "")
        names |= {tool for tool, _ in calls}
        most = max(most, len(calls))
    assert names == {"get_weather", "look"} and most > 1


def test_a_call_that_is_not_forced_comes_after_any_text_or_not_at_all(speller: Speller) -> None:
    family = family_of(FAMILIES["hermes"], lambda _: False)
    asked = Asked(None, TOOLS, None, one_call=True, strict=frozenset({"get_weather"}))
    found, _ = wanted(asked, family, "", frozenset())
    assert found is not None
    grammar = speller.compile(found)
    call = (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Rome", "days":2}}\n</tool_call>'
    )
    assert speller.takes(grammar, "It rains < 3 days <tool.")
    assert speller.takes(grammar, f"I look.\n{call}")
    assert not speller.takes(grammar, call.replace("2", "20"))
    assert not speller.takes(grammar, call + call)


def test_markup_that_is_special_tokens_is_written_with_them(speller: Speller) -> None:
    """As if this vocabulary's special tokens were a family's."""
    calls = Calls(
        (Tag("<|fim_prefix|>f", "<|fim_suffix|>", {"type": "object", "maxProperties": 0}),),
        trigger="<|im_start|>",
        first="<|im_start|>calls ",
        required=True,
        only_one=True,
    )
    matcher = speller.compile(Constraint(calls, "x")).matcher()
    assert speller.allowed(matcher)[0] == [speller.special["<|im_start|>"]]
    assert speller.write(matcher, random.Random(1)) is not None


def test_reaching_xgrammar_imports_no_torch_and_no_transformers() -> None:
    script = (
        "import sys\n"
        "from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler\n"
        "assert 'tvm_ffi' not in sys.modules, 'it is loaded on first use'\n"
        "from mlxbun.domain.constraint import Rules\n"
        "tokens = [bytes([i]) for i in range(256)]\n"
        "XGrammarCompiler(lambda: Vocabulary(tokens, 256, ())).compile(Rules('root ::= \"a\"'))\n"
        "loaded = {'torch', 'transformers', 'pydantic', 'triton'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_grammar_that_the_vocabulary_cannot_spell_is_refused() -> None:
    compiler = XGrammarCompiler(lambda: Vocabulary([b"a", b"b"], 2, ()))
    rules = translate(Constraint(Regex("xyz"), "x")).rules
    with pytest.raises(ValueError, match="cannot spell"):
        compiler.compile(rules)
