from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.domain.conversation import normalise
from mlxbun.domain.conversation.response_items import input_items, sealed, translate, unsealed
from mlxbun.domain.conversation.response_tools import ResponseTools, response_tools
from mlxbun.domain.refusal import Refused

NONE = ResponseTools()
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


def turns(said: Any, tools: Any = (), **more: Any) -> list[dict[str, Any]]:
    translated = translate(input_items(said), response_tools(tools), **more)
    return normalise(translated.messages, "some/model")


def call(name: str = "run", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "c1", "name": name, "arguments": '{"a": 1}', **more}


def result(output: Any = "done", call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def test_a_string_is_one_user_turn_and_an_empty_one_too() -> None:
    assert turns("hi") == [{"role": "user", "content": "hi"}]
    assert turns("") == [{"role": "user", "content": ""}]


def test_instructions_come_first_and_developers_keep_their_place() -> None:
    said = [{"role": "user", "content": "a"}, {"role": "developer", "content": "b"}]
    assert turns(said, instructions="be brief") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a"},
        {"role": "system", "content": "b"},
    ]


@pytest.mark.parametrize("typed", [False, True])
def test_content_is_a_string_or_parts(typed: bool) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    for content in ("ab", parts):
        message: dict[str, Any] = {"role": "user", "content": content, "id": "msg_1"}
        if typed:
            message["type"] = "message"
        assert turns([message]) == [{"role": "user", "content": "ab"}]


def test_thoughts_text_and_calls_are_one_turn_as_in_the_chat_protocol() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        call(),
        call("stop", call_id="c2", arguments="{}"),
        result(),
        result(call_id="c2"),
        {"role": "assistant", "content": "fine"},
    ]
    functions = [("c1", "run", {"a": 1}), ("c2", "stop", {})]
    calls = [
        {"type": "function", "id": i, "function": {"name": name, "arguments": arguments}}
        for i, name, arguments in functions
    ]
    assert turns(items) == normalise(
        [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "x", "reasoning_content": "hm", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "name": "run", "content": "done"},
            {"role": "tool", "tool_call_id": "c2", "name": "stop", "content": "done"},
            {"role": "assistant", "content": "fine"},
        ],
        "some/model",
    )


def test_thoughts_after_a_call_begin_a_turn_and_two_texts_are_two_turns() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    text = {"role": "assistant", "content": "a"}
    roles = [sorted(turn) for turn in turns([text, text, call(), thought, call()])]
    assert roles == [
        ["content", "role"],
        ["content", "role", "tool_calls"],
        ["content", "reasoning_content", "role", "tool_calls"],
    ]


def test_a_result_is_text_parts_or_any_json_and_its_picture_leaves_a_note() -> None:
    outputs = ["a", [{"type": "input_text", "text": "a"}, IMAGE], {"exit": 0}, None, [1, 2]]
    said = [turns([call(), result(output)])[-1]["content"] for output in outputs]
    assert said == ["a", "a[image left out: this model reads text only]", '{"exit": 0}', "",
                    "[1, 2]"]  # fmt: skip


def test_a_result_whose_call_is_not_there_stays_a_tools_turn() -> None:
    assert turns([result(call_id="gone")]) == [
        {"role": "tool", "content": "done", "tool_call_id": "gone"}
    ]


def test_what_clients_ran_is_a_call_and_what_hosts_ran_is_left_out() -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
        {"type": "compaction", "encrypted_content": "?"},
    ]
    assistant, tool, note = turns(items)
    assert note["role"] == "user" and "compacted elsewhere" in note["content"]
    assert assistant["tool_calls"][0]["function"] == {"name": "local_shell",
                                                      "arguments": {"command": ["ls"]}}  # fmt: skip
    assert tool == {"role": "tool", "tool_call_id": "c1", "name": "local_shell", "content": "a.txt"}


