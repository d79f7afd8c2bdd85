"""Calls whose arguments are JSON.

In tags (Hermes, Qwen), bare (Llama 3), or after a name between markers (Mistral, DeepSeek, Kimi).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from mlxbun.domain.conversation.markup.literals import Syntax, as_json
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

# What a shape reads after its opener: calls; [] is markup that calls nothing known, and None is
# no markup at all, so that what it took is read again as text.
Found = Sequence[Call] | None
Shape = Callable[[Source, Tools], Steps[Found]]
Parse = Callable[[str, Syntax, Tools], Found]

_NAMES = ("name", "function", "tool", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_BESIDE = frozenset((*_NAMES, "type", "id", "tool_call_id"))  # what is no argument there
_ASIDE = ('"type"', '"id"')  # what may come before them in a call
_KINDS = ("function", "tool_call", "tool_use")
_BARE_NAMES = tuple(f'"{key}"' for key in _NAMES)
_BARE_KEYS = (*_ASIDE, *_BARE_NAMES, *(f'"{key}"' for key in _ARGUMENTS))
_JSON = Strings('"')
_QUOTE = Markers(['"'])
_FENCE = "```"
_OPENING = ("{", "[", "(")
_MAX_ASIDE = 64
_ONE_TOO_MANY = "}"
_LINE = Markers(["\n"])
_INDEX = re.compile(r":\d+\Z")
_STRICT, _LENIENT = Syntax(), Syntax(lenient=True)
_CLOSED_LATE = Syntax(lenient=True, unclosed=True)


def enclosed(close: str, strings: str, raw: tuple[str, ...], parse: Parse) -> Shape:
    """Return the shape of values in brackets, then `close`.

    A `close` that is missing is forgiven, and so are brackets that are not closed before it.
    """
    inner = Strings(strings, raw, stop=close)

    def shape(source: Source, tools: Tools) -> Steps[Found]:
        if (yield from accept(source, _FENCE)):
            yield from until(source, _LINE, limit=16)
        if not (yield from ahead(source, _OPENING)):
            return None
        skip_space(source)
        text, closed = yield from brackets(source, inner)
        if closed and (calls := parse(text, _STRICT, tools)) is not None:
            yield from accept(source, _FENCE)
            if calls:
                calls = [*calls, *(yield from more(source, tools))]
            if (yield from accept(source, close, _ONE_TOO_MANY)) == _ONE_TOO_MANY:
                yield from accept(source, close)
            return calls
        meant = yield from _to_end(source, close, text, closed)
        if meant is None:
            return None
        text = meant.removesuffix(_FENCE)
        return parse(text, _LENIENT, tools) or parse(text, _CLOSED_LATE, tools) or []

    def more(source: Source, tools: Tools) -> Steps[list[Call]]:
        """Read the other calls before the same `close`, one after another or with commas."""
        calls: list[Call] = []
        while between := (yield from ahead(source, (*_OPENING, ","))):
            taken = skip_space(source)
            taken += source.take(1) if between == "," else ""
            if (yield from ahead(source, _OPENING)):
                taken += skip_space(source)
                text, closed = yield from brackets(source, inner)
                if closed and (found := parse(text, _STRICT, tools)):
                    calls += found
                    continue
                taken += text
            source.give_back(taken)
            break
        return calls

    return shape


def _to_end(source: Source, close: str, text: str, closed: bool) -> Steps[str | None]:
    """Return what `text`, which has a slip in it, was meant to be, and take its end; None for none.

    What its author took for the end is the next `close` there is.
    """
    end = Markers([close])
    if closed or source.text.startswith(close):
        rest, marker = yield from until(source, end)
        text += rest
    else:  # the end came within a string, or what looked like one
        at, marker = end.find(text)
        if marker:
            source.give_back(text[at + len(marker) :])
        text = text[:at]
    return text.strip() if marker else None


def tagged_json(close: str) -> Shape:
    """Return the shape of a JSON object or list of them, then `close`."""
    return enclosed(close, '"', (), read_json)


def bare_json(source: Source, tools: Tools) -> Steps[Found]:
    """Read a JSON object that begins an answer and is a call."""
    calls = yield from _bare(source, tools, "")
    if calls:
        yield from accept(source, ";")
    return calls


def bare_list(source: Source, tools: Tools) -> Steps[Found]:
    """Read the rest of a list of such objects, after its opening."""
    return (yield from _bare(source, tools, "["))


def _bare(source: Source, tools: Tools, before: str) -> Steps[Found]:
    begun, depth = yield from _begun(source, tools)
    if not begun:
        return None
    rest, closed = yield from brackets(source, _JSON, depth=depth + len(before))
    return read_json(before + begun + rest, _STRICT, tools, bare=True) if closed else None


def _begun(source: Source, tools: Tools) -> Steps[tuple[str, int]]:
    """Take the first words of a call, with its open brackets; ("", 0) for what begins none.

    An answer that is other JSON shows it there, and need not be held back to its end.
    """
    none = "", 0
    if not (yield from accept(source, "{")):
        return none
    text = "{"
    while True:
        key = yield from accept(source, *_BARE_KEYS)
        if not key or not (yield from accept(source, ":")):
            return none
        text += f"{key}:"
        if key not in _ASIDE:
            break
        if not (yield from accept(source, '"')):
            return none
        said, quote = yield from until(source, _QUOTE, limit=_MAX_ASIDE)
        meant = said in _KINDS if key == '"type"' else "\\" not in said
        if not quote or not meant or not (yield from accept(source, ",")):
            return none
        text += f'"{said}",'
    if key in _BARE_NAMES and (yield from accept(source, '"')):
        name, _ = yield from name_before(source, _QUOTE, tools)
        return none if name is None else (text + json.dumps(name, ensure_ascii=False), 1)
    if key == '"name"' or not (yield from accept(source, "{")):
        return none
    return text + "{", 2


class Headed(Struct, frozen=True):
    """Calls as `open` NAME `middle` JSON `close`, maybe within a section.

    `name` takes the name out of what stands before `middle`.
    """

    open: str
    middle: str
    close: str
    section: tuple[str, str] = ("", "")
    name: Callable[[str], str] = str.strip

    def one(self, source: Source, tools: Tools) -> Steps[Found]:
        """Read a call after its `open`."""
        header, marker = yield from until(
            source, Markers([self.middle, "{"]), limit=tools.longest_name + 64
        )
        if marker == "{":  # without `middle`, which is left out now and then
            source.give_back(marker)
        name = tools.known(self.name(header))
        if marker and header.strip() == "function":  # DeepSeek V3 and R1 have a kind there
            header, marker = yield from until(source, _LINE, limit=tools.longest_name + 8)
            name = tools.known(header)
            yield from accept(source, "```json")
        if not marker or name is None:
            return None
        arguments = yield from self._arguments(source)
        if arguments is None:
            return None
        if self.section[1]:
            yield from accept(source, self.section[1])
        return [Call(name, arguments)] if arguments else []

    def _arguments(self, source: Source) -> Steps[str | None]:
        """Take a call's arguments and its end; "" for what is no object, None for no call."""
        ends = (self.close,) if self.close else ()
        if not (yield from ahead(source, ("{", *ends))):
            return None
        if ends and (yield from accept(source, *ends)):
            return "{}"
        skip_space(source)
        text, closed = yield from brackets(source, Strings('"', stop=self.close))
        if closed and (arguments := as_json_object(text)) is not None:
            yield from accept(source, _FENCE)
            if ends:
                yield from accept(source, *ends)
            return arguments
        if not ends:
            return "" if closed else None
        meant = yield from _to_end(source, self.close, text, closed)
        if meant is None:
            return None
        return as_json_object(meant.removesuffix(_FENCE), unclosed=True) or ""

    def first(self, source: Source, tools: Tools) -> Steps[Found]:
        """Read the first call of a section after the section's opening."""
        if not (yield from accept(source, self.open)):
            return None
        return (yield from self.one(source, tools))


