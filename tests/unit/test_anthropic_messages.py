"""Messages of Anthropic's protocol as turns: types of the official SDK say what may come."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from anthropic.types import MessageParam
from anthropic.types.beta import BetaMemoryTool20250818Command
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from pydantic import BaseModel, TypeAdapter

from mlxbun.domain.conversation import Turn, normalise
from mlxbun.domain.conversation.anthropic_messages import ERROR, translate
from mlxbun.domain.conversation.anthropic_tools import offered_tools
from mlxbun.domain.conversation.volatile import without_marks
from mlxbun.domain.refusal import Refused

PARAM = TypeAdapter[Any](MessageParam)
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE = {"type": "image", "source": PNG}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def turns(*messages: dict[str, Any], system: Any = None) -> list[Turn]:
    """Return the turns of messages that the official types accept."""
    for message in messages:
        if message.get("role") != "system":
            PARAM.validate_python(message)
    translation = translate(messages, system)
    try:
        return normalise(translation.messages, "a-model")
    except Refused as refused:
        raise translation.located(refused) from None


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def test_a_string_and_a_list_of_one_text_are_the_same_turn() -> None:
    assert turns({"role": "user", "content": "hi"}) == turns(user(text("hi", **EPHEMERAL)))


def test_the_system_comes_first_as_string_or_blocks() -> None:
    expected = [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "hi"}]
    assert turns(user(text("hi")), system=[text("a", **EPHEMERAL), text("b")]) == expected
    assert turns(user(text("hi")), system="a\n\nb") == expected
    assert turns(user(text("hi")), system=[]) == expected[1:]


def test_a_line_of_accounts_does_not_reach_the_prompt() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.197.c40; cc_entrypoint=cli;"
    assert turns(user(text("hi")), system=[text(line), text("Be brief.")])[0]["content"] == (
        "Be brief."
    )
    assert turns(user(text("hi")), system=[text(line)]) == turns(user(text("hi")))
    assert without_marks(f"{line}\n\nBe brief.") == "Be brief."
    assert without_marks(f"Be brief.\n{line}") == f"Be brief.\n{line}"


def test_a_system_message_keeps_its_place() -> None:
    said = turns(
        user(text("go")), {"role": "system", "content": "agents: none"}, assistant(text("ok")),
        user(text("on")),
    )  # fmt: skip
    assert [(turn["role"], turn["content"]) for turn in said] == [
        ("user", "go"), ("system", "agents: none"), ("assistant", "ok"), ("user", "on"),
    ]  # fmt: skip


def test_results_come_first_and_what_else_was_said_after_them() -> None:
    second = {**CALL, "id": "toolu_2", "name": "Read"}
    failed = {
        "type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
        "content": [text("bad"), text("file")], **EPHEMERAL,
    }  # fmt: skip
    said = turns(
        user(text("go")), assistant(CALL, second), user(text("and?"), RESULT, failed, text("why"))
    )
    assert said[1:] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "toolu_1", "type": "function",
                 "function": {"name": "Bash", "arguments": {"command": "ls"}}},
                {"id": "toolu_2", "type": "function",
                 "function": {"name": "Read", "arguments": {"command": "ls"}}},
            ],
        },
        {"role": "tool", "content": "a.txt", "tool_call_id": "toolu_1", "name": "Bash"},
        {"role": "tool", "content": f"{ERROR}bad\n\nfile", "tool_call_id": "toolu_2",
         "name": "Read"},
        {"role": "user", "content": "and?\n\nwhy"},
    ]  # fmt: skip


def test_a_result_without_content_is_an_empty_turn() -> None:
    said = turns(user(text("go")), assistant(CALL), user({**RESULT, "content": []}))
    bare = {"type": "tool_result", "tool_use_id": "toolu_1"}
    assert said == turns(user(text("go")), assistant(CALL), user(bare))
    assert said[-1]["content"] == ""
    assert said[-1]["role"] == "tool"


def test_thoughts_are_the_turns_reasoning_and_sealed_ones_are_dropped() -> None:
    thinking = {"type": "thinking", "thinking": "so", "signature": "whatever"}
    sealed = {"type": "redacted_thinking", "data": "eA=="}
    said = turns(user(text("go")), assistant(thinking, sealed, CALL), user(RESULT))[1]
    assert said["reasoning_content"] == "so"
    assert said["content"] == ""
    assert "reasoning_content" not in turns(user(), assistant(sealed), user(text("x")))[1]


def test_a_picture_in_the_question_is_refused_where_it_stands() -> None:
    with pytest.raises(Refused) as caught:
        turns(user(text("hi")), assistant(text("yes")), user(text("look"), IMAGE))
    assert (caught.value.code, caught.value.field) == ("unsupported", "messages[2].content[1]")
    assert "a-model reads text only, and messages[2].content[1] is an image" in str(caught.value)


def test_a_picture_in_a_result_or_in_history_leaves_a_note() -> None:
    said = turns(user(text("go")), assistant(CALL), user({**RESULT, "content": [IMAGE]}))
    assert said[-1]["content"] == "[image left out: this model reads text only]"
    said = turns(user(IMAGE, text("what?")), assistant(text("a cat")), user(text("more")))
    assert said[0]["content"] == "[image left out: this model reads text only]what?"


def test_a_document_of_text_is_read_and_another_is_treated_as_a_picture() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "the text"}
    document = {"type": "document", "title": "Title", "source": plain}
    assert turns(user(document, text("sum up")))[0]["content"] == "Title\n\nthe text\n\nsum up"
    inner = {"type": "content", "content": [text("a"), text("b")]}
    assert turns(user({"type": "document", "source": inner}))[0]["content"] == "a\n\nb"
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}
    with pytest.raises(Refused, match="reads text only"):
        turns(user({"type": "document", "source": pdf}))


def test_a_search_result_is_text() -> None:
    found = {"type": "search_result", "title": "T", "source": "http://x", "content": [text("body")]}
    assert turns(user(found))[0]["content"] == "T\n\nhttp://x\n\nbody"


def test_a_block_of_an_unknown_type_leaves_a_note_and_the_rest_is_kept() -> None:
    translation = translate([user({"type": "hologram", "data": 1}, text("hi"))])
    assert translation.messages[0]["content"] == ("[hologram left out: it cannot be shown]\n\nhi")
    searched = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    said = turns(user(text("hi")), assistant(text("a"), searched, text("b")), user(text("on")))
    assert said[1]["content"] == "a\n\n[server_tool_use left out: it cannot be shown]\n\nb"


def test_a_tool_that_is_added_later_joins_the_others() -> None:
    definition = {"name": "late", "input_schema": {"type": "object"}}
    addition = {"type": "tool_addition", "tool": {"type": "tool_definition",
                                                  "definition": definition}}  # fmt: skip
    named = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "early"}}
    translation = translate([user(addition, named, text("hi"))])
    assert translation.messages == [{"role": "user", "content": "hi"}]
    assert [*offered_tools(translation.tools).functions] == ["late"]


def test_a_tool_is_shown_as_a_function_and_a_vendors_own_is_left_out() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [
        {"name": "w", "description": "d", "input_schema": schema, "type": "custom", **EPHEMERAL},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"name": "s", "input_schema": {"type": "object"}, "strict": True},
    ]
    offered = offered_tools([(tool, f"tools[{i}]") for i, tool in enumerate(tools)])
    assert offered.shown == [
        {"type": "function", "function": {"name": "w", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "s", "parameters": {"type": "object"}}},
    ]
    assert (offered.strict, offered.left_out) == (frozenset({"s"}), ("web_search_20250305",))


MEMORY_COMMANDS = get_args(get_args(BetaMemoryTool20250818Command)[0])


@pytest.mark.parametrize("command", MEMORY_COMMANDS)
def test_what_anthropics_memory_is_called_with_fits_what_is_shown(command: type[BaseModel]) -> None:
    offered = offered_tools([({"type": "memory_20250818", "name": "memory"}, "tools[0]")])
    schema = offered.functions["memory"]["parameters"]
    properties = schema["properties"]
    assert set(command.model_fields) <= set(properties)
    values = {"string": "x", "integer": 1, "array": [1, 2]}
    called = {name: values[properties[name]["type"]] for name in command.model_fields}
    called["command"] = get_args(command.model_fields["command"].annotation)[0]
    Draft202012Validator(schema).validate(called)
    assert command.model_validate(called, strict=True)
    assert set(properties["command"]["enum"]) == {
        get_args(c.model_fields["command"].annotation)[0] for c in MEMORY_COMMANDS
    }


def test_tools_that_a_client_runs_are_shown_and_those_of_pictures_are_not() -> None:
    kinds = ["bash_20250124", "text_editor_20250124", "text_editor_20250728", "memory_20250818",
             "computer_20250124", "bash_next", "web_fetch_20250910"]  # fmt: skip
    offered = offered_tools([({"type": kind, "name": kind}, "tools[0]") for kind in kinds])
    assert [*offered.functions] == kinds[:4]
    assert offered.left_out == tuple(kinds[4:])
    for function in offered.functions.values():
        Draft202012Validator(function["parameters"])
        assert function["description"]
    old, new = (offered.functions[kind]["parameters"]["properties"] for kind in kinds[1:3])
    assert ("undo_edit" in old["command"]["enum"], "undo_edit" in new["command"]["enum"]) == (
        True, False,
    )  # fmt: skip


def test_citations_that_are_asked_for_are_noted_once() -> None:
    def document(enabled: bool) -> dict[str, Any]:
        source = {"type": "text", "media_type": "text/plain", "data": "a"}
        return {"type": "document", "source": source, "citations": {"enabled": enabled}}

    assert translate([user(document(True), document(True))]).notes == {
        "citations: the model is not asked for any"
    }
    assert translate([user(document(False), text("x"))]).notes == set()


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ("x", "tools[0]"),
        ({"input_schema": {}}, "tools[0].name"),
        ({"name": 5, "input_schema": {}}, "tools[0].name"),
        ({"name": "x"}, "tools[0].input_schema"),
        ({"name": "x", "input_schema": "y"}, "tools[0].input_schema"),
    ],
)
def test_a_tool_that_is_none_is_refused_by_its_field(tool: Any, field: str) -> None:
    with pytest.raises(Refused) as caught:
        offered_tools([(tool, "tools[0]")])
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "tool", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0].content"),
        ([user(5)], "messages[0].content[0]"),
        ([user({"type": 5})], "messages[0].content[0].type"),
        ([user(text(5))], "messages[0].content[0].text"),  # type: ignore[arg-type]
        ([user({"type": "document"})], "messages[0].content[0].source"),
        ([user({**RESULT, "content": 5})], "messages[0].content[0].content"),
        ([user({**RESULT, "tool_use_id": 5})], "messages[0].content[0].tool_use_id"),
        ([assistant({"type": "tool_use"}), user()], "messages[0].content[0].name"),
        ([user(), assistant(text("It is "))], "messages"),
        ([user(), assistant(text("It is"), CALL)], "messages"),
        ([user(), assistant(text("It is")), {"role": "system", "content": "x"}], "messages"),
        ([{"role": "system", "content": [IMAGE]}], "messages[0].content[0]"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(messages: Any, field: str) -> None:
    with pytest.raises(Refused) as caught:
        translate(messages)
    assert caught.value.field == field


def test_an_answer_goes_on_from_what_the_last_message_begins() -> None:
    begun = translate([user(text("hi")), assistant(text("It is"))])
    assert (begun.messages, begun.begun) == ([{"role": "user", "content": "hi"}], "It is")
    assert translate([user(text("hi")), assistant()]).begun == ""
    assert translate([user(text("hi"))]).begun == ""


def test_what_only_a_template_could_not_write_is_told_in_the_requests_own_field() -> None:
    deep: Any = {}
    for _ in range(80):
        deep = {"a": deep}
    with pytest.raises(Refused) as caught:
        turns(user(text("x")), assistant(text("y"), {**CALL, "input": deep}), user(RESULT))
    assert caught.value.field == "messages[1].content[1].input"
    assert caught.value.message.startswith("messages[1].content[1].input is nested")


BLOCKS = st.one_of(
    st.builds(text, st.text(max_size=8)),
    st.just(CALL),
    st.just(RESULT),
    st.just({"type": "thinking", "thinking": "t", "signature": "s"}),
    st.just({"type": "novelty"}),
)
HISTORY = st.lists(
    st.builds(
        lambda role, blocks: {"role": role, "content": blocks},
        st.sampled_from(["user", "assistant"]),
        st.lists(BLOCKS, max_size=4),
    ),
    max_size=5,
)


@given(HISTORY)
def test_no_text_and_no_result_of_any_history_is_lost(history: list[dict[str, Any]]) -> None:
    said = normalise(translate([*history, user(text("end"))]).messages, "a-model")
    prompt = [turn["content"] for turn in said]
    for message in history:
        for block in message["content"]:
            if block["type"] == "text":
                assert any(block["text"] in content for content in prompt)
    of_users = [b for m in history if m["role"] == "user" for b in m["content"]]
    results = [block for block in of_users if block["type"] == "tool_result"]
    assert sum(turn["role"] == "tool" for turn in said) == len(results)
