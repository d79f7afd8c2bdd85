"""A conversation with calls, rendered in a family's notation and read back: the same calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.notations import CALLS, template
from mlxbun.adapters.tokenizer.chat_template import ChatTemplate
from mlxbun.domain.conversation import CallArguments, CallBegun, Text
from mlxbun.domain.conversation.markup import Family, call_tags, family_of
from mlxbun.domain.conversation.markup.notations import NOTATIONS

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "sure": {"type": "boolean"},
    "maybe": {"type": ["string", "null"]},
    "items": {"type": "array"},
    "more": {"type": "object"},
}
FUNCTION = {"parameters": {"type": "object", "properties": PROPERTIES}}
TOOLS = [
    {"type": "function", "function": {"name": name, **FUNCTION}} for name in ("look_up", "send-it")
]
PYTHON = [
    {"type": "function", "function": {"name": name, **FUNCTION}} for name in ("look_up", "send")
]
TEMPLATES = {name: ChatTemplate({"default": template(name)}, {}) for name in CALLS}

# What the notations themselves use: no text can hold it, since nothing escapes it there.
MARKUP = ("<", "｜", "]]>", "[/")
plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = plain.filter(lambda text: not any(m in text for m in MARKUP) and text != "null")
keys = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "count": st.integers(),
        "ratio": numbers,
        "sure": st.booleans(),
        "maybe": st.none() | texts,
        "items": st.lists(values, max_size=3),
        "more": st.dictionaries(keys, values, max_size=3),
    },
)


def written(family: str, calls: list[tuple[str, dict[str, Any]]], tools: Any) -> tuple[str, str]:
    """Return a prompt and the answer that the template writes after it."""
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": said}}
        for i, (name, said) in enumerate(calls)
    ]
    question = {"role": "user", "content": "hi"}
    prompt = TEMPLATES[family].render([question], tools, {})
    answer = {"role": "assistant", "content": "", "tool_calls": made}
    whole = TEMPLATES[family].render([question, answer], tools, {})
    assert whole.startswith(prompt)
    return prompt, whole.removeprefix(prompt).removesuffix("<|assistant|>")


def read(family: Family, prompt: str, text: str, tools: Any) -> tuple[str, list[tuple[str, Any]]]:
    reader = family.reader(tools, prompt)
    parts = [part for char in text for part in reader.feed(char)]
    parts += reader.flush()
    names = [part.name for part in parts if isinstance(part, CallBegun)]
    said = [json.loads(part.text) for part in parts if isinstance(part, CallArguments)]
    shown = "".join(part.text for part in parts if isinstance(part, Text))
    return shown, list(zip(names, said, strict=True))


def test_every_notation_has_a_template_that_names_it() -> None:
    assert CALLS.keys() == NOTATIONS.keys() | {"harmony"}
    for name in CALLS:
        assert family_of(template(name), lambda _: False).name == name


@pytest.mark.parametrize("family", CALLS)
@settings(max_examples=40)
@given(data=st.data())
def test_calls_that_a_template_writes_are_read_back(family: str, data: st.DataObject) -> None:
    tools = PYTHON if family in ("lfm", "llama4") else TOOLS
    names = st.sampled_from([tool["function"]["name"] for tool in tools])  # type: ignore[index]
    calls = data.draw(st.lists(st.tuples(names, arguments), min_size=1, max_size=3))
    prompt, text = written(family, calls, tools)
    found = read(family_of(template(family), lambda _: False), prompt, text, tools)
    assert found == ("", calls)


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (("<|tool_call_start|>", "<|tool_call_end|>"), "lfm"),
        (("<|channel|>", "<|message|>", "<|constrain|>"), "harmony"),
        (("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"), "mistral"),
        (("<|python_tag|>", "<|eom_id|>"), "llama"),
        (("<tool_call>",), "hermes"),
        ((), "hermes"),
    ],
)
def test_where_a_template_says_nothing_of_calls_the_vocabulary_does(
    tokens: tuple[str, ...], name: str
) -> None:
    assert family_of("{{ tools }}", tokens.__contains__).name == name
    silent = "harmony" if name == "harmony" else "hermes"
    assert family_of("{# of no functions #}", tokens.__contains__).name in (silent, "hermes")


@pytest.mark.parametrize(
    ("template", "tokens", "tag"),
    [
        ("<think></think>", (), "<think>"),
        ("", ("<think>", "</think>"), "<think>"),
        ("[THINK][/THINK]", ("[/THINK]",), "[THINK]"),
        ("<|channel>thought<channel|>", (), "<|channel>thought"),
        ("</think>", ("<channel|>",), "<think>"),
        ("<channel|></think>", ("<channel|>",), "<|channel>thought"),
        ("", (), None),
    ],
)
def test_a_model_thinks_in_the_tags_that_it_knows(
    template: str, tokens: tuple[str, ...], tag: str | None
) -> None:
    thought = family_of(template, tokens.__contains__).thought
    assert (thought and thought.open) == tag


SAID = {
    "json": '{"text": "a } ] <escape> </x>"}',
    "qwen_xml": "<parameter=text>a</parameter>",
    "minimax_xml": '<parameter name="text">a</parameter>',
    "deepseek_xml": '<｜DSML｜parameter name="text" string="true">a</｜DSML｜parameter>',
    "glm_xml": "<arg_key>text</arg_key><arg_value>a</arg_value>",
    "gemma": '{text:<|"|>a<|"|>}',
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_grammar_makes_a_model_write_is_read_as_a_call(name: str) -> None:
    family = Family(NOTATIONS.get(name))
    tags = call_tags(family, ["look_up", "send-it"])
    assert tags is not None
    said = SAID[tags.style]
    calls = [tag.begin + said + tag.end for tag in tags.tags]
    text = tags.first + tags.between.join(calls) + tags.last
    assert text.startswith(tags.trigger)
    value = "a } ] <escape> </x>" if tags.style == "json" else "a"
    expected = [("look_up", {"text": value}), ("send-it", {"text": value})]
    assert read(family, "", text, TOOLS) == ("", expected)
