"""Chat templates: the Jinja programs of models, run as transformers runs them.

They come with models, so they run in Jinja's sandbox.  A template may refuse a conversation;
then it is asked again with the same text in stricter forms, and only then is the client told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from mlxbun.adapters.tokenizer.template_probes import PROBE_TOOL, Losses, losses
from mlxbun.domain.conversation import Turn, fold_system, well_formed_json
from mlxbun.domain.conversation.call_ids import with_named_ids, with_names, with_single_calls
from mlxbun.domain.conversation.plain_tools import with_plain_schemas
from mlxbun.domain.conversation.template_forms import (
    forms,
    has_calls,
    with_late_system_told,
    with_results_within,
)
from mlxbun.domain.conversation.told_tools import with_told_tools
from mlxbun.domain.refusal import Refused

DEFAULT = "default"
FOR_TOOLS = "tool_use"
_REASONING = "reasoning_content"
_EFFORT = "reasoning_effort"
# Arguments as they are asked for, and as some templates call them.
_ALIASES = (("enable_thinking", "thinking"), (_EFFORT, "thinking_effort"))
_KIMI = "<|tool_calls_section_begin|>"
_TOOL_ROLE = re.compile(r"==\s*['\"]tool['\"]")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

# What a template's own code can raise on turns that its author did not think of.
_FAILURES = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
             RecursionError)  # fmt: skip


class ChatTemplate:
    """A model's templates by name: one, or one more for conversations with tools.

    `variables` are what they know of the model, such as bos_token, and what arguments may replace.
    """

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, Any]) -> None:
        self._variables = {**variables, "documents": None, "add_generation_prompt": True}
        self._templates = {name: self._opened(source) for name, source in sources.items()}

    def _opened(self, source: str) -> _Opened:
        template = _compile(source)
        found = Losses()
        if isinstance(template, Template):
            found = losses(lambda turns: self._probed(template, turns))
        return _Opened(
            template,
            tools="tools" in source,
            calls="tool_calls" in source,
            one_call="tool_calls[0]" in source,
            named_ids=_KIMI in source,
            results_within="tool_responses" in source and _TOOL_ROLE.search(source) is None,
            efforts=_efforts(source),
            losses=found,
        )

    def _probed(self, template: Template, turns: Sequence[Turn]) -> str | None:
        said = {"messages": [_aliased(turn) for turn in turns], "tools": [PROBE_TOOL]}
        try:
            return template.render(self._variables | {"enable_thinking": False} | said)
        except _FAILURES:
            return None

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
    ) -> str:
        """Return the prompt.  Raises Refused, quoting the template, when it refuses all forms."""
        opened, template = self._chosen(tools)
        turns, tools = opened.suited(turns, tools)
        listings: list[Any] = [well_formed_json(list(tools), "tools") or None]
        # Templates for tools alone go through the list of them without asking for one.
        listings.append(with_plain_schemas(listings[0]) if tools else [])
        variables = {
            **self._variables,
            **opened.named(well_formed_json(arguments, "chat_template_kwargs")),
            "add_generation_prompt": True,
        }
        first: Exception | None = None
        for listed in listings:
            for form in forms(turns, texts_apart=opened.losses.beside_calls):
                messages = [_aliased(turn) for turn in form]
                try:
                    return template.render(variables | {"messages": messages, "tools": listed})
                except _FAILURES as error:
                    first = first or error
        said = str(first) or type(first).__name__
        raise Refused(
            "invalid_value", f"the model's chat template refuses the messages: {said}", "messages"
        ) from first

    def _chosen(self, tools: Sequence[object]) -> tuple[_Opened, Template]:
        names = (FOR_TOOLS, DEFAULT) if tools else (DEFAULT, FOR_TOOLS)
        name = next((n for n in (*names, *self._templates) if n in self._templates), DEFAULT)
        opened = self._templates[name]
        # A template that Jinja cannot read must not keep the model from completing plain text.
        if isinstance(opened.template, TemplateError):
            raise Refused(
                "unsupported",
                f"the model's chat template cannot be read: {opened.template}",
                "messages",
            )
        return opened, opened.template


class _Opened(Struct, frozen=True):
    """A template, and what it knows: of tools, calls, more than one of them in a turn.

    With `named_ids` it shows of calls their ids alone, with `results_within` results alone that
    are in the turns that called.
    """

    template: Template | TemplateError
    tools: bool
    calls: bool
    one_call: bool
    named_ids: bool
    results_within: bool
    efforts: Sequence[str]
    losses: Losses

    def suited(
        self, turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Turn], Sequence[Mapping[str, Any]]]:
        """Return a conversation and tools of which the template leaves nothing out."""
        called = has_calls(turns)
        if not self.tools and (tools or called):
            return with_told_tools(turns, tools), ()
        if not self.calls and called:
            return with_told_tools(turns, ()), tools
        turns = with_names(turns)
        if self.losses.late_system:
            turns = with_late_system_told(turns)
        if self.losses.system_before_results and (tools or called):
            turns = fold_system(turns)
        if self.one_call:
            turns = with_single_calls(turns)
        if self.named_ids:
            turns = with_named_ids(turns)
        if self.results_within:
            turns = with_results_within(turns)
        return turns, tools

    def named(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `arguments` in the template's own words."""
        said = dict(arguments)
        if (effort := said.get(_EFFORT)) in _EFFORTS:
            said[_EFFORT] = self.efforts[_EFFORTS.index(effort)]
        for name, own in _ALIASES:
            if name in said:
                said.setdefault(own, said[name])
        return said