MISTRAL = Headed("[TOOL_CALLS]", "[ARGS]", "", name=lambda header: header.split("[CALL_ID]")[0])


def mistral(source: Source, tools: Tools) -> Steps[Found]:
    """Read what follows [TOOL_CALLS]: a list of calls, or one call with [ARGS]."""
    if not (yield from ahead(source, ("[", "{"))):
        return (yield from MISTRAL.one(source, tools))
    skip_space(source)
    text, closed = yield from brackets(source, _JSON)
    return (
        read_json(text, _STRICT, tools) or read_json(text, _LENIENT, tools) or []
        if closed
        else None
    )


def kimi_name(header: str) -> str:
    """Return NAME of functions.NAME:3."""
    return _INDEX.sub("", header.strip())


def as_json_object(text: str, *, unclosed: bool = False) -> str | None:
    """Return the JSON object that `text` is or was meant to be; None for none.

    With `unclosed` its author ended it, and brackets that are open are closed.
    """
    if _decoded(text) is not None:
        return text
    found = as_json(text, _LENIENT)
    if found is None and unclosed:
        found = as_json(text, _CLOSED_LATE)
    return found if found is not None and found.startswith("{") else None


def read_json(text: str, syntax: Syntax, tools: Tools, *, bare: bool = False) -> Found:
    """Return the calls that `text` describes; [] if it calls nothing known, None if no JSON."""
    if syntax is not _STRICT:
        found = as_json(text, syntax)
        if found is None:
            return None
        text = found
    if text.startswith("["):
        try:
            raws = msgspec.json.decode(text, type=list[msgspec.Raw])
        except (msgspec.DecodeError, RecursionError):
            return None
        objects = [_decoded(bytes(raw).decode()) for raw in raws]
    else:
        objects = [_decoded(text)]
        if objects == [None]:
            return None
    calls = [None if o is None else _call(o, tools, bare=bare) for o in objects]
    return [] if None in calls else cast(list[Call], calls)


