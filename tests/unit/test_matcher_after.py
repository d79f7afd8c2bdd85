"""The gate before a grammar: everything is allowed until a marker was written."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from doubles.grammar import Texts
from doubles.tokenizer import EOS, VOCAB_SIZE
from mlxbun.domain.constraint import MatcherAfter, RowGrammar
from mlxbun.domain.sampling import TokenId

MARKER = b"</think>"
ANSWER = "yes"
# Tokens of several bytes, as models have them: the gate sees bytes, never ids.
PIECES = [
    b"<",
    b"</",
    b"think",
    b">",
    b"thin",
    b"k>",
    b"a",
    b"\n",
    b"</think>",
    b"</think>y",
    b"k>ye",
]


def gate() -> MatcherAfter:
    inner = Texts([ANSWER]).matcher()
    return MatcherAfter(MARKER, inner, lambda i: PIECES[i], frozenset({EOS}))


def allowed(matcher: MatcherAfter) -> tuple[set[int], bool]:
    words = array("i", [0] * -(-VOCAB_SIZE // 32))
    complete = matcher.fill(memoryview(words))
    return {i for i in range(VOCAB_SIZE) if words[i // 32] >> i % 32 & 1}, complete


def begun(said: bytes) -> bool:
    return MARKER in said


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=12))
def test_the_grammar_begins_where_the_marker_ends_however_it_was_split(ids: list[int]) -> None:
    matcher, said = gate(), b""
    for token_id in ids:
        before, after = said, said + PIECES[token_id]
        wanted = not begun(after) or ANSWER.encode().startswith(after.split(MARKER, 1)[1])
        assert matcher.accept(TokenId(token_id)) == wanted
        if not wanted:
            assert (matcher._begun) == begun(before)  # pyright: ignore[reportPrivateUsage]
            return
        said = after
    follows, complete = allowed(matcher)
    if begun(said):
        rest = said.split(MARKER, 1)[1]
        assert complete == (rest == ANSWER.encode())
        assert len(follows) == 1
    else:
        assert not complete and follows == set(range(VOCAB_SIZE)) - {EOS}


@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=10), st.integers(0, 10))
def test_what_is_taken_back_was_never_said(ids: list[int], num_back: int) -> None:
    matcher, accepted = gate(), list[int]()
    for token_id in ids:
        if not matcher.accept(TokenId(token_id)):
            break
        accepted.append(token_id)
    kept = accepted[: max(0, len(accepted) - num_back)]
    matcher.rollback(len(accepted) - len(kept))
    again = gate()
    for token_id in kept:
        again.accept(TokenId(token_id))
    assert allowed(matcher) == allowed(again)


def test_the_end_is_not_allowed_before_the_marker() -> None:
    assert not gate().accept(EOS)


def test_a_row_goes_on_from_what_was_drawn_before() -> None:
    grammar = RowGrammar("d", Texts([ANSWER]), None, frozenset({EOS}))
    matcher = grammar.matcher([TokenId(ord("y")), TokenId(ord("e"))])
    assert matcher.accept(TokenId(ord("s")))


def test_a_grammar_without_a_marker_begins_at_once() -> None:
    grammar = RowGrammar("d", Texts([ANSWER]), "", frozenset({EOS}))
    assert not isinstance(grammar.matcher(), MatcherAfter)
