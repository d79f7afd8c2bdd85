from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlxbun.domain.stop_strings import StopStrings

# Few letters, so that stop strings overlap, nest and repeat.
letters = st.text("ab", max_size=30)
many_stops = st.lists(st.text("ab", max_size=6), max_size=8).map(tuple)


def cut(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The rule, read off its words: the first end, and there the longest stop string."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    machine, shown = StopStrings(stops), ""
    for piece in pieces:
        more, stop = machine.feed(piece)
        shown += more
        if stop is not None:
            return shown, stop
    return shown + machine.flush(), None


def split(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@given(letters, many_stops, st.lists(st.integers(0, 30)))
@example("abcd", ("abcd", "bc"), [3])
@example("aab", ("aab", "ab", "b"), [1, 2])
@example("abab", ("ab", "abab"), [])
def test_any_split_of_a_text_is_cut_as_the_whole(
    text: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    assert run(split(text, cuts), stops) == run([text], stops) == cut(text, stops)


@given(letters, many_stops)
def test_shown_text_has_no_stop_and_held_text_begins_one(text: str, stops: tuple[str, ...]) -> None:
    machine, shown = StopStrings(stops), ""
    for end, character in enumerate(text, start=1):
        more, stop = machine.feed(character)
        shown += more
        assert not any(s in shown for s in stops if s)
        if stop is not None:
            assert shown + stop == text[:end]
            return
        held = text[len(shown) : end]
        assert text.startswith(shown + held)
        assert not held or any(s.startswith(held) and s != held for s in stops)


@given(st.text(max_size=20), st.lists(st.text(max_size=4), max_size=4).map(tuple))
def test_any_unicode_is_matched(text: str, stops: tuple[str, ...]) -> None:
    assert run(list(text), stops) == cut(text, stops)


def test_a_stop_string_across_two_pieces_is_cut_exactly() -> None:
    machine = StopStrings(("\n\nUser:",))
    assert machine.feed("Hello.\n") == ("Hello.", None)
    assert machine.feed("\nUser: more") == ("", "\n\nUser:")


def test_a_beginning_that_is_not_continued_is_released() -> None:
    machine = StopStrings(("END", "ENOUGH"))
    assert machine.feed("the EN") == ("the ", None)
    assert machine.feed("V") == ("ENV", None)
    assert machine.feed("E") == ("", None)
    assert machine.flush() == "E"
    assert machine.flush() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    machine = StopStrings(("",))
    assert machine.feed("abc") == ("abc", None)
    assert machine.flush() == ""


@pytest.mark.parametrize(
    "text, stops",
    [
        ("a" * 3000, tuple("a" * n + "b" for n in range(1, 257))),
        ("ab" * 1500, tuple("ab" * n + "c" for n in range(1, 257))),
        ("x" * 3000, ("x" * 10_000_000,)),
    ],
)
def test_hostile_stop_strings_cost_a_bounded_number_of_nodes(
    text: str, stops: tuple[str, ...]
) -> None:
    machine = StopStrings(stops)
    shown = "".join(machine.feed(character)[0] for character in text)
    assert shown + machine.flush() == text
    # At most a node for each character read and stop string, though the strings are far longer.
    assert len(machine._prefixes.depth) <= len(text) + len(stops) + 1