def _decoded(text: str) -> dict[str, str] | None:
    """Return the texts of a JSON object's values, as they are written."""
    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return {key: bytes(raw).decode() for key, raw in found.items()}


def _call(found: Mapping[str, str], tools: Tools, *, bare: bool) -> Call | None:
    for key in ("function", "tool"):  # the call within what names its kind
        if key in found and (inner := _decoded(found[key])) is not None:
            return _call(inner, tools, bare=bare)
    said: Any = next((json.loads(found[k]) for k in _NAMES if found.get(k, "").startswith('"')), "")
    written = next((found[k] for k in _ARGUMENTS if k in found), None)
    if len(found) == 1 and not bare and (name := tools.known(next(iter(found)))) is not None:
        written, said = found[next(iter(found))], name  # Apertus's: {NAME: arguments}
    if written is None and bare:
        return None
    if written is None:  # beside the name, rather than within an object of their own
        written = as_object({k: found[k] for k in found if k not in _BESIDE})
    arguments = _arguments(written)
    if arguments is None:
        return None
    if not said and (inner := _decoded(arguments)) and inner.get("name", "").startswith('"'):
        said = json.loads(inner.pop("name"))
        arguments = as_object(inner)
    name = tools.known(said)
    return None if name is None else Call(name, arguments)


def _arguments(written: str | None) -> str | None:
    """Return the JSON object that a call's arguments are; they may be quoted, or nothing."""
    if written is None or written == "null":
        return "{}"
    if written.startswith('"'):
        inner = json.loads(written)
        return as_json_object(inner) if inner.strip() else "{}"
    return written if written.startswith("{") else None
