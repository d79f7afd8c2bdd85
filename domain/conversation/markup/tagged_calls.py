"""Calls whose arguments stand in tags of their own, as bare text.

Qwen's XML (and Seed's), GLM's keys and values, MiniCPM, MiniMax, LongCat, DeepSeek's DSML, Muse,
and Kimi K3.
Nothing is escaped there: a value ends where what follows can only follow a value.
"""

from __future__ import annotations

import json

from msgspec import Struct
from msgspec.structs import replace

from mlxbun.domain.conversation.markup.json_calls import Found, as_json_object, tagged_json
from mlxbun.domain.conversation.markup.literals import Syntax, as_json, is_json
from mlxbun.domain.conversation.markup.source import (
    Markers,
    Source,
    Steps,
    Strings,
    accept,
    ahead,
    brackets,
    skip_space,
    until,
)
from mlxbun.domain.conversation.markup.tools import Call, Tools, as_object, name_before

_CDATA, _CDATA_END = "<![CDATA[", "]]>"
_MAX_KEY = 256
_STRINGS = ('string="true', 'type="string')


class Tags(Struct, frozen=True):
    """How a family spells a call.

    A section holds calls; `call` NAME `name_end` parameters `call_end`, a parameter being
    `key` KEY `key_end` `value` VALUE `value_end`.  Without `name_end` the first key ends a name,
    without `call` the section's opening begins one.  What stands between `name_end` and
    `head_end` says nothing.  A value may be `framed` by a newline at each end.  After a key, an
    attribute may say whether a value is a string.  `json` stands around arguments that are one
    JSON object; keys may be `escaped`.
    """

    section: tuple[str, str]
    call: str
    name_end: str
    call_end: str
    key: str
    key_end: str
    value_end: str
    value: str = ""
    framed: bool = False
    head_end: str = ""
    json: tuple[str, str] = ("", "")
    escaped: bool = False

    def first(self, source: Source, tools: Tools) -> Steps[Found]:
        """Read a section's first call, after the section's opening."""
        if (yield from ahead(source, ("{",))):  # some models of these families write JSON
            return (yield from tagged_json(self.section[1])(source, tools))
        if self.call and not (yield from accept(source, self.call)):
            return None
        return (yield from self.one(source, tools))

    def one(self, source: Source, tools: Tools) -> Steps[Found]:
        """Read a call after its opening.  One that is not closed is none."""
        name = yield from self._name(source, tools)
        if name is None:
            return None
        pairs: dict[str, str] = {}
        if (yield from ahead(source, ("{",))):
            return (yield from self._json(source, name))
        if self.json[0] and (yield from accept(source, self.json[0])):
            return (yield from self._json(source, name))
        while True:
            begun = yield from accept(source, self.key, self.call_end)
            if not begun:
                return None
            if begun == self.call_end:
                break
            header, marker = yield from until(source, Markers([self.key_end]), limit=_MAX_KEY)
            if not marker or (self.value and not (yield from accept(source, self.value))):
                return None
            text = yield from self._value(source)
            if text is None:
                return None
            key, _, attributes = header.partition('" ')
            if self.escaped:
                key = _unescaped(key)
            key = key.strip()
            pairs[key] = _typed(text, attributes) or tools.typed(name, key, text)
        yield from self._end(source)
        return [Call(name, as_object(pairs))]

    def _json(self, source: Source, name: str) -> Steps[Found]:
        """Read the rest of a call whose arguments are JSON, as a grammar may have it."""
        skip_space(source)
        text, closed = yield from brackets(source, Strings('"'))
        if self.json[1]:
            yield from accept(source, self.json[1])
        if not closed or not (yield from accept(source, self.call_end)):
            return None
        yield from self._end(source)
        arguments = as_json_object(text)
        return [] if arguments is None else [Call(name, arguments)]

    def _end(self, source: Source) -> Steps[None]:
        """Take the end of the section if it comes."""
        if self.section[1] and self.section[1] != self.call_end:
            yield from accept(source, self.section[1])

    def _name(self, source: Source, tools: Tools) -> Steps[str | None]:
        ends = [self.name_end] if self.name_end else [self.key, self.call_end, "{"]
        name, marker = yield from name_before(source, Markers(ends), tools)
        if name is None:
            return None
        if not self.name_end:
            source.give_back(marker)
        if self.head_end:
            _, marker = yield from until(source, Markers([self.head_end]), limit=_MAX_KEY)
        return name if marker else None

    def _value(self, source: Source) -> Steps[str | None]:
        """Take a value and its end; None if none comes."""
        if self.value_end.startswith("</") and (yield from ahead(source, (_CDATA,))):
            skip_space(source)
            source.take(len(_CDATA))
            text, marker = yield from until(source, Markers([_CDATA_END]))
            return text if marker and (yield from accept(source, self.value_end)) else None
        text = ""
        while True:
            more, marker = yield from until(source, Markers([self.value_end]))
            if not marker:
                return None
            text += more
            if (yield from ahead(source, (self.key, self.call_end))):
                break
            text += marker  # the value itself says it
        if self.framed:
            text = text.removeprefix("\n").removesuffix("\n")
        return text


