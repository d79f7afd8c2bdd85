"""How a call is to be written, for a grammar that makes a model write one.

The other direction of the readers: what stands around a tool's arguments in a family's markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mlxbun.domain.conversation.markup.families import Family

# How arguments are written between `begin` and `end`, in xgrammar's words.
Style = Literal["json", "qwen_xml", "minimax_xml", "deepseek_xml", "glm_xml", "gemma"]


class CallTag(Struct, frozen=True):
    """A call of `tool` is `begin`, its arguments, `end`."""

    tool: str
    begin: str
    end: str


class CallTags(Struct, frozen=True):
    """Calls of an answer: `first`, a tag, then `between` and a tag any number of times, `last`.

    A model that was not made to call begins a call by writing `trigger`, with which `first` and
    the first tag's `begin`, joined, start.
    """

    tags: tuple[CallTag, ...]
    style: Style
    trigger: str
    first: str = ""
    between: str = ""
    last: str = ""


class _Form(Struct, frozen=True):
    """`begin` and `end` with NAME for the tool's name."""

    begin: str
    end: str
    style: Style = "json"
    trigger: str = ""
    first: str = ""
    between: str = ""
    last: str = ""


def _listed(open: str, close: str, begin: str = '{"name": "NAME", "arguments": ') -> _Form:
    """Return the form of calls in a list of JSON."""
    return _Form(begin, "}", trigger=open, first=f"{open}[", between=", ", last=f"]{close}")


_FORMS = {
    "hermes": _Form(
        '<tool_call>\n{"name": "NAME", "arguments": ',
        "}\n</tool_call>",
        trigger="<tool_call>",
        between="\n",
    ),
    "qwen": _Form(
        "<tool_call>\n<function=NAME>\n",
        "\n</function>\n</tool_call>",
        "qwen_xml",
        trigger="<tool_call>",
        between="\n",
    ),
    "seed": _Form(
        "<seed:tool_call>\n<function=NAME>\n",
        "\n</function>\n</seed:tool_call>",
        "qwen_xml",
        trigger="<seed:tool_call>",
        between="\n",
    ),
    "nemotron": _listed("<TOOLCALL>", "</TOOLCALL>"),
    "call-list": _listed("<tool_calls>", "</tool_calls>"),
    "apertus": _listed("<|tools_prefix|>", "<|tools_suffix|>", '{"NAME": '),
    "kimi3": _Form(
        '<|open|>call tool="NAME" index="1"<|sep|><|open|>json type="object"<|sep|>',
        "<|close|>json<|sep|><|close|>call<|sep|>",
        trigger="<|open|>tools<|sep|>",
        first="<|open|>tools<|sep|>",
        last="<|close|>tools<|sep|>",
    ),
    "glm": _Form("<tool_call>NAME\n", "\n</tool_call>", "glm_xml", trigger="<tool_call>"),
    "minimax": _Form(
        '<invoke name="NAME">\n',
        "</invoke>\n",
        "minimax_xml",
        trigger="<minimax:tool_call>",
        first="<minimax:tool_call>\n",
        last="</minimax:tool_call>",
    ),
    "dsml": _Form(
        '<｜DSML｜invoke name="NAME">\n',
        "</｜DSML｜invoke>\n",
        "deepseek_xml",
        trigger="<｜DSML｜function_calls>",
        first="<｜DSML｜function_calls>\n",
        last="</｜DSML｜function_calls>",
    ),
    "gemma4": _Form("<|tool_call>call:NAME", "<tool_call|>", "gemma", trigger="<|tool_call>"),
    "mistral": _Form("[TOOL_CALLS]NAME[ARGS]", "", trigger="[TOOL_CALLS]"),
    "deepseek": _Form(
        "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
        first="<｜tool▁calls▁begin｜>",
        last="<｜tool▁calls▁end｜>",
    ),
    "kimi": _Form(
        "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        trigger="<|tool_calls_section_begin|>",
        first="<|tool_calls_section_begin|>",
        last="<|tool_calls_section_end|>",
    ),
    "granite": _Form(
        '{"name": "NAME", "arguments": ',
        "}",
        trigger="<|tool_call|>",
        first="<|tool_call|>[",
        between=", ",
        last="]",
    ),
    "cohere": _Form(
        '{"tool_call_id": "0", "tool_name": "NAME", "parameters": ',
        "}",
        trigger="<|START_ACTION|>",
        first="<|START_ACTION|>[",
        between=", ",
        last="]<|END_ACTION|>",
    ),
    # Their own notations of arguments are none that a grammar is made of: JSON, which is read too.
    "lfm": _listed("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo": _listed("<function_calls>", "</function_calls>"),
    "llama4": _Form('{"name": "NAME", "parameters": ', "}", trigger='{"name": ', between="; "),
    "minicpm": _Form('<function name="NAME">', "</function>", trigger='<function name="'),
    "muse": _Form(
        '<atem:invoke name="NAME">',
        "</atem:invoke>",
        trigger="<atem:function_calls>",
        first="<atem:function_calls>",
        last="</atem:function_calls>",
    ),
    "longcat": _Form(
        '<longcat_tool_call>{"name": "NAME", "arguments": ',
        "}</longcat_tool_call>",
        trigger="<longcat_tool_call>",
    ),
    "function-gemma": _Form(
        "<start_function_call>call:NAME",
        "<end_function_call>",
        trigger="<start_function_call>",
    ),
    "llama": _Form('{"name": "NAME", "parameters": ', "}", trigger='{"name": ', between="; "),
    "harmony": _Form(
        "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        "<|call|>",
        trigger="<|channel|>commentary to=",
        between="<|start|>assistant",
    ),
}


def call_tags(family: Family, tools: Sequence[str]) -> CallTags | None:
    """Return how `family` writes calls of `tools`, or reads them at least; None if unknown."""
    form = _FORMS.get(family.name)
    if form is None:
        return None
    tags = tuple(CallTag(t, form.begin.replace("NAME", t), form.end) for t in tools)
    return CallTags(tags, form.style, form.trigger, form.first, form.between, form.last)
