"""The last requests are compared with what came before them, by session or by likeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application import outlines as module
from mlxbun.application.outlines import CacheMissReason, Diagnostics, Outlines
from mlxbun.domain.divergence import TOKENS, Outline
from mlxbun.domain.prompt_usage import prompt_usage
from mlxbun.domain.sampling import TokenId

SYSTEM = {"role": "system", "content": "You are terse."}
DATED = {"role": "system", "content": "It is noon."}
ASK = {"role": "user", "content": "What is a prefix?"}
SAID = {"role": "assistant", "content": "A beginning."}
MORE = {"role": "user", "content": "And a suffix?"}


def outlined(kept: Outlines, messages: Sequence[Mapping[str, Any]], model: str = "m") -> Outline:
    text = "".join(f"{m['role']}: {m['content']}".ljust(2 * TOKENS) for m in messages)
    return kept.outline(model, [TokenId(ord(letter)) for letter in text], messages)


def noted(
    *requests: tuple[str, Sequence[Mapping[str, Any]]], session: str | None = None
) -> Outlines:
    kept = Outlines()
    for name, messages in requests:
        kept.note(name, [outlined(kept, messages)], session)
    return kept


def test_a_request_is_compared_with_what_it_shares_most_with() -> None:
    kept = noted(("a", [SYSTEM, ASK]), ("b", [SYSTEM, ASK, SAID, MORE]), ("c", [SYSTEM, MORE]))
    kept.note("d", [outlined(kept, [SYSTEM, ASK, SAID, ASK])])
    found = kept.compare("d", 0, 1)
    assert found is not None and found.answer_id == "b" and found.divergence is not None
    assert (found.divergence.field, found.divergence.index) == ("content", 3)


def test_the_same_session_goes_before_likeness() -> None:
    kept = noted(("a", [DATED, ASK]), session="s")
    kept.note("b", [outlined(kept, [SYSTEM, ASK])])
    kept.note("c", [outlined(kept, [SYSTEM, ASK, SAID, MORE])], "s")
    found = kept.compare("c", 0, 1)
    assert found is not None and found.answer_id == "a" and found.divergence is not None
    assert (found.divergence.field, found.divergence.index) == ("content", 0)


def test_instructions_that_changed_do_not_hide_the_same_question() -> None:
    kept = noted(("a", [DATED, ASK]), ("b", [SYSTEM, ASK, SAID, MORE]))
    found = kept.compare("b", 0, 1)
    assert found is not None and found.answer_id == "a" and found.divergence is not None
    assert found.divergence.index == 0


def test_only_what_came_earlier_and_is_near_is_compared() -> None:
    kept = noted(("a", [DATED, MORE]), ("b", [SYSTEM, ASK]), ("c", [SYSTEM, ASK]))
    assert kept.compare("a", 0, 1) is None and kept.compare("b", 0, 1) is None
    found = kept.compare("c", 0, 1)
    assert found is not None and found.answer_id == "b" and found.divergence is None
    assert kept.compare("unknown", 0, 1) is None


def test_each_row_is_compared_by_its_own_prompt() -> None:
    kept = noted(("a", [SYSTEM, ASK]))
    kept.note("b", [outlined(kept, [DATED, MORE]), outlined(kept, [SYSTEM, ASK])])
    assert [kept.compare("b", row, 4) is None for row in range(4)] == [True, True, False, False]


def test_the_oldest_are_forgotten_when_hashes_take_too_much(monkeypatch: Any) -> None:
    kept = noted(("a", [ASK]))
    one = outlined(kept, [ASK]).num_marks + 1
    monkeypatch.setattr(module, "KEPT_MARKS", 3 * one)
    for name in "bcde":
        kept.note(name, [outlined(kept, [ASK])])
    assert [n for n in "abcde" if kept.diagnose("e", n) is None] == ["c", "d", "e"]
    kept.note("huge", [outlined(kept, [ASK] * 40)])
    assert kept.diagnose("huge", "huge") is None


def diagnosed(before: Outline | None, now: Outline, kept: Outlines) -> Diagnostics | None:
    if before is not None:
        kept.note("before", [before])
    kept.note("now", [now])
    return kept.diagnose("now", "before")


def test_a_miss_is_said_as_the_messages_api_says_it() -> None:
    kept = Outlines()
    first, changed = outlined(kept, [SYSTEM, ASK, SAID]), outlined(kept, [SYSTEM, MORE, SAID])
    found = diagnosed(first, changed, kept)
    missed = 4 * TOKENS
    assert found == Diagnostics(CacheMissReason("messages_changed", missed))
    assert msgspec.to_builtins(found) == {
        "cache_miss_reason": {
            "type": "messages_changed",
            "cache_missed_input_tokens": missed,
        }
    }
    other = outlined(kept, [SYSTEM, ASK, SAID], "other")
    assert diagnosed(first, other, kept) == Diagnostics(
        CacheMissReason("model_changed", first.num_tokens)
    )
    assert diagnosed(first, outlined(kept, [SYSTEM, ASK, SAID, MORE]), kept) is None


def test_an_earlier_answer_that_is_not_known_is_said_to_be_so() -> None:
    kept = Outlines()
    found = diagnosed(None, outlined(kept, [ASK]), kept)
    assert msgspec.to_builtins(found) == {
        "cache_miss_reason": {"type": "previous_message_not_found"}
    }
    assert kept.diagnose("now", None) is None and kept.diagnose("unknown", "before") is None


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((100, 0, 0), (100, 0, 0)), ((600, 256, 256), (88, 256, 256)), ((10, 9, 0), (1, 0, 9))],
)
def test_a_prompt_is_split_into_read_created_and_the_rest(
    counts: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    assert msgspec.structs.astuple(prompt_usage(*counts)) == expected


@given(st.integers(0, 9999), st.integers(-5, 9999), st.integers(-5, 9999))
def test_the_parts_of_a_prompt_always_sum_to_it(prompt: int, reused: int, published: int) -> None:
    parts = msgspec.structs.astuple(prompt_usage(prompt, reused, published))
    assert sum(parts) == prompt and min(parts) >= 0


def test_equal_texts_are_hashed_once_and_outlined_alike() -> None:
    kept = Outlines()
    first, again = outlined(kept, [SYSTEM, ASK]), outlined(kept, [SYSTEM, ASK, SAID])
    assert again.messages[0]["content"] is first.messages[0]["content"]
    alone = Outlines()
    alone._key = kept._key
    assert outlined(alone, [SYSTEM, ASK, SAID]) == again