def test_free_text_input_goes_both_ways_under_one_name() -> None:
    items = [{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** a\n"},
             {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}]  # fmt: skip
    function = turns(items)[0]["tool_calls"][0]["function"]
    assert function == {"name": "patch", "arguments": {"input": "*** a\n"}}


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ([{"role": "user", "content": "a"}, {"role": "user", "content": [IMAGE]}],
         "input[1].content[0]"),
        ([{"content": "a"}, 3], "input[1]"),
        ([{"type": "message", "content": "a"}], "input[0].role"),
        ([{"role": "user", "content": 3}], "input[0].content"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name"),
        ([call(), result([{"type": "input_text", "text": 3}])], "input[1].output[0].text"),
        ([{"type": 3}], "input[0].type"),
        ([{"type": "reasoning", "summary": 3}], "input[0].summary"),
        ([], "input"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_requests_own_field(said: Any, field: str) -> None:
    with pytest.raises(Refused) as caught:
        translated = translate(input_items(said), NONE)
        try:
            normalise(translated.messages, "some/model")
        except Refused as refused:
            raise translated.located(refused) from None
    assert caught.value.field == field
    assert "messages[" not in caught.value.message


def test_a_field_is_counted_from_the_clients_own_first_item() -> None:
    earlier = input_items([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    own = input_items([{"role": "user", "content": [IMAGE]}])
    translated = translate([*earlier, *own], NONE, num_before=2)
    with pytest.raises(Refused) as caught:
        normalise(translated.messages, "some/model")
    said = translated.located(caught.value)
    assert said.field == "input[0].content[0]"
    assert "some/model" in said.message and "input[0].content[0]" in said.message


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_thoughts_come_back_from_their_seal_and_nothing_else_does(thoughts: str) -> None:
    assert unsealed(sealed(thoughts)) == thoughts
    assert unsealed("gAAAA" + sealed(thoughts)) is None
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed(thoughts)}
    said = turns([item, {"role": "assistant", "content": "x"}])[0]
    assert said.get("reasoning_content", "") == thoughts


def test_a_seal_that_is_broken_is_not_ours() -> None:
    assert unsealed("mlxbun1.%%") is None
    assert unsealed("mlxbun1.gA==") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call",
     "mcp_call", "local_shell_call", "shell_call_output", "web_search_call", "x"])  # fmt: skip
KEYS = st.sampled_from(
    ["role", "content", "summary", "call_id", "name", "arguments", "output", "namespace", "id",
     "input", "encrypted_content", "action"])  # fmt: skip
VALUES = JSON | st.sampled_from(["user", "assistant", "c1"])
ITEMS = st.lists(
    st.builds(lambda kind, rest: {**rest, "type": kind}, KINDS, st.dictionaries(KEYS, VALUES)),
    max_size=6,
)


@given(ITEMS)
def test_any_items_are_turns_or_a_refusal_that_names_one_of_their_fields(items: Any) -> None:
    try:
        translated = translate(input_items(items), NONE)
        try:
            said = normalise(translated.messages, "some/model")
        except Refused as refused:
            raise translated.located(refused) from None
    except Refused as refused:
        assert (refused.field or "").startswith("input")
        return
    assert {turn["role"] for turn in said} <= {"system", "user", "assistant", "tool"}


def tool(name: str, kind: str = "function", **more: Any) -> dict[str, Any]:
    return {"type": kind, "name": name, **more}


def test_groups_are_flattened_and_hosted_tools_are_named_not_shown() -> None:
    tools = response_tools(
        [
            tool("run", description="d", parameters={"type": "object"}, strict=True),
            tool("agents", "namespace", tools=[tool("wait"), tool("run", strict=False)]),
            {"type": "web_search"},
            {"type": "web_search"},
            {"type": "image_generation"},
        ]
    )
    assert [t["function"] for t in tools.shown] == [
        {"name": "run", "description": "d", "parameters": {"type": "object"}, "strict": True},
        {"name": "wait", "parameters": {"type": "object", "properties": {}}},
        {"name": "agents__run", "parameters": {"type": "object", "properties": {}}},
    ]
    assert tools.hosted == ("web_search", "image_generation")
    wait, run = tools.called("wait"), tools.called("agents__run")
    assert (wait.name, wait.namespace) == ("wait", "agents")
    assert (run.name, run.namespace) == ("run", "agents")
    assert tools.called("run").namespace is None
    assert tools.called("unknown").name == "unknown"
    assert tools.prompt_name("run", "agents") == "agents__run"
    group = tool("agents", "namespace", tools=[tool("run")])
    said = turns([call("run", namespace="agents")], [tool("run"), group])
    assert said[0]["tool_calls"][0]["function"]["name"] == "agents__run"


def test_the_input_of_a_custom_tool_is_kept_to_its_regular_expression() -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "a|b+"}
    tools = response_tools([tool("pick", "custom", format=grammar)])
    (shown,) = tools.shown
    assert shown["function"]["strict"] is True
    (text,) = shown["function"]["parameters"]["properties"].values()
    assert text["pattern"] == "^(?:a|b+)$"
    assert shown["function"]["description"] == "The input follows this regex grammar:\na|b+"
    assert tools.free == []
    odd = [{"syntax": "regex"}, {"definition": 3}, {"type": "grammar"}, {"type": "text"}, "x"]
    for form in odd:
        said = response_tools([tool("pick", "custom", format=form)])
        assert (said.free, "strict" in said.shown[0]["function"]) == ([], False)


def test_a_custom_tool_is_a_function_of_one_text_whose_grammar_is_told() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tools = response_tools([tool("patch", "custom", description="d", format=grammar)])
    (shown,) = tools.shown
    assert shown["function"]["parameters"]["required"] == ["input"]
    assert shown["function"]["description"] == (
        "d\n\nThe input follows this lark grammar:\nstart: /.+/"
    )
    assert tools.called("patch").kind == "custom"
    assert tools.free == ["patch"]
    (odd,) = response_tools([tool("patch", "custom", description=3, format={"type": "text"})]).shown
    assert "description" not in odd["function"]


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ([3], "tools[0]"),
        ([{"type": "function"}], "tools[0].name"),
        ([{"type": 3}], "tools[0].type"),
        ([tool("a"), tool("a")], "tools[1].name"),
        ([tool("g", "namespace")], "tools[0].tools"),
        ([tool("g", "namespace", tools=[tool("")])], "tools[0].tools[0].name"),
    ],
)
def test_a_tool_that_is_none_is_refused(tools: Any, field: str) -> None:
    with pytest.raises(Refused) as caught:
        response_tools(tools)
    assert caught.value.field == field


def test_what_is_said_of_a_function_is_said_of_the_tool_that_it_was() -> None:
    tools = response_tools([{"type": "web_search"}, tool("g", "namespace", tools=[tool("a")])])
    refused = Refused("invalid_value", "tools[0].function.parameters is no schema",
                      "tools[0].function.parameters")  # fmt: skip
    located = translate([], tools).located(refused)
    assert located.field == "tools[1].tools[0].parameters"
    assert located.message == "tools[1].tools[0].parameters is no schema"


def test_only_the_allowed_tools_are_kept() -> None:
    tools = response_tools([tool("a"), tool("b")])
    assert [t["function"]["name"] for t in tools.only(frozenset({"b", "c"})).shown] == ["b"]
