from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.conversation import fold_system, merge_turns, normalise, well_formed
from mlxbun.domain.refusal import Refused

Messages = list[Any]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NOTE = "[image left out: this model reads text only]"


def user(content: object = "hello") -> dict[str, Any]:
    return {"role": "user", "content": content}


def calling(arguments: object, **more: object) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call], **more}


@pytest.mark.parametrize(
    "content, text",
    [
        ("hello", "hello"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], "ab"),
        ([{"type": "output_text", "text": "a"}, {"text": "b"}, "c"], "abc"),
        ([{"type": "text", "text": None}], ""),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ("nul \0 stays", "nul \0 stays"),
        ("cut \ud83d here", "cut \ufffd here"),
        ([{"type": "text", "text": "\ude42"}], "\ufffd"),
        ("two halves: \ud83d\ude42", "two halves: 🙂"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_every_spelling_of_a_text_becomes_one_string(role: str, content: object, text: str) -> None:
    assert normalise([{"role": role, "content": content}], "m") == [{"role": role, "content": text}]


def test_absent_content_is_empty() -> None:
    assert normalise([{"role": "user"}], "m") == [{"role": "user", "content": ""}]


def test_a_developer_turn_is_a_system_turn() -> None:
    assert normalise([{"role": "developer", "content": "Be brief."}, user()], "m")[0] == {
        "role": "system",
        "content": "Be brief.",
    }


def test_fields_that_no_template_reads_are_left_out() -> None:
    turn = user() | {"name": "ann", "cache_control": {"type": "ephemeral"}, "refusal": None}
    assert normalise([turn], "m") == [user() | {"name": "ann"}]


def test_a_turn_of_calls_alone_is_kept_with_its_result() -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
    turns = normalise([user(), calling('{"x": 1}', content=None), result], "m")
    assert turns == [user(), calling({"x": 1}, content=""), result]


@pytest.mark.parametrize(
    "arguments, parsed",
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        ("  \n", {}),
        (None, {}),
        ("null", {}),
        ("{}", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"city": "Pa', {"value": '{"city": "Pa'}),
        ("[1, 2]", {"value": [1, 2]}),
        ("7", {"value": 7}),
        ([1], {"value": [1]}),
        (True, {"value": True}),
        ("plain words", {"value": "plain words"}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ("[" * 100_000, {"value": "[" * 100_000}),
        ("[" * 500 + "]" * 500, {"value": "[" * 500 + "]" * 500}),
    ],
)
def test_arguments_become_an_object_whatever_they_were(arguments: object, parsed: object) -> None:
    turn = normalise([calling(arguments)], "m")[0]
    assert turn["tool_calls"][0]["function"] == {"name": "look", "arguments": parsed}


def test_a_custom_call_is_a_function_of_its_input() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    turn = normalise([{"role": "assistant", "tool_calls": [call]}], "m")[0]
    assert turn["tool_calls"][0]["function"] == {"name": "sh", "arguments": {"input": "ls"}}


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_leave_no_field(calls: object) -> None:
    turn = {"role": "assistant", "content": "hi", "tool_calls": calls}
    assert normalise([turn], "m") == [{"role": "assistant", "content": "hi"}]


@pytest.mark.parametrize(
    "said, kept",
    [
        ({"reasoning_content": "hm"}, {"reasoning_content": "hm"}),
        ({"reasoning": "hm"}, {"reasoning_content": "hm"}),
        ({"reasoning_content": "", "reasoning": "hm"}, {"reasoning_content": ""}),
        ({"reasoning_content": None, "reasoning": None}, {}),
    ],
)
def test_reasoning_has_two_names(said: dict[str, Any], kept: dict[str, Any]) -> None:
    turn = {"role": "assistant", "content": "hi"}
    assert normalise([turn | said], "m") == [turn | kept]


def test_a_picture_in_the_question_is_refused_with_the_name_of_the_model() -> None:
    for following in ([], [user("and this?")], [calling("{}")]):
        with pytest.raises(Refused, match="tiny-llama reads text only") as refused:
            normalise([user([{"text": "see"}, PICTURE]), *following], "tiny-llama")
        assert (refused.value.code, refused.value.field) == (
            "unsupported",
            "messages[0].content[1]",
        )


def test_a_picture_that_the_client_cannot_take_back_leaves_a_note() -> None:
    messages = [
        user([{"type": "text", "text": "see "}, PICTURE]),
        {"role": "assistant", "content": "I see"},
        user("go on"),
        calling("{}"),
        {"role": "tool", "tool_call_id": "call_1", "content": [PICTURE]},
    ]
    turns = normalise(messages, "m")
    assert turns[0]["content"] == f"see {NOTE}"
    assert turns[4]["content"] == NOTE


def test_a_picture_that_a_tool_found_may_come_as_the_users() -> None:
    """Cline and Vercel's AI SDK send it so, since a tool's content is text in this protocol."""
    result = {"role": "tool", "tool_call_id": "call_1", "content": "see the next message"}
    turns = normalise([user(), calling("{}"), result, user([PICTURE])], "m")
    assert turns[3]["content"] == NOTE
    with pytest.raises(Refused):
        answered = {"role": "assistant", "content": "I see"}
        normalise([user(), calling("{}"), result, answered, user([PICTURE])], "m")


@pytest.mark.parametrize("kind", ["input_audio", "video_url", "audio", "file", "hologram", None])
def test_other_media_are_treated_like_pictures(kind: str | None) -> None:
    part = {"type": kind, "data": "AAAA"}
    with pytest.raises(Refused) as refused:
        normalise([user([part])], "m")
    assert (refused.value.code, refused.value.field) == ("unsupported", "messages[0].content[0]")
    earlier = normalise([user([part]), {"role": "assistant", "content": "ok"}, user()], "m")
    assert "left out" in earlier[0]["content"]


@pytest.mark.parametrize(
    "messages, field",
    [
        ([], "messages"),
        ([None], "messages[0]"),
        ([user(), "hi"], "messages[1]"),
        ([{}], "messages[0].role"),
        ([{"role": "alien", "content": "x"}], "messages[0].role"),
        ([{"role": 5, "content": "x"}], "messages[0].role"),
        ([user(5)], "messages[0].content"),
        ([user({"type": "text", "text": "x"})], "messages[0].content"),
        ([user([5])], "messages[0].content[0]"),
        ([user([{"type": "text", "text": 5}])], "messages[0].content[0].text"),
        ([user([{"type": 5, "text": "a"}])], "messages[0].content[0].type"),
        ([user() | {"name": 5}], "messages[0].name"),
        ([{"role": "tool", "tool_call_id": {}, "content": ""}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "reasoning": 5}], "messages[0].reasoning"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
    ],
)
def test_what_is_malformed_is_refused_with_its_field(messages: Messages, field: str) -> None:
    with pytest.raises(Refused) as refused:
        normalise(messages, "m")
    assert (refused.value.code, refused.value.field) == ("invalid_value", field)
    assert field in refused.value.message


def test_arguments_nested_too_deep_for_a_template_are_refused() -> None:
    nested: Any = {}
    for _ in range(200):
        nested = {"a": nested}
    with pytest.raises(Refused) as refused:
        normalise([calling(nested)], "m")
    assert refused.value.field == "messages[0].tool_calls[0].function.arguments"


texts = st.text(st.characters(codec=None), max_size=8)  # lone surrogates too
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
names = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "reasoning",
        "id",
        "image_url",
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | texts, inner)
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
likely = st.fixed_dictionaries(
    {"role": roles},
    optional={
        "content": st.none() | texts | st.lists(st.fixed_dictionaries({"text": texts})),
        "name": texts,
        "reasoning": texts,
        "tool_call_id": texts,
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {"function": st.fixed_dictionaries({"name": texts, "arguments": values})}
            ),
            max_size=3,
        ),
    },
)


