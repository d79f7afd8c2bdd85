"""Every sentence of the ports of grammars, on xgrammar and on the double."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from doubles.grammar import TextsCompiler
from doubles.tokenizer import BOS, EOS, SPECIAL, VOCAB_SIZE
from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler
from mlxbun.domain.constraint import (
    Choice,
    Constraint,
    GrammarCompiler,
    Matcher,
    Rules,
    translate,
)
from mlxbun.domain.sampling import TokenId

TEXTS = ("yes", "yes, but", "no", "où")
NUM_WORDS = -(-VOCAB_SIZE // 32)


def vocabulary() -> Vocabulary:
    tokens = [bytes([i]) if i < 256 else b"" for i in range(VOCAB_SIZE)]
    return Vocabulary(tokens, VOCAB_SIZE, frozenset({EOS}), SPECIAL)


@pytest.fixture(params=["double", "xgrammar"])
def compiler(request: pytest.FixtureRequest) -> GrammarCompiler:
    return TextsCompiler() if request.param == "double" else XGrammarCompiler(vocabulary)


@pytest.fixture
def matcher(compiler: GrammarCompiler) -> Callable[[Sequence[str]], Matcher]:
    def of(texts: Sequence[str]) -> Matcher:
        rules = translate(Constraint(Choice(tuple(texts)), "x")).rules
        return compiler.compile(rules).matcher()

    return of


def allowed(matcher: Matcher) -> tuple[set[int], bool]:
    words = array("i", [-1] * NUM_WORDS)
    complete = matcher.fill(memoryview(words))
    return {i for i in range(VOCAB_SIZE) if words[i // 32] >> i % 32 & 1}, complete


def say(matcher: Matcher, text: str) -> list[bool]:
    return [matcher.accept(TokenId(byte)) for byte in text.encode()]


def test_only_what_may_follow_is_allowed(matcher: Callable[[Sequence[str]], Matcher]) -> None:
    row = matcher(TEXTS)
    assert allowed(row) == ({ord("y"), ord("n"), ord("o")}, False)
    assert say(row, "o") == [True]
    assert allowed(row) == ({0xC3}, False)  # the first byte of ù
    assert not row.accept(TokenId(ord("x")))
    assert allowed(row) == ({0xC3}, False), "what was not allowed did not move it"


def test_an_end_token_is_allowed_where_the_text_may_end(
    matcher: Callable[[Sequence[str]], Matcher],
) -> None:
    row = matcher(TEXTS)
    assert not row.accept(EOS)
    say(row, "yes")
    assert allowed(row) == ({ord(","), EOS}, False)
    assert row.accept(EOS)
    assert allowed(row)[1]


def test_a_text_that_nothing_may_follow_is_complete(
    matcher: Callable[[Sequence[str]], Matcher],
) -> None:
    row = matcher(TEXTS)
    say(row, "no")
    follows, complete = allowed(row)
    assert complete and follows <= {EOS}


def test_special_tokens_and_ids_beyond_the_text_are_never_allowed(
    matcher: Callable[[Sequence[str]], Matcher],
) -> None:
    row = matcher(TEXTS)
    assert BOS not in allowed(row)[0] and not row.accept(BOS)


def test_tokens_are_taken_back(matcher: Callable[[Sequence[str]], Matcher]) -> None:
    row = matcher(TEXTS)
    say(row, "yes, b")
    row.rollback(4)
    assert allowed(row) == ({ord("s")}, False)
    say(row, "s")
    assert row.accept(EOS)
    row.rollback(1)
    assert allowed(row) == ({ord(","), EOS}, False)


def test_text_that_is_no_token_moves_a_row_too(
    matcher: Callable[[Sequence[str]], Matcher],
) -> None:
    row = matcher(TEXTS)
    assert row.accept_text(b"yes, b") and not row.accept_text(b"x")
    assert allowed(row) == ({ord("u")}, False)
    row.rollback(1)
    assert allowed(row)[0] == {ord("y"), ord("n"), ord("o")}, "a call is taken back as a whole"


def test_rows_of_one_grammar_do_not_know_each_other(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(translate(Constraint(Choice(TEXTS), "x")).rules)
    one, other = grammar.matcher(), grammar.matcher()
    say(one, "ye")
    assert allowed(other)[0] == {ord("y"), ord("n"), ord("o")}
    assert grammar.num_bytes > 0


def test_malformed_rules_are_a_value_error(compiler: GrammarCompiler) -> None:
    with pytest.raises(ValueError, match="line 1"):
        compiler.compile(Rules('root ::= ("malformed" '))


def test_special_tokens_are_listed_by_their_spelling(compiler: GrammarCompiler) -> None:
    assert compiler.special == SPECIAL


def test_any_thread_may_compile(compiler: GrammarCompiler) -> None:
    rules = [translate(Constraint(Choice((f"a{i}", "b")), "x")).rules for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        grammars = list(pool.map(compiler.compile, rules))
    for i, grammar in enumerate(grammars):
        row = grammar.matcher()
        assert all(say(row, f"a{i}"))