def transcript(turns: Sequence[Turn], tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the prompt for a model without a template: who said what, then "Assistant:"."""
    if tools or has_calls(turns):
        turns = with_told_tools(turns, tools)
    said = [f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns]
    return "\n\n".join([*said, "Assistant:"])


def _aliased(turn: Turn) -> Turn:
    """Return `turn` with what templates expect in more than one way.

    Reasoning has the name that gpt-oss's reads, too; arguments of calls are text where they are
    used as such.
    """
    if _REASONING in turn:
        turn = {"thinking": turn[_REASONING], **turn}
    if "tool_calls" in turn:
        turn = {**turn, "tool_calls": [_with_text(call) for call in turn["tool_calls"]]}
    return turn


def _with_text(call: Turn) -> Turn:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _Arguments(function["arguments"])}}


class _Arguments(dict[str, Any]):
    """A call's arguments: an object that is its JSON where a template joins it to a text."""

    def __str__(self) -> str:
        return _to_json(self)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def _efforts(source: str) -> Sequence[str]:
    """Return for each of _EFFORTS the word for it in a template: the nearest of those it knows."""
    known = [i for i, word in enumerate(_EFFORTS) if f"'{word}'" in source or f'"{word}"' in source]
    if "<|channel|>" in source:  # gpt-oss's takes any word, and the model knows three
        known = [_EFFORTS.index(word) for word in ("low", "medium", "high")]
    if len(known) < 2:
        return _EFFORTS
    return [_EFFORTS[min(known, key=lambda k: (abs(k - i), -k))] for i in range(len(_EFFORTS))]


def _compile(source: str) -> Template | TemplateError:
    try:
        return _ENVIRONMENT.from_string(source)
    except TemplateError as error:
        return error


class _Generation(Extension):
    """{% generation %} marks what the assistant said, for training; here it shows its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does; Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _from_json(text: object) -> object:
    """Return what JSON says, as llama.cpp's templates ask for; an object is what it says."""
    return json.loads(text) if isinstance(text, str) else text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    untyped = cast(Any, environment)
    untyped.filters["tojson"] = _to_json
    untyped.filters["fromjson"] = _from_json
    untyped.globals["raise_exception"] = _raise_exception
    untyped.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