def _unescaped(key: str) -> str:
    return key.removesuffix('"').replace("&quot;", '"').replace("&amp;", "&")


def _typed(text: str, attributes: str) -> str | None:
    """Return `text` as the JSON that a parameter's own attributes say; None if they do not."""
    if not attributes:
        return None
    if any(said in attributes for said in _STRINGS):
        return json.dumps(text, ensure_ascii=False)
    bare = text.strip()
    return bare if is_json(bare) else as_json(bare, Syntax(lenient=True))


def _invoking(prefix: str, section: str) -> Tags:
    """Return the tags of the families that invoke: `prefix` stands before each tag's name."""
    return Tags(
        section=(f"<{prefix}{section}>", f"</{prefix}{section}>"),
        call=f'<{prefix}invoke name="',
        name_end='">',
        call_end=f"</{prefix}invoke>",
        key=f'<{prefix}parameter name="',
        key_end='">',
        value_end=f"</{prefix}parameter>",
    )


QWEN = Tags(
    section=("<tool_call>", "</tool_call>"),
    call="<function=",
    name_end=">",
    call_end="</function>",
    key="<parameter=",
    key_end=">",
    value_end="</parameter>",
    framed=True,
)
SEED = replace(QWEN, section=("<seed:tool_call>", "</seed:tool_call>"))
GLM = Tags(
    section=("<tool_call>", "</tool_call>"),
    call="",
    name_end="",
    call_end="</tool_call>",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
)
LONGCAT = Tags(
    section=("<longcat_tool_call>", "</longcat_tool_call>"),
    call="",
    name_end="",
    call_end="</longcat_tool_call>",
    key="<longcat_arg_key>",
    key_end="</longcat_arg_key>",
    value="<longcat_arg_value>",
    value_end="</longcat_arg_value>",
)
MINICPM = Tags(
    section=("", ""),
    call='<function name="',
    name_end='">',
    call_end="</function>",
    key='<param name="',
    key_end='">',
    value_end="</param>",
    framed=True,
)
MINIMAX = Tags(
    section=("<minimax:tool_call>", "</minimax:tool_call>"),
    call='<invoke name="',
    name_end='">',
    call_end="</invoke>",
    key='<parameter name="',
    key_end='">',
    value_end="</parameter>",
)
DSML = _invoking("｜DSML｜", "function_calls")
DSML4 = replace(DSML, section=("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"))  # DeepSeek V4
DSML41 = _invoking("｜DSML｜ ", "calls")
MUSE = _invoking("atem:", "function_calls")
KIMI3 = Tags(
    section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    call='<|open|>call tool="',
    name_end='"',
    head_end="<|sep|>",
    call_end="<|close|>call<|sep|>",
    key='<|open|>argument key="',
    key_end="<|sep|>",
    value_end="<|close|>argument<|sep|>",
    json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
    escaped=True,
)
