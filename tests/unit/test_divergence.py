"""Outlines tell where two requests part, and hold nothing of what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.divergence import (
    TOKENS,
    Divergence,
    Outline,
    divergence,
    equal_tokens,
    miss_type,
    outline,
    same_question,
)
from mlxbun.domain.sampling import TokenId

KEY = bytes(range(32))
Messages = Sequence[Mapping[str, Any]]
SYSTEM = {"role": "system", "content": "You are terse."}
ASK = {"role": "user", "content": "What is a prefix?"}
SAID = {"role": "assistant", "content": "A beginning.", "reasoning_content": "Short."}
MORE = {"role": "user", "content": "And a suffix?"}


def rendered(messages: Messages, tools: Sequence[object] = (), arguments: Any = None) -> list[int]:
    """Render as a template that writes everything, a token a character, each turn a block long."""
    text = f"{arguments}{list(tools)}".ljust(TOKENS)
    for message in messages:
        text += "".join(f"<{key}>{value}" for key, value in message.items()).ljust(3 * TOKENS)
    return [ord(letter) for letter in text]


def outlined(
    messages: Messages,
    tools: Sequence[object] = (),
    arguments: Mapping[str, Any] | None = None,
    ids: Sequence[int] | None = None,
    model: str = "m",
) -> Outline:
    token_ids = rendered(messages, tools, arguments) if ids is None else ids
    return outline(KEY, model, [TokenId(i) for i in token_ids], messages, tools, arguments)


def parted(before: Outline, now: Outline) -> Divergence:
    found = divergence(before, now)
    assert found is not None
    return found


def test_a_conversation_that_goes_on_does_not_part_from_itself() -> None:
    first, then = outlined([SYSTEM, ASK]), outlined([SYSTEM, ASK, SAID, MORE])
    assert divergence(first, then) is None and divergence(then, first) is None
    assert divergence(then, then) is None and miss_type(first, then) is None


def test_a_changed_message_is_named_by_index_field_and_offset() -> None:
    long = {"role": "user", "content": "x" * 500 + "y" + "z" * 40}
    other = {"role": "user", "content": "x" * 500 + "Y" + "z" * 40}
    found = parted(outlined([SYSTEM, long, SAID]), outlined([SYSTEM, other, SAID]))
    assert (found.field, found.index, found.how) == ("content", 1, "changed")
    assert found.offset is not None and found.within is not None
    assert found.offset <= 500 <= found.offset + found.within and found.within <= 16


@pytest.mark.parametrize(
    ("change", "field", "how"),
    [
        ({"role": "user"}, "role", "changed"),
        ({"reasoning_content": "Long."}, "reasoning", "changed"),
        ({"reasoning_content": None}, "reasoning", "removed"),
        ({"tool_calls": [{"id": "1", "function": {"name": "f"}}]}, "tool_calls", "added"),
        ({"name": "Ann"}, "name", "added"),
    ],
)
def test_the_field_that_parts_is_named(change: dict[str, Any], field: str, how: str) -> None:
    changed = {k: v for k, v in {**SAID, **change}.items() if v is not None}
    found = parted(outlined([ASK, SAID, MORE]), outlined([ASK, changed, MORE]))
    assert (found.index, found.field, found.how) == (1, field, how)


def test_a_message_that_came_between_or_went_is_told_from_a_changed_one() -> None:
    whole, less = outlined([SYSTEM, ASK, SAID, MORE]), outlined([SYSTEM, ASK, MORE])
    assert (parted(whole, less).index, parted(whole, less).how) == (2, "removed")
    assert (parted(less, whole).index, parted(less, whole).how) == (2, "added")


def test_tools_and_template_arguments_part_prompts_too() -> None:
    tool, other = {"name": "read", "strict": True}, {"name": "read", "strict": False}
    found = parted(outlined([ASK], [tool, tool]), outlined([ASK], [tool, other]))
    assert (found.field, found.index, found.how) == ("tools", 1, "changed")
    found = parted(outlined([ASK], [tool]), outlined([ASK], [tool, other]))
    assert (found.field, found.index, found.how) == ("tools", 1, "added")
    found = parted(outlined([ASK], (), {"x": 1}), outlined([ASK], (), {"x": 2}))
    assert (found.field, found.index) == ("template_arguments", None)


def test_what_the_template_does_not_write_parts_nothing() -> None:
    ids = rendered([ASK, {"role": "assistant", "content": "A beginning."}])
    without = {key: value for key, value in SAID.items() if key != "reasoning_content"}
    assert divergence(outlined([ASK, SAID], ids=ids), outlined([ASK, without], ids=ids)) is None


def test_equal_requests_that_are_written_otherwise_part_in_the_rendering() -> None:
    ids = rendered([SYSTEM, ASK])
    found = parted(outlined([SYSTEM, ASK], ids=ids), outlined([SYSTEM, ASK], ids=[9, *ids[1:]]))
    assert found == Divergence(0, "rendering", "changed")


def test_bare_prompts_part_in_the_prompt() -> None:
    found = parted(outlined([], ids=[1] * 200), outlined([], ids=[1] * 130 + [2] * 70))
    assert found == Divergence(2 * TOKENS, "prompt", "changed")


def test_new_ids_of_calls_part_nothing() -> None:
    def called(call_id: str) -> dict[str, Any]:
        calls = [{"id": call_id, "function": {"name": "f", "arguments": {}}}]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    first, then = outlined([ASK, called("1"), MORE]), outlined([ASK, called("2"), MORE])
    assert first.messages == then.messages


def test_misses_are_named_as_the_messages_api_names_them() -> None:
    base = outlined([SYSTEM, ASK, SAID, MORE], [{"name": "f"}])
    dated = {"role": "system", "content": "It is noon."}
    assert miss_type(base, outlined([SYSTEM, ASK], model="other")) == "model_changed"
    assert miss_type(base, outlined([dated, ASK, SAID, MORE], [])) == "system_changed"
    assert miss_type(base, outlined([SYSTEM, ASK, SAID], [])) == "tools_changed"
    tools = [{"name": "f"}]
    assert miss_type(base, outlined([SYSTEM, MORE, SAID, MORE], tools)) == "messages_changed"
    assert miss_type(base, outlined([SYSTEM, ASK], tools, {"think": True})) == "unavailable"


def test_the_same_question_is_known_behind_other_instructions() -> None:
    dated = {"role": "system", "content": "It is noon."}
    assert same_question(outlined([SYSTEM, ASK, SAID]), outlined([dated, ASK]))
    assert not same_question(outlined([SYSTEM, ASK]), outlined([SYSTEM, MORE]))
    assert not same_question(outlined([SYSTEM]), outlined([SYSTEM]))


def test_an_outline_holds_nothing_of_what_was_said() -> None:
    made = outlined([{"role": "user", "content": "swordfish" * 40}], [{"name": "swordfish"}])
    assert b"swordfish" not in msgspec.msgpack.encode(made)
    other = outline(bytes(32), "m", [], [{"role": "user", "content": "swordfish" * 40}])
    assert made.messages != other.messages  # without the key no guess can be tried


letters = st.text(st.sampled_from("ab\ud83dé"), max_size=6)
texts = st.builds(lambda a, n, b: a * n + b, letters, st.integers(0, 900), letters)


@given(texts, texts)
def test_two_texts_part_where_a_comparison_finds_it(one: str, two: str) -> None:
    old, new = ({"role": "user", "content": text} for text in (one, two))
    found = divergence(outlined([old, SAID], ids=[1] * 64), outlined([new, SAID], ids=[2] * 64))
    assert found is not None
    if one == two:
        assert found.field == "rendering"
        return
    assert (found.field, found.index) == ("content", 0)
    assert found.offset is not None and found.within is not None
    shared = len(commonprefix([one, two]))
    assert found.offset <= shared <= found.offset + found.within
    assert found.within <= max(16, shared // 16)


turns = st.sampled_from([SYSTEM, ASK, SAID, MORE, {**SAID, "reasoning_content": "Other."}])
conversations = st.lists(turns, min_size=1, max_size=6)


@given(conversations, conversations)
def test_conversations_part_exactly_where_their_turns_do(one: Messages, two: Messages) -> None:
    before, now = outlined(one), outlined(two)
    found = divergence(before, now)
    shared = next(
        (i for i, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), None
    )
    assert (found.index if found else None) == shared
    assert equal_tokens(before, now) == equal_tokens(now, before)
    assert (miss_type(before, now) is None) == (found is None)
