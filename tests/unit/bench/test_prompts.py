"""Prompts and stop strings for load."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.adapters.bench.prompts import CannotProbe, Prompts, fitted_words
from mlxbun.adapters.bench.stop_checks import LONGEST, UNDECODED, AnswerUnusable, stop_strings


@given(st.integers(0, 50), st.floats(0.5, 6), st.integers(30, 3000))
def test_fitted_words_make_the_tokens_that_were_wanted(
    fixed: int, per_word: float, wanted: int
) -> None:
    def tokens(words: int) -> int:
        return round(fixed + per_word * words)

    words = fitted_words((16, 80), (tokens(16), tokens(80)), wanted)
    # Rounding at both probes tilts the line by at most one token in 64 words.
    assert abs(tokens(words) - max(wanted, tokens(1))) <= per_word + 1 + words / 64


def test_tokens_that_do_not_grow_with_words_fit_nothing() -> None:
    with pytest.raises(CannotProbe):
        fitted_words((16, 80), (9, 9), 100)


def test_prompts_differ_and_the_same_seed_repeats_them() -> None:
    made = [Prompts(20, seed) for seed in (1, 1, 2)]
    first, second, third = [[prompts.next() for _ in range(5)] for prompts in made]
    assert first == second != third
    assert len({*first, *third}) == 10
    assert {len(prompt.split()) for prompt in first} == {20}


@given(st.text(alphabet="abcdefgh \n" + UNDECODED, min_size=60, max_size=200))
def test_stop_strings_are_distinct_substrings_of_whole_characters(text: str) -> None:
    try:
        found = stop_strings(text, 10)
    except AnswerUnusable:
        return
    assert len(set(found)) == 10
    for piece in found:
        assert piece in text and 1 <= len(piece) <= LONGEST and UNDECODED not in piece


def test_an_answer_without_text_gives_no_stop_strings() -> None:
    with pytest.raises(AnswerUnusable, match="0 characters"):
        stop_strings("", 1)
