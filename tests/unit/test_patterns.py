"""Regular expressions as data, with Python's own engine as the judge."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxbun.domain.constraint.automaton import build, matches
from mlxbun.domain.constraint.expressions import BadPattern, parse
from mlxbun.domain.constraint.patterns import (
    NOTHING,
    Pattern,
    both,
    clip,
    lengths,
    negate,
    stretch,
)

ATOMS = (
    "a",
    "b",
    "c",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\s",
    r"\.",
    "é",
    "[a-c0-9]",
    r"\-",
    "🙂",
)
texts = st.text("abcd.0-é \n🙂", max_size=6)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map(lambda source: f"(?:{source})")
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map(lambda source: f"({source})"),
        st.tuples(group, st.sampled_from(("*", "+", "?", "{2}", "{0,2}", "{1,}"))).map("".join),
    )


sources = st.recursive(st.sampled_from(ATOMS), _larger, max_leaves=6)


def judged(source: str, text: str, *, search: bool) -> bool:
    # ECMAScript's \d and \w are ASCII, and its $ is the very end.
    compiled = re.compile(source, re.ASCII)
    return bool(compiled.search(text) if search else compiled.fullmatch(text))


@given(sources, texts, st.booleans())
def test_a_text_matches_as_it_does_in_python(source: str, text: str, search: bool) -> None:
    pattern = parse(source, search=search)
    assert matches(pattern, text) == judged(source, text, search=search)


@given(sources, texts)
def test_an_automaton_takes_what_its_pattern_matches(source: str, text: str) -> None:
    pattern = parse(source, search=False)
    automaton = build(pattern, 500)
    assert automaton is not None
    state: int | None = 0
    for letter in text:
        assert state is not None
        out = automaton.moves[state]
        state = next(
            (to for ranges, to in out if any(a <= ord(letter) <= b for a, b in ranges)), None
        )
        if state is None:
            break
    assert (state is not None and automaton.ends[state]) == matches(pattern, text)


@given(sources, sources, texts)
def test_both_and_not_are_what_they_say(one: str, other: str, text: str) -> None:
    a, b = parse(one, search=False), parse(other, search=False)
    assert matches(both([a, negate(b)]), text) == (matches(a, text) and not matches(b, text))


@given(sources, st.integers(0, 6), texts)
def test_what_is_clipped_or_stretched_is_part_of_it_and_fits(
    source: str, bound: int, text: str
) -> None:
    pattern = parse(source, search=False)
    for changed, fits in (
        (clip(pattern, bound), len(text) <= bound),
        (stretch(pattern, bound), len(text) >= bound),
    ):
        if matches(changed, text):
            assert fits and matches(pattern, text)


@given(sources, st.integers(0, 6))
def test_clipping_finds_a_text_where_a_short_one_exists(source: str, bound: int) -> None:
    pattern = parse(source, search=False)
    low, _ = lengths(pattern)
    assume(low <= bound and pattern != NOTHING)
    assert clip(pattern, bound) != NOTHING


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        (r"^(?!\.)(?!.*\.\.)[a-z.]+@b\.de$", "a.b@b.de", "a..b@b.de"),
        (r"^(?=.*\d)(?=.*[a-z])\w{3,}$", "a1_", "abc"),
        (r"\u00e9\x41", "xéAx", "xe"),
        ("^a|b$", "ax", "xa"),
        (r"^[\w.]+$", "a.b", "a-b"),
        (r"^[^\d]$", "x", "1"),
        (r"^\u{1F642}$", "🙂", "a"),
        (r"^a{2,}?$", "aaa", "a"),
        ("^(?<year>[0-9]{4})$", "2024", "24"),
        ("{", "a{b", "ab"),
    ],
)
def test_what_ecmascript_has_is_read(source: str, yes: str, no: str) -> None:
    pattern: Pattern = parse(source, search=True)
    assert matches(pattern, yes) and not matches(pattern, no)


@pytest.mark.parametrize(
    "source",
    [r"(a)\1", r"\bword", "(?<=a)b", "(?<!a)b", "a(?=b)", "(", "a)", "[a", "*a", "a**", r"\p{L}",
     "a{3,1}", "[z-a]", "(?i)a", r"\k<a>", "x$y", "x^y", r"\q", r"\x1",
     r"\u{110000}", "a{9999999}"],
)  # fmt: skip
def test_what_is_not_offered_is_refused(source: str) -> None:
    with pytest.raises(BadPattern):
        parse(source, search=True)


def test_too_many_states_are_no_automaton() -> None:
    assert build(parse("(a|b)*a(a|b){12}", search=False), 1000) is None


def test_an_automaton_of_nothing_has_no_end() -> None:
    empty = build(both([parse("a", search=False), parse("b", search=False)]), 10)
    assert empty is not None and not any(empty.ends)


@pytest.mark.parametrize(
    "source",
    [
        # What zod 4 says of durations.
        r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
        r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
        r"^P(?!T)[PT1]*$",
        r"^(P|(?=T)[T1]+)$",
        r"^P(?=T).*(?!1)[1T]$",
        r"^(P(?!T)[PT]*|1)?$",
        r"P(?=T)[T1]*$",
    ],
)
@given(text=st.text("PT1HMSW.", max_size=9))
def test_a_lookahead_holds_for_all_that_follows(source: str, text: str) -> None:
    judge = re.compile(source.replace("$", r"\Z"))
    assert matches(parse(source, search=True), text) == bool(judge.search(text))


@pytest.mark.parametrize(
    "source",
    [r"^a(?=b)", r"^((?=a)[ab])+$", r"^((?=ab)[ab])c*$", r"^a(?!b)^c$", r"^(?=a(?=b)).*$"],
)
def test_a_lookahead_that_more_may_follow_is_refused(source: str) -> None:
    with pytest.raises(BadPattern):
        parse(source, search=True)
