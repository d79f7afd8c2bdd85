"""Calls in notations of their own: Gemma's unquoted objects, and Python's call expressions."""

from __future__ import annotations

from msgspec import Struct

from mlxbun.domain.conversation.markup.json_calls import Found, enclosed, read_json
from mlxbun.domain.conversation.markup.literals import Reader, Syntax, as_json
from mlxbun.domain.conversation.markup.source import (
    Markers,
    Source,
    Steps,
    Strings,
    accept,
    brackets,
    until,
)
from mlxbun.domain.conversation.markup.tools import Call, Tools, as_object

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
        strings = Strings('"', (self.delimiter,))
        if not (yield from accept(source, _CALL)):
            return None
        while True:
            header, brace = yield from until(source, _BRACE, limit=tools.longest_name + 64)
            if not brace:
                return None
            text, closed = yield from brackets(source, strings, depth=1)
            if not closed:
                return None
            name = tools.known(header)
            arguments = as_json("{" + text, Syntax(raw=self.delimiter, bare=True))
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


lfm = enclosed("<|tool_call_end|>", _QUOTES, (), read_expressions)
llama4 = enclosed("<|python_end|>", _QUOTES, (), read_expressions)


def bare_expressions(source: Source, tools: Tools) -> Steps[Found]:
    """Read a list of call expressions that begins an answer."""
    begun = yield from accept(source, "[")
    header, paren = yield from until(source, _PAREN, limit=tools.longest_name + 16)
    if not begun or not paren or tools.known(header) is None:
        return None
    rest, closed = yield from brackets(source, Strings(_QUOTES), depth=2)
    return read_expressions(f"[{header}({rest}", Syntax(), tools) if closed else None
