"""Calls in notations of their own: Gemma's unquoted objects, and Python's call expressions."""

from __future__ import annotations

from msgspec import Struct

from mlxbun.domain.conversation.markup.json_calls import (
    Found,
    Shape,
    bare_json,
    bare_list,
    enclosed,
    read_json,
)
from mlxbun.domain.conversation.markup.literals import Reader, Syntax, as_json
from mlxbun.domain.conversation.markup.source import (
    Markers,
    Source,
    Steps,
    Strings,
    accept,
    ahead,
    at_end,
    brackets,
    until,
)
from mlxbun.domain.conversation.markup.tools import Call, Tools, as_object, name_before

_CALL = "call:"
_BRACE = Markers(["{"])
_PAREN = Markers(["("])
_QUOTES = "\"'"


class Unquoted(Struct, frozen=True):
    """Calls as `open` call:NAME{key:value,...} `close`; strings stand between `delimiter`s."""

    open: str
    close: str
    delimiter: str

    def shape(self, source: Source, tools: Tools) -> Steps[Found]:
        """Read the calls between `open` and `close`."""
        calls: list[Call] = []
        known = True
        strings = Strings('"', (self.delimiter,), stop=self.close)
        if not (yield from accept(source, _CALL)):
            return None
        while True:
            header, brace = yield from until(source, _BRACE, limit=tools.longest_name + 64)
            if not brace:
                return None
            text, closed = yield from brackets(source, strings, depth=1)
            if not closed and not source.text.startswith(self.close):
                return None
            name = tools.known(header)
            syntax = Syntax(raw=self.delimiter, bare=True, unclosed=not closed)
            arguments = as_json("{" + text, syntax)
            known = known and name is not None and arguments is not None
            calls.append(Call(name or "", arguments or ""))
            if (yield from accept(source, self.close, _CALL)) != _CALL:
                return calls if known else []


GEMMA4 = Unquoted("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Unquoted("<start_function_call>", "<end_function_call>", "<escape>")


def read_expressions(text: str, syntax: Syntax, tools: Tools) -> Found:
    """Return the calls of a list of Python call expressions, or of JSON if that is there."""
    if text.startswith(("[{", "{")):
        return read_json(text, syntax, tools)
    reader = Reader(text, syntax)
    calls: list[Call] = []
    try:
        if not reader.take("["):
            return None
        while not reader.take("]"):
            name = tools.known(reader.name())
            if not reader.take("("):
                return None
            pairs = reader.pairs(")", "=")
            if name is None:
                return []
            calls.append(Call(name, as_object(pairs)))
            reader.take(",")
        reader.end()
    except ValueError:
        return None
    return calls


def expressions(close: str) -> Shape:
    """Return the shape of a list of call expressions, or of some without brackets, then `close`."""
    listed = enclosed(close, _QUOTES, (), read_expressions)

    def shape(source: Source, tools: Tools) -> Steps[Found]:
        if (yield from ahead(source, ("[", "{"))):
            return (yield from listed(source, tools))
        calls: list[Call] = []
        while True:
            name, _ = yield from name_before(source, _PAREN, tools)
            if name is None:
                return None
            text, closed = yield from brackets(source, Strings(_QUOTES), depth=1)
            found = read_expressions(f"[{name}({text}]", Syntax(), tools) if closed else None
            if not found:
                return found
            calls += found
            if (yield from accept(source, close, ",")) == close or (yield from at_end(source)):
                return calls

    return shape


def python_tag(source: Source, tools: Tools) -> Steps[Found]:
    """Read what follows Llama 3's tag: JSON, or call expressions."""
    if (yield from ahead(source, ("{",))):
        return (yield from bare_json(source, tools))
    return (yield from _after_tag(source, tools))


_after_tag = expressions("<|eom_id|>")
lfm = expressions("<|tool_call_end|>")
llama4 = expressions("<|python_end|>")
olmo = expressions("</function_calls>")


def bare_expressions(source: Source, tools: Tools) -> Steps[Found]:
    """Read a list of call expressions, or of JSON objects, that begins an answer."""
    if not (yield from accept(source, "[")):
        return None
    if (yield from ahead(source, ("{",))):
        return (yield from bare_list(source, tools))
    name, _ = yield from name_before(source, _PAREN, tools)
    if name is None:
        return None
    text, closed = yield from brackets(source, Strings(_QUOTES), depth=2)
    return read_expressions(f"[{name}({text}", Syntax(), tools) if closed else None