@given(st.lists(likely | values, max_size=6))
def test_anything_normalises_or_is_refused(messages: Messages) -> None:
    try:
        turns = normalise(messages, "m")
    except Refused as refused:
        assert refused.field is not None
        refused.message.encode()
        return
    json.dumps(turns, ensure_ascii=False).encode()  # no half of a pair is left
    assert [set(turn) >= {"role", "content"} for turn in turns] == [True] * len(messages)
    assert all(isinstance(turn["content"], str) for turn in turns)
    assert json.dumps(normalise(turns, "m")) == json.dumps(turns), "it is not normal yet"


@given(st.lists(likely, min_size=1, max_size=8))
def test_merged_turns_alternate_and_lose_no_text(messages: Messages) -> None:
    turns = normalise(messages, "m")
    merged = merge_turns(turns)
    roles = [turn["role"] for turn in merged]
    assert "system" not in roles[1:]
    assert not any(a == b != "tool" for a, b in zip(roles, roles[1:], strict=False))
    for key in ("content", "reasoning_content"):
        before = [turn[key] for turn in turns if turn.get(key)]
        after = [turn[key] for turn in merged if turn.get(key)]
        assert "\n\n".join(after) == "\n\n".join(before)
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    kept = [call for turn in merged for call in turn.get("tool_calls", ())]
    assert json.dumps(calls) == json.dumps(kept)
    assert json.dumps(merge_turns(merged)) == json.dumps(merged)


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


@pytest.mark.parametrize(
    "turns, merged",
    [
        ([system("a"), system("b"), user("c")], [system("a\n\nb"), user("c")]),
        ([user("a"), system("b")], [user("a\n\nb")]),
        ([system("t"), user("a"), user("b")], [system("t"), user("a\n\nb")]),
        ([user("a"), user("")], [user("a")]),
    ],
)
def test_turns_are_merged_for_strict_templates(turns: Messages, merged: Messages) -> None:
    assert merge_turns(turns) == merged


def test_system_text_begins_the_first_question_where_there_is_no_system_role() -> None:
    turns = [system("Be brief."), user("a"), {"role": "assistant", "content": "b"}, user("c")]
    assert fold_system(turns) == [user("Be brief.\n\na"), *turns[2:]]


@given(texts)
def test_well_formed_text_can_be_written_and_is_otherwise_the_same(text: str) -> None:
    fixed = well_formed(text)
    fixed.encode()
    assert well_formed(fixed) == fixed
    assert fixed == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_line_of_accounts_that_changes_with_every_conversation_is_left_out(role: str) -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.197.abc; cch=123;"
    parts = [{"type": "text", "text": line}, {"type": "text", "text": "Be brief."}]
    for content in (parts, f"{line}\n\nBe brief."):
        assert normalise([{"role": role, "content": content}], "m")[0]["content"] == "Be brief."
    assert normalise([user(line)], "m")[0]["content"] == line
