"""What models write, taken apart: every family's markup, at every split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxbun.domain.conversation import (
    CallArguments,
    CallBegun,
    CallEnded,
    Part,
    PlainText,
    Reasoning,
    Text,
    TextReader,
)
from mlxbun.domain.conversation.markup import Family, family_of
from mlxbun.domain.conversation.markup.families import THINK, THOUGHTS
from mlxbun.domain.conversation.markup.notations import NOTATIONS

LOOKS = {"city": {"type": "string"}, "n": {"type": "integer"}, "all": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "parameters": {"properties": LOOKS}}},
    {"type": "function", "function": {"name": "wait-2"}},
]
CHANNELS = next(tags for tags in THOUGHTS if tags.open.startswith("<|channel>"))
FAMILIES = {
    name: Family(notation, notation.thought or (CHANNELS if name == "gemma4" else THINK))
    for name, notation in NOTATIONS.items()
} | {"harmony": Family(None)}

Call = tuple[str, str]


def parts(reader: TextReader, pieces: Sequence[str], *, cut: bool = False) -> list[Part]:
    """Return what `reader` makes of the pieces; neighbours of one kind joined."""
    found = [part for piece in pieces for part in reader.feed(piece)]
    joined: list[Part] = []
    for part in (*found, *reader.flush(cut=cut)):
        last = joined[-1] if joined else None
        if isinstance(part, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            joined[-1] = Reasoning(last.text + part.text)
        else:
            joined.append(part)
    return joined


def read(family: str, text: str, prompt: str = "", *, tools: Any = TOOLS) -> list[Part]:
    """Return the parts of an answer, which are the same at every split into two and into all."""
    made = FAMILIES[family]
    whole = parts(made.reader(tools, prompt), [text])
    assert parts(made.reader(tools, prompt), list(text)) == whole
    for at in range(1, len(text)):
        assert parts(made.reader(tools, prompt), [text[:at], text[at:]]) == whole, at
    return whole


def unframed(family: str, text: str) -> str:
    """Return `text` without what stands around visible text."""
    thought = FAMILIES[family].thought
    for frame in thought.frames if thought else ():
        text = text.replace(frame, "")
    return text


def calls(*said: Call) -> list[Part]:
    return [
        part
        for i, (name, arguments) in enumerate(said)
        for part in (CallBegun(i, name), CallArguments(i, arguments), CallEnded(i))
    ]


LOOK = ("look", '{"city": "Rome", "n": 2}')
WAIT = ("wait-2", "{}")

# How each family writes LOOK and WAIT in one answer, after some text.
BOTH = {
    "hermes": 'On it.\n<tool_call>\n{"name": "look", "arguments": {"city": "Rome", "n": 2}}\n'
    '</tool_call>\n<tool_call>\n{"name": "wait-2", "arguments": {}}\n</tool_call>',
    "qwen": "On it.\n\n<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=wait-2>\n</function>\n</tool_call>",
    "glm": "On it.\n<tool_call>look\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>wait-2\n</tool_call>",
    "longcat": "On it.<longcat_tool_call>look\n<longcat_arg_key>city</longcat_arg_key>\n"
    "<longcat_arg_value>Rome</longcat_arg_value>\n<longcat_arg_key>n</longcat_arg_key>\n"
    "<longcat_arg_value>2</longcat_arg_value>\n</longcat_tool_call>"
    "<longcat_tool_call>wait-2</longcat_tool_call>",
    "minicpm": 'On it.\n<function name="look"><param name="city">Rome</param><param name="n">2'
    '</param></function><function name="wait-2"></function>',
    "minimax": 'On it.\n<minimax:tool_call>\n<invoke name="look">\n<parameter name="city">Rome'
    '</parameter>\n<parameter name="n">2</parameter>\n</invoke>\n<invoke name="wait-2">\n</invoke>'
    "\n</minimax:tool_call>",
    "muse": 'On it.\n<atem:function_calls>\n<atem:invoke name="look">\n<atem:parameter name="city">'
    'Rome</atem:parameter>\n<atem:parameter name="n">2</atem:parameter>\n</atem:invoke>\n'
    '<atem:invoke name="wait-2">\n</atem:invoke>\n</atem:function_calls>',
    "dsml": 'On it.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="look">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="wait-2">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "gemma4": 'On it.<|tool_call>call:look{city:<|"|>Rome<|"|>,n:2}<tool_call|>'
    "<|tool_call>call:wait-2{}<tool_call|>",
    "function-gemma": "On it.<start_function_call>call:look{city:<escape>Rome<escape>,n:2}"
    "<end_function_call><start_function_call>call:wait-2{}<end_function_call>",
    "deepseek": "On it.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>"
    '{"city": "Rome", "n": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>wait-2\n'
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": "On it.<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0"
    '<|tool_call_argument_begin|>{"city": "Rome", "n": 2}<|tool_call_end|><|tool_call_begin|>'
    "functions.wait-2:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "mistral": 'On it.[TOOL_CALLS]look[ARGS]{"city": "Rome", "n": 2}'
    "[TOOL_CALLS]wait-2[CALL_ID]a1b2[ARGS]{}",
    "lfm": "On it.<|tool_call_start|>[look(city='Rome', n=2), wait-2()]<|tool_call_end|>",
    "llama": 'On it.\n<|python_tag|>{"name": "look", "parameters": {"city": "Rome", "n": 2}}; '
    '{"name": "wait-2", "parameters": {}}',
    "granite": 'On it.<|tool_call|>[{"name": "look", "arguments": {"city": "Rome", "n": 2}}, '
    '{"name": "wait-2", "arguments": {}}]',
    "cohere": "On it.<|START_ACTION|>[\n    "
    '{"tool_call_id": "0", "tool_name": "look", "parameters": {"city": "Rome", "n": 2}},\n    '
    '{"tool_call_id": "1", "tool_name": "wait-2", "parameters": {}}\n]<|END_ACTION|>',
    "llama4": 'On it.<|python_start|>[look(city="Rome", n=2), wait-2()]<|python_end|>',
    "seed": "On it.\n<seed:tool_call>\n<function=look>\n<parameter=city>Rome</parameter>\n"
    "<parameter=n>2</parameter>\n</function>\n</seed:tool_call>"
    "<seed:tool_call>\n<function=wait-2>\n</function>\n</seed:tool_call>",
    "nemotron": 'On it.\n<TOOLCALL>[{"name": "look", "arguments": {"city": "Rome", "n": 2}}, '
    '{"name": "wait-2", "arguments": {}}]</TOOLCALL>',
    "call-list": 'On it.\n<tool_calls>[{"name": "look", "arguments": {"city": "Rome", "n": 2}}, '
    '{"name": "wait-2", "arguments": {}, "id": "c1"}]</tool_calls>',
    "apertus": 'On it.<|tools_prefix|>[{"look": {"city": "Rome", "n": 2}}, {"wait-2": {}}]'
    "<|tools_suffix|>",
    "olmo": 'On it.\n<function_calls>look(city="Rome", n=2)\nwait-2()\n</function_calls>',
    "kimi3": "On it.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
    'tool="look" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>Rome<|close|>'
    'argument<|sep|><|open|>argument key="n" type="number"<|sep|>2<|close|>argument<|sep|><|close|>'
    'call<|sep|><|open|>call tool="wait-2" index="2"<|sep|><|open|>json type="object"<|sep|>{}'
    "<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
    "harmony": "<|channel|>commentary<|message|>On it.<|end|><|start|>assistant<|channel|>"
    'commentary to=functions.look <|constrain|>json<|message|>{"city": "Rome", "n": 2}<|call|>'
    "<|start|>assistant to=functions.wait-2<|channel|>commentary json<|message|>{}<|call|>",
}


def test_every_family_is_tried() -> None:
    assert BOTH.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_text_and_two_calls_are_told_apart(family: str) -> None:
    assert read(family, BOTH[family]) == [Text("On it."), *calls(LOOK, WAIT)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_cut_off_is_never_half_sent(family: str) -> None:
    """Each beginning of the answer has whole calls alone."""
    text = BOTH[family]
    whole = calls(LOOK, WAIT)
    for at in range(len(text)):
        found = parts(FAMILIES[family].reader(TOOLS, ""), [text[:at]])
        made = [part for part in found if not isinstance(part, Text | Reasoning)]
        assert made == whole[: len(made)] and len(made) % 3 == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_is_made_again_ends_an_answer_that_must_call(family: str) -> None:
    reader = FAMILIES[family].reader(TOOLS, "", no_repeats=True)
    text = BOTH[family]
    found = parts(reader, [text, text])
    assert [part for part in found if not isinstance(part, Text)] == calls(LOOK, WAIT)
    again = FAMILIES[family].reader(TOOLS, "")
    assert len(parts(again, [text, text])) >= len(found) and not again.done


@pytest.mark.parametrize("family", FAMILIES)
def test_half_a_call_that_the_limit_cut_off_is_not_shown_either(family: str) -> None:
    text = BOTH[family]
    for at in range(len(text)):
        found = parts(FAMILIES[family].reader(TOOLS, ""), [text[:at]], cut=True)
        shown = "".join(part.text for part in found if isinstance(part, Text))
        assert "look" not in shown and "wait" not in shown, text[:at]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_unknown_tools_are_text(family: str) -> None:
    text = BOTH[family].replace("look", "lock").replace("wait-2", "weight")
    found = read(family, text)
    assert [type(part) for part in found] == [Text]
    if family != "harmony":  # whose first message was text by its own account
        assert found == [Text(unframed(family, text))]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"harmony"}))
def test_without_tools_all_is_text(family: str) -> None:
    assert read(family, BOTH[family], tools=[]) == [Text(unframed(family, BOTH[family]))]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"harmony"}))
def test_markup_in_a_thought_is_no_call(family: str) -> None:
    tags = FAMILIES[family].thought
    assert tags is not None
    text = f"{tags.open}\n{BOTH[family]}\n{tags.close}\n\nDone."
    assert read(family, text) == [Reasoning(BOTH[family]), Text("Done.")]
    opened = f"{BOTH[family]}\n{tags.close}\n\nDone."
    prompt = f"user: hi\nassistant: {tags.open}\n"
    assert read(family, opened, prompt) == [Reasoning(BOTH[family]), Text("Done.")]


PLAIN = [n for n, f in FAMILIES.items() if f.notation and not f.notation.calls.sentinel]
ONE = {
    "hermes": '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    "qwen": "<tool_call><function=look></function></tool_call>",
    "glm": "<tool_call>look</tool_call>",
    "minicpm": '<function name="look"></function>',
}


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_markup_in_a_block_of_code_is_no_call(family: str, fence: str) -> None:
    text = f"So:\n  {fence}text\n{BOTH[family]}\n{fence}\nSee?"
    assert read(family, text) == [Text(text)]


@pytest.mark.parametrize("family", ONE)
@pytest.mark.parametrize("around", ["Write `{}` to call.", 'like "{}", yes', "```{}```"])
def test_markup_in_code_and_quotes_is_no_call(family: str, around: str) -> None:
    text = around.format(ONE[family])
    assert read(family, text) == [Text(text)]


@pytest.mark.parametrize("family", ONE)
def test_a_call_after_code_is_one(family: str) -> None:
    text = f"`x` and\n```\ny\n```\nso {ONE[family]} then"
    code = Text("`x` and\n```\ny\n```\nso")
    assert read(family, text) == [code, *calls(("look", "{}")), Text("then")]


PIECES = {
    name: [*"\n a\"'`{}[]<>:,=", "```\n", "look", "wait-2", "<think>", "</think>", '"name":', text]
    + [text[at:end] for at, end in pairwise(sorted({0, len(text), *range(3, len(text), 7)}))]
    + [token for token in sorted(made.shown(with_tools=True))]
    for name, made in FAMILIES.items()
    for text in [BOTH[name]]
}


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
def test_any_text_is_the_same_at_any_split(family: str, data: st.DataObject) -> None:
    made = FAMILIES[family]
    text = "".join(data.draw(st.lists(st.sampled_from(PIECES[family]), max_size=30)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=20))
    prompt = "" if made.thought is None else data.draw(st.sampled_from(["", made.thought.open]))
    edges = sorted({0, len(text), *cuts})
    split = [text[at:end] for at, end in pairwise(edges)]
    whole = parts(made.reader(TOOLS, prompt), [text])
    assert parts(made.reader(TOOLS, prompt), split) == whole
    assert parts(made.reader(TOOLS, prompt), list(text)) == whole
    # What a call says is one JSON object, and calls are whole and counted.
    said = [part for part in whole if not isinstance(part, Text | Reasoning)]
    for i, (begun, arguments, ended) in enumerate(
        zip(said[::3], said[1::3], said[2::3], strict=True)
    ):
        assert isinstance(begun, CallBegun) and begun.name in ("look", "wait-2")
        assert isinstance(arguments, CallArguments)
        assert isinstance(json.loads(arguments.text), dict)
        assert ended == CallEnded(i) and begun.index == arguments.index == i


@given(st.text(st.characters(exclude_characters="<[{", exclude_categories=["Cs"])))
def test_a_text_without_markup_is_shown_as_it_is(text: str) -> None:
    for family in FAMILIES:
        found = parts(FAMILIES[family].reader(TOOLS, ""), list(text))
        assert found == ([Text(text)] if text else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_text_before_a_call_is_shown_as_it_comes(family: str) -> None:
    reader = FAMILIES[family].reader(TOOLS, "")
    if family == "harmony":
        reader.feed("<|channel|>final<|message|>")
    assert reader.feed("Let me") == (Text("Let me"),)
    assert reader.feed(" see") == (Text(" see"),)
    assert reader.feed("! ") == (Text("!"),)  # space that may stand before a call waits
    assert reader.feed("Yes") == (Text(" Yes"),)


def markers(family: Family) -> set[str]:
    """Return what a reader of visible text must look out for."""
    assert family.notation is not None
    markup, thought = family.notation.calls, family.thought
    tags = (thought.open, thought.close, *thought.frames) if thought else ()
    return {*markup.openers, *markup.closers, *tags}


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"harmony"}))
@settings(max_examples=30)
@given(data=st.data())
def test_no_more_is_held_back_than_may_begin_markup(family: str, data: st.DataObject) -> None:
    """After each character all is shown but spaces at the end, and what a marker begins with."""
    found = markers(FAMILIES[family])
    begun = [marker[:n] for marker in found for n in range(1, len(marker))]
    pieces = st.sampled_from([*begun, "a", " b", "\n", "<", "[", "{", "|", '"', "`", "< ", "</"])
    text = "x" + "".join(data.draw(st.lists(pieces, max_size=12)))
    reader = FAMILIES[family].reader(TOOLS, "")
    shown = ""
    for at, char in enumerate(text, start=1):
        shown += "".join(p.text for p in reader.feed(char) if isinstance(p, Text))
        fed = text[:at]
        if any(marker in fed for marker in found):
            return
        held = max((n for n in range(1, len(fed)) if fed[-n:] in begun), default=0)
        assert shown == fed[: len(fed) - held].rstrip()


def test_a_thought_is_shown_as_it_comes() -> None:
    reader = FAMILIES["hermes"].reader([], "<think>\n")
    assert reader.feed("Hm") == (Reasoning("Hm"),)
    assert reader.feed(", so") == (Reasoning(", so"),)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>\na\n\nb\n</think>\n\nc\n", [Reasoning("a\n\nb"), Text("c\n")]),
        ("\n<think>a</think>c", [Reasoning("a"), Text("c")]),
        ("<think></think>\n\nc", [Text("c")]),
        ("<think>never closed", [Reasoning("never closed")]),
        ("The <think> tag, </think> too", [Text("The <think> tag, </think> too")]),
        ("</think>c", [Text("c")]),
        ("  c", [Text("  c")]),
        (" \n", [Text(" \n")]),
        ("", []),
    ],
)
@pytest.mark.parametrize("tools", [TOOLS, []])
def test_thoughts_are_told_from_text(text: str, found: list[Part], tools: Any) -> None:
    assert read("hermes", text, tools=tools) == found


@pytest.mark.parametrize("prompt", ["a<think>", "a<think>\n", "a<think> \n\n"])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a thought</think>answer", [Reasoning("a thought"), Text("answer")]),
        ("<think>\ntwice</think>answer", [Reasoning("twice"), Text("answer")]),
        ("cut off by the limit", [Reasoning("cut off by the limit")]),
        ("\n</think>\n\nanswer", [Text("answer")]),
    ],
)
def test_a_prompt_that_opens_a_thought_begins_in_it(
    prompt: str, text: str, found: list[Part]
) -> None:
    assert read("hermes", text, prompt) == found
    assert read("hermes", text, prompt, tools=[]) == found


@pytest.mark.parametrize("prompt", ["<think>\n\n</think>\n\n", "say <think>\nassistant:", ""])
def test_a_prompt_that_closes_its_thought_begins_in_the_answer(prompt: str) -> None:
    assert read("hermes", "answer", prompt) == [Text("answer")]


def test_a_model_that_does_not_think_has_no_thoughts() -> None:
    reader = Family(NOTATIONS["hermes"]).reader([], "<think>")
    assert isinstance(reader, PlainText)
    assert reader.feed("<think>a</think>") == (Text("<think>a</think>"),)


def test_thoughts_may_come_between_calls() -> None:
    text = f"<think>a</think>{ONE['hermes']}<think>b</think>{ONE['hermes']}"
    found = read("hermes", text)
    first, second = calls(("look", "{}"), ("look", "{}"))[:3], calls(*[("look", "{}")] * 2)[3:]
    assert found == [Reasoning("a"), *first, Reasoning("b"), *second]


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize("tools", [TOOLS, []])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HARMONY + "Hi!", [Reasoning("Hm."), Text("Hi!")]),
        (HARMONY + "Hi!<|return|>", [Reasoning("Hm."), Text("Hi!")]),
        (HARMONY.replace("<|end|>", ""), [Reasoning("Hm.")]),
        ("<|channel|>analysis<|message|>cut", [Reasoning("cut")]),
        ("<|channel|>ana", []),
        ("no header", [Text("no header")]),
        ("<|message|>half a header", [Text("half a header")]),
    ],
)
def test_harmony_has_channels(text: str, found: list[Part], tools: Any) -> None:
    assert read("harmony", text, tools=tools) == found


def test_harmony_calls_end_with_a_token_that_is_not_seen() -> None:
    text = "<|channel|>commentary to=functions.look<|message|>"
    assert read("harmony", text + '{"n": 1}') == calls(("look", '{"n": 1}'))
    for cut in ("", "{", '{"n": 1'):
        assert read("harmony", text + cut) == [Text(text + cut)]


ARGUMENTS = [
    '{"n": 1e400}',
    '{"n": 1.0, "m": -0.0, "k": 123456789012345678901234567890}',
    '{"a": "\\u00e9\\n\\"\\\\ </tool_call> <tool_call> ```"}',
    '{"a":[],"b":{"c":null},"d":true}',
    '{ "a" :\n1 }',
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("hermes", '<tool_call>\n{{"name": "look", "arguments": {}}}\n</tool_call>'),
        ("hermes", '{{"name": "look", "arguments": {}}}'),
        ("hermes", '<tool_call>[{{"arguments": {}, "name": "look"}}]</tool_call>'),
        ("qwen", '<tool_call>{{"name": "look", "arguments": {}}}</tool_call>'),
        ("llama", '{{"type": "function", "name": "look", "parameters": {}}}'),
        ("llama", "<function=look>{}</function>"),
        ("mistral", "[TOOL_CALLS]look[ARGS]{}"),
        ("mistral", '[TOOL_CALLS] [{{"name": "look", "arguments": {}}}]'),
        ("kimi", "<|tool_call_begin|>functions.look:7<|tool_call_argument_begin|>{}"),
        ("deepseek", "<｜tool▁call▁begin｜>look<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        ("harmony", "<|channel|>commentary to=functions.look<|message|>{}<|call|>"),
    ],
)
def test_arguments_that_are_json_are_passed_on_as_written(
    family: str, form: str, arguments: str
) -> None:
    assert read(family, form.format(arguments)) == calls(("look", arguments))


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "look", "arguments": {"n": 1}', '{"n": 1}'),
        ('{"name": "look", "arguments": {"n": 1}}}', '{"n": 1}'),
        ('{"name": "look", "arguments": {"n": 1,},}', '{"n": 1}'),
        (
            "{'name': 'look', 'arguments': {'city': \"it's\", 'n': None}}",
            '{"city": "it\'s", "n": null}',
        ),
        ('{"name": "look", "arguments": {"city": "a\nb\tc"}}', '{"city": "a\\nb\\tc"}'),
        ('{"name": "look", "arguments": {"city": "say "hi" now"}}', '{"city": "say \\"hi\\" now"}'),
        ('{"name": "look", "arguments": {"city": "\\d+"}}', '{"city": "\\\\d+"}'),
        ('{"name": "look", "arguments": {city: "a", n: True}}', '{"city": "a", "n": true}'),
        ('{"name": "look", "arguments": "{\\"n\\": 1}"}', '{"n": 1}'),
        ('{"name": "look", "arguments": ""}', "{}"),
        ('{"name": "look", "arguments": null}', "{}"),
        ('{"name": "look"}', "{}"),
        ('{"name": "functions.look", "parameters": {}}', "{}"),
        ('{"type": "function", "function": {"name": "look", "arguments": {"n": 1}}}', '{"n": 1}'),
        ('{"arguments": {"name": "look", "n": 1}}', '{"n": 1}'),
        ('```json\n{"name": "look", "arguments": {}}\n```', "{}"),
        ('{"name": "look", "n": 1, "id": "c"}', '{"n": 1}'),
        ('{"look": {"n": 1}}', '{"n": 1}'),
        ('<tool_call>\n{"name": "look", "arguments": {"n": 1}}\n</tool_call>', '{"n": 1}'),
    ],
)
def test_slips_of_small_models_are_forgiven(written: str, arguments: str) -> None:
    text = f"<tool_call>\n{written}\n</tool_call>\nmore"
    assert read("hermes", text) == [*calls(("look", arguments)), Text("more")]


@pytest.mark.parametrize(
    "written",
    ["look", "{}", "[]", '{"name": "look", "arguments": 5}', '{"name": "look", "arguments": [1]}',
     '{"name": "look", "arguments": {"n": NaN}}', '{"name": "look" "arguments": {}}', "{{{{",
     '{"name": "look", "arguments": {"city": "open}}', '[{"name": "look"}, {"name": "lock"}]',],
)  # fmt: skip
def test_what_cannot_be_told_is_text(written: str) -> None:
    text = f"<tool_call>{written}</tool_call> more"
    assert read("hermes", text) == [Text(text)]


def test_what_nests_too_deeply_is_text() -> None:
    levels = 50_000  # how many are too many depends on Python
    deep = '{"name": "look", "arguments": ' + '{"a":' * levels + "1" + "}" * (levels + 1)
    text = f"<tool_call>{deep}</tool_call>"
    assert parts(FAMILIES["hermes"].reader(TOOLS, ""), [text]) == [Text(text)]


def test_what_is_broken_does_not_hide_what_follows() -> None:
    broken = '<tool_call>{"name": "look", "arguments": {"city": "open}}</tool_call>'
    found = read("hermes", f"{broken}\n{ONE['hermes']}")
    assert found == [Text(broken), *calls(("look", "{}"))]


@pytest.mark.parametrize(
    "text",
    ['{"name": "Ann", "age": 5}', '{"city": "Rome"}', "[1, 2]", "{}",
     '{"type": "report", "of": [1]}', '{"id": 5, "of": 1}', '{"id": "a", "title": "b"}',
     '{"name": {"first": "Ann"}}', '{"args": [1, 2, 3]}', '[{"name": "Ann"}, 1]',
     '[{"city": "Rome"}, 1]', "[link](there) and more", "[looks (so)]"],
)  # fmt: skip
@pytest.mark.parametrize("family", ["hermes", "llama", "llama4"])
def test_an_answer_of_json_is_text_and_comes_early(family: str, text: str) -> None:
    assert read(family, text) == [Text(text)]
    reader = FAMILIES[family].reader(TOOLS, "")
    if len(text) > 6:
        assert any(reader.feed(char) for char in text[:-3])


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("glm", "<tool_call> is a tag"),
        ("glm", "<tool_call>loop\n"),
        ("minicpm", '<function name="x'),
        ("minimax", '<invoke name="x'),
        ("hermes", "<tool_call> is"),
        ("qwen", "<tool_call> is"),
        ("qwen", "<function=x"),
        ("olmo", "<function_calls> are"),
    ],
)
def test_what_cannot_become_a_call_any_more_is_shown_at_once(family: str, text: str) -> None:
    reader = FAMILIES[family].reader(TOOLS, "")
    shown = "".join(p.text for c in text for p in reader.feed(c) if isinstance(p, Text))
    assert shown == text.rstrip()


def test_a_value_of_a_tag_may_say_what_ends_values() -> None:
    value = "a\n</parameter>\nb</function> <parameter=x>"
    text = f"<tool_call>\n<function=look>\n<parameter=city>\n{value}\n</parameter>\n</function>"
    assert read("qwen", text) == calls(("look", json.dumps({"city": value})))
    text = (
        "<tool_call>look<arg_key>city</arg_key><arg_value>a</arg_value> b</arg_value></tool_call>"
    )
    assert read("glm", text) == calls(("look", '{"city": "a</arg_value> b"}'))
    cdata = "<![CDATA[\n</param></function>]]>"
    text = f'<function name="look"><param name="city">{cdata}</param></function>'
    assert read("minicpm", text) == calls(("look", '{"city": "\\n</param></function>"}'))


ANY_OF = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, ' a "b"\n', '" a \\"b\\"\\n"'),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "nul", '"nul"'),
        ({"type": "integer"}, "123456789012345678901234567890", "123456789012345678901234567890"),
        ({"type": "integer"}, " 5\n", "5"),
        ({"type": "integer"}, "five", '"five"'),
        ({"type": "integer"}, "05", '"05"'),
        ({"type": "number"}, "1e400", "1e400"),
        ({"type": "number"}, "1.0", "1.0"),
        ({"type": "number"}, "nan", '"nan"'),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "yes", '"yes"'),
        ({"type": "null"}, "None", "null"),
        ({"type": "object"}, '{"a": 1.0}', '{"a": 1.0}'),
        ({"type": "array"}, "['a', None]", '["a", null]'),
        ({"type": "array"}, "a, b", '"a, b"'),
        ({"type": "array"}, '"[1]"', "[1]"),
        ({"type": ["array", "string"]}, '"[1]"', '"\\"[1]\\""'),
        ({"type": "integer"}, '"x"', '"\\"x\\""'),
        (ANY_OF, "7", "7"),
        (ANY_OF, "None", "null"),
        ({"enum": [1, 2]}, "2", "2"),
        ({"enum": ["1", "2"]}, "2", '"2"'),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "5.5", '"5.5"'),
        ({"type": "integer"}, "٥", '"٥"'),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({"type": "string", "nullable": False}, "null", '"null"'),
        ({"allOf": [{"description": "a"}, {"type": "integer"}]}, "7", "7"),
        ({"const": True}, "true", "true"),
        ({"$ref": "#/$defs/n"}, "3", "3"),
        ({"$ref": "#/$defs/loop"}, "3", '"3"'),
        ({}, '{"a": 1}', '{"a": 1}'),
        ({}, "5", '"5"'),
        (True, "5", '"5"'),
        (None, "[1]", '"[1]"'),
    ],
)
def test_bare_text_gets_the_type_of_its_schema(schema: Any, written: str, value: str) -> None:
    defs = {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    properties = {} if schema is None else {"x": schema}
    parameters = {"type": "object", "properties": properties, "$defs": defs}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    text = f"<tool_call>f<arg_key>x</arg_key><arg_value>{written}</arg_value></tool_call>"
    assert read("glm", text, tools=tools) == calls(("f", '{"x": ' + value + "}"))


INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    "parameters",
    [
        {"additionalProperties": INTEGER},
        {"properties": {"y": {}}, "additionalProperties": INTEGER},
        {"anyOf": [{"properties": {"y": INTEGER}}, {"properties": {"x": INTEGER}}]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {"x": INTEGER}}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": INTEGER}}}},
    ],
)
def test_an_argument_is_found_wherever_a_schema_declares_it(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    text = "<tool_call>f<arg_key>x</arg_key><arg_value>5</arg_value></tool_call>"
    assert read("glm", text, tools=tools) == calls(("f", '{"x": 5}'))


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("glm", '<tool_call>look\n{"n": 1}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS]look{"n": 1}'),
        ("llama", "[look(n=1)]"),
        ("llama", '[{"name": "look", "parameters": {"n": 1}}]'),
        ("llama", '<function=look{"n": 1}</function>'),
        ("llama", '{"id": "a", "type": "function", "name": "look", "parameters": {"n": 1}}'),
        ("llama", '{"type": "function", "function": {"name": "look", "parameters": {"n": 1}}}'),
        ("llama4", '[{"name": "look", "parameters": {"n": 1}}]'),
        ("lfm", "<|tool_call_start|>look(n=1)<|tool_call_end|>"),
        ("olmo", "<function_calls>[look(n=1)]</function_calls>"),
        ("olmo", "<function_calls>\nlook(n=1)"),
        ("dsml", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="n" '
         'string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'),
        ("dsml", '<｜DSML｜ calls>\n<｜DSML｜ invoke name="look">\n<｜DSML｜ parameter name="n" '
         'string="false">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'),
    ],
)  # fmt: skip
def test_other_forms_that_a_family_writes_are_read(family: str, text: str) -> None:
    found = read(family, text)
    arguments = [part.text for part in found if isinstance(part, CallArguments)]
    assert [json.loads(said) for said in arguments] == [{"n": 1}]
    assert found == calls(("look", arguments[0]))


NAMED = '{"name": "look", "arguments": {}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{NAMED}\n{NAMED}\n</tool_call>",
        f"<tool_call>\n{NAMED},\n{NAMED}\n</tool_call>",
        f"<tool_call>{NAMED}</tool_call>\n</tool_call><tool_call>{NAMED}</tool_call></tool_call>",
        f"{NAMED}\n</tool_call>\n{NAMED}</tool_call>",
    ],
)
def test_calls_that_share_a_tag_or_close_it_twice_are_calls_alone(text: str) -> None:
    assert read("hermes", text) == calls(("look", "{}"), ("look", "{}"))


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("deepseek", '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"n": 1<｜tool▁call▁end｜>'),
        ("kimi", '<|tool_call_begin|>look<|tool_call_argument_begin|>{"n": 1,<|tool_call_end|>'),
        ("gemma4", "<|tool_call>call:look{n:1<tool_call|>"),
        ("function-gemma", "<start_function_call>call:look{n:1<end_function_call>"),
        ("harmony", '<|channel|>commentary to=functions.look<|message|>{"n": 1<|call|>'),
        ("cohere", '<|START_ACTION|>[{"tool_name": "look", "parameters": {"n": 1<|END_ACTION|>'),
        ("qwen", '<tool_call><function=look><parameter=n>"1"</parameter></function></tool_call>'),
        ("hermes", '<tool_call>{"name": "look", "arguments": {"n": 01}}</tool_call>'),
        ("llama", "<|python_tag|>[look(n=1)]"),
        ("llama", "<|python_tag|>look(n=1)"),
    ],
)
def test_what_its_author_ended_is_closed(family: str, text: str) -> None:
    assert read(family, text) == calls(("look", '{"n": 1}'))


def test_a_string_with_quotes_ends_where_its_call_does() -> None:
    text = (
        '<|tool_call_begin|>look<|tool_call_argument_begin|>{{"city": "6" x {}}}<|tool_call_end|>'
    )
    for end, said in (('8""', '"6\\" x 8\\""'), ('8"', '"6\\" x 8"')):
        found = read("kimi", text.format(end) + " more")
        assert found == [*calls(("look", '{"city": ' + said + "}")), Text("more")]


def test_no_arguments_at_all_are_none() -> None:
    text = "<|tool_call_begin|>look:1<|tool_call_argument_begin|><|tool_call_end|>"
    assert read("kimi", text) == calls(("look", "{}"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a <tool_", [Text("a")]),
        ("a <", [Text("a <")]),
        ("a </", [Text("a </")]),
        ('a <tool_call>\n{"na', [Text("a")]),
        ("<think>a</thi", [Reasoning("a")]),
        ("<think>a <", [Reasoning("a <")]),
        ("a\n\n", [Text("a\n\n")]),
    ],
)
def test_half_a_marker_that_the_limit_cut_off_is_not_shown(text: str, found: list[Part]) -> None:
    assert parts(FAMILIES["hermes"].reader(TOOLS, ""), [text], cut=True) == found
    assert parts(FAMILIES["hermes"].reader(TOOLS, ""), list(text), cut=True) == found


def test_what_follows_a_call_in_its_tag_and_is_none_is_text() -> None:
    text = f'<tool_call>{NAMED}, {{"name": "lock"}}</tool_call>'
    found = read("hermes", text)
    assert found == [*calls(("look", "{}")), Text(', {"name": "lock"}</tool_call>')]


@pytest.mark.parametrize("family", ["hermes", "qwen", "lfm", "kimi", "cohere"])
def test_the_end_of_a_call_that_the_limit_cut_off_is_no_text(family: str) -> None:
    text = BOTH[family]
    for at in range(len(text) - 8, len(text)):
        found = parts(FAMILIES[family].reader(TOOLS, ""), [text[:at]], cut=True)
        assert [part for part in found if isinstance(part, Text)] == [Text("On it.")]


@pytest.mark.parametrize(
    ("before", "quoted"),
    [('See "cats"', False), ("It's 'so'", False), ('He said "go."', False), ("x's'", False),
     ('like "', True), ('("', True), ("'", True), ("say \u201c", True), ("see \u00ab", True),
     ('\n"', True)],
)  # fmt: skip
def test_markup_after_a_quote_that_closes_is_a_call(before: str, quoted: bool) -> None:
    text = before + ONE["hermes"]
    shown = Text(text) if quoted else Text(before)
    assert read("hermes", text) == ([shown] if quoted else [shown, *calls(("look", "{}"))])


def test_thoughts_and_messages_are_paragraphs() -> None:
    text = f"<think>a</think>\n<think>b</think>c\n{ONE['hermes']} d"
    found = read("hermes", text)
    assert found == [Reasoning("a\n\nb"), Text("c"), *calls(("look", "{}")), Text("d")]
    message = "<|channel|>{}<|message|>{}<|end|><|start|>assistant"
    kinds = ("commentary", "a"), ("analysis", "b"), ("analysis", "c"), ("commentary", "d")
    said = "".join(message.format(*one) for one in kinds) + "<|channel|>final<|message|>e"
    assert read("harmony", said) == [Text("a"), Reasoning("b\n\nc"), Text("\n\nd\n\ne")]


@pytest.mark.parametrize("tools", [TOOLS, []])
def test_kimi_3_frames_what_it_says(tools: Any) -> None:
    said = "Hm.<|close|>think<|sep|><|open|>response<|sep|>Hi <b>|you.<|close|>response<|sep|>"
    prompt = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
    found = [Reasoning("Hm."), Text("Hi <b>|you.")]
    assert read("kimi3", said + "<|close|>message<|sep|>", prompt, tools=tools) == found
    assert read("kimi3", "<|open|>think<|sep|>" + said, tools=tools) == found


def test_apriel_thinks_until_it_says_so() -> None:
    family = family_of("tools <tool_calls> [BEGIN FINAL RESPONSE]", lambda _: False)
    prompt = "<|begin_assistant|>\nHere are my reasoning steps:\n"
    text = 'Hm.\n[BEGIN FINAL RESPONSE]\nOn it.\n<tool_calls>[{"name": "look"}]</tool_calls>'
    found = parts(family.reader(TOOLS, prompt), list(text))
    assert found == [Reasoning("Hm."), Text("On it."), *calls(("look", "{}"))]


def test_one_call_is_the_last_that_is_shown() -> None:
    for family, text in BOTH.items():
        reader = FAMILIES[family].reader(TOOLS, "", one_call=True)
        assert not reader.done
        assert parts(reader, list(text + " more")) == [Text("On it."), *calls(LOOK)]
        assert reader.done
