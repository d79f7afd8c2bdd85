"""What an answer's parts become, whatever they are and however they come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from mlxbun.adapters.http.responses_output import Output
from mlxbun.domain.conversation import CallArguments, CallBegun, CallEnded, Part, Reasoning, Text
from mlxbun.domain.conversation.response_tools import ResponseTools, response_tools

ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
TOOLS = response_tools(
    [
        {"type": "function", "name": "run"},
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "group", "tools": [{"type": "function", "name": "wait"}]},
    ]
)
Spoken = tuple[str, str]  # what it is (text, thoughts, or the name of a tool), and what it says

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ARGUMENTS = st.dictionaries(st.sampled_from(["input", "a"]), WORDS).map(json.dumps)
SPOKEN = st.lists(
    st.tuples(st.sampled_from(["text", "thoughts"]), WORDS)
    | st.tuples(st.sampled_from(["run", "patch", "wait", "other"]), ARGUMENTS),
    max_size=6,
)


def parts_of(spoken: Sequence[Spoken], size: int) -> list[list[Part]]:
    """Return the parts of an answer, each text in pieces of `size` characters."""
    pieces: list[list[Part]] = []
    calls = count()
    for kind, text in spoken:
        cut = [text[i : i + size] for i in range(0, len(text), size)]
        if kind == "text":
            pieces.extend([Text(c)] for c in cut)
        elif kind == "thoughts":
            pieces.extend([Reasoning(c)] for c in cut)
        else:
            index = next(calls)
            pieces.append([CallBegun(index, kind)])
            pieces.extend([CallArguments(index, c)] for c in cut)
            pieces.append([CallEnded(index)])
    return pieces


def run(pieces: Sequence[Sequence[Part]], *, cut: bool = False) -> tuple[list[Any], list[Any]]:
    """Return the items and the events that `pieces` become, as JSON."""
    ids = count()
    output = Output(TOOLS, lambda prefix: f"{prefix}{next(ids)}", seals=True)
    for piece in pieces:
        output.feed(piece)
    output.end(cut=cut)
    return msgspec.to_builtins(output.items), msgspec.to_builtins(output.take_events())


@settings(max_examples=40)  # the official types are slow
@given(SPOKEN, st.integers(1, 8))
def test_items_do_not_depend_on_the_pieces_and_are_of_the_official_types(
    spoken: list[Spoken], size: int
) -> None:
    items, _ = run(parts_of(spoken, size))
    together = [part for piece in parts_of(spoken, 100) for part in piece]
    assert items == run([together])[0]
    for item in items:
        ITEM.validate_json(json.dumps(item), strict=True)
    texts = "".join(c["text"] for i in items if i["type"] == "message" for c in i["content"])
    assert texts == "".join(text for kind, text in spoken if kind == "text")
    thoughts = [i["summary"][0]["text"] for i in items if i["type"] == "reasoning"]
    assert "".join(thoughts) == "".join(text for kind, text in spoken if kind == "thoughts")
    calls = [i for i in items if i["type"].endswith("_call")]
    assert [i["name"] for i in calls] == [k for k, _ in spoken if k not in ("text", "thoughts")]


@given(SPOKEN, st.integers(1, 8))
def test_the_events_add_up_to_the_items(spoken: list[Spoken], size: int) -> None:
    items, events = run(parts_of(spoken, size))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added: list[Any] = []
    said: dict[str, str] = {}
    done: list[Any] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(added) == len(done)  # one is open at a time
            added.append(event["item"])
        elif kind == "output_item.done":
            done.append(event["item"])
        else:
            assert event["item_id"] == added[-1]["id"] and len(done) == len(added) - 1
            if kind.endswith(".delta"):
                said[event["item_id"]] = said.get(event["item_id"], "") + event["delta"]
    assert done == items
    assert [item["id"] for item in added] == [item["id"] for item in items]
    for item in items:
        whole = {
            "message": lambda i: i["content"][0]["text"],
            "reasoning": lambda i: i["summary"][0]["text"],
            "function_call": lambda i: i["arguments"],
            "custom_tool_call": lambda i: i["input"],
        }[item["type"]](item)
        assert said.get(item["id"], "") == whole


@given(SPOKEN, st.integers(1, 8), st.integers(0, 60))
def test_cut_anywhere_no_item_is_half_a_call(spoken: list[Spoken], size: int, at: int) -> None:
    items, events = run(parts_of(spoken, size)[:at], cut=True)
    calls = [item for item in items if item["type"].endswith("_call")]
    assert all(item["status"] == "completed" for item in calls)
    for item in calls:
        if item["type"] == "function_call":
            json.loads(item["arguments"])
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == items
    assert any(item["type"] != "reasoning" for item in items)


def test_a_custom_tool_is_given_its_text_and_other_arguments_as_they_are() -> None:
    says = [('{"input": "a\\nb"}', "a\nb"), ('{"text": "a"}', '{"text": "a"}'), ("[1]", "[1]")]
    for arguments, text in says:
        items, _ = run(parts_of([("patch", arguments)], 3))
        assert items[0]["input"] == text


def test_without_tools_a_call_has_the_name_that_the_model_said() -> None:
    output = Output(ResponseTools(), lambda prefix: prefix)
    output.feed([CallBegun(0, "x"), CallArguments(0, "{}"), CallEnded(0)])
    (item,) = output.items
    assert msgspec.to_builtins(item)["name"] == "x"
