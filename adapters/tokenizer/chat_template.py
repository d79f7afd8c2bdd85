"""Chat templates: the Jinja programs of models, run as transformers runs them.

They come with models, so they run in Jinja's sandbox.  A template may refuse a conversation;
then it is asked again with the same text in stricter forms, and only then is the client told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mlxbun.domain.conversation import Turn, fold_system, merge_turns, well_formed_json
from mlxbun.domain.conversation.call_ids import with_short_ids, with_single_calls
from mlxbun.domain.conversation.told_tools import with_told_tools
from mlxbun.domain.refusal import Refused

DEFAULT = "default"
FOR_TOOLS = "tool_use"
_REASONING = "reasoning_content"
_EFFORT = "reasoning_effort"
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

# What a template's own code can raise on turns that its author did not think of.
_FAILURES = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
             RecursionError)  # fmt: skip


class ChatTemplate:
    """A model's templates by name: one, or one more for conversations with tools.

    `variables` are what they know of the model, such as bos_token.
    """

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self._variables = variables
        # A template that Jinja cannot read must not keep the model from completing plain text.
        self._templates = {name: _compile(source) for name, source in sources.items()}
        self._knows_tools = any("tools" in source for source in sources.values())
        self._knows_calls = any("tool_calls" in source for source in sources.values())
        self._knows_one_call = any("tool_calls[0]" in source for source in sources.values())
        self._efforts = _efforts("\n".join(sources.values()))

    def render(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
    ) -> str:
        """Return the prompt.  Raises Refused, quoting the template, when it refuses all forms."""
        template = self._chosen(tools)
        if not self._knows_tools and (tools or _calls(turns)):
            turns, tools = with_told_tools(turns, tools), ()
        elif not self._knows_calls and _calls(turns):
            turns = with_told_tools(turns, ())
        elif self._knows_one_call:
            turns = with_single_calls(turns)
        variables = {
            **self._variables,
            "documents": None,
            **well_formed_json(arguments, "chat_template_kwargs"),
            "tools": well_formed_json(list(tools), "tools") or None,
            "add_generation_prompt": True,
        }
        if (effort := variables.get(_EFFORT)) in _EFFORTS:
            variables[_EFFORT] = self._efforts[_EFFORTS.index(effort)]
        first: Exception | None = None
        for form in _forms(turns):
            try:
                return template.render(variables | {"messages": [_aliased(t) for t in form]})
            except _FAILURES as error:
                first = first or error
        said = str(first) or type(first).__name__
        raise Refused(
            "invalid_value", f"the model's chat template refuses the messages: {said}", "messages"
        ) from first

    def _chosen(self, tools: Sequence[object]) -> Template:
        names = (FOR_TOOLS, DEFAULT) if tools else (DEFAULT, FOR_TOOLS)
        name = next((n for n in (*names, *self._templates) if n in self._templates), DEFAULT)
        template = self._templates[name]
        if isinstance(template, TemplateError):
            raise Refused(
                "unsupported", f"the model's chat template cannot be read: {template}", "messages"
            )
        return template


def transcript(turns: Sequence[Turn], tools: Sequence[object]) -> str:
    """Return the prompt for a model without a template: who said what, then "Assistant:".

    Raises Refused when there are tools, which such a model cannot be told of.
    """
    if tools:
        raise Refused(
            "unsupported", "the model has no chat template, so it cannot be given tools", "tools"
        )
    said = [f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns]
    return "\n\n".join([*said, "Assistant:"])


def _forms(turns: Sequence[Turn]) -> Iterator[Sequence[Turn]]:
    """Yield `turns`, then what says the same in ways that stricter templates take."""
    yield turns
    merged = merge_turns(turns)
    if merged != turns:
        yield merged
    if any(turn["role"] == "system" for turn in turns):
        yield fold_system(turns)
    if _calls(turns):
        yield with_short_ids(turns)
        yield with_short_ids(merged)
    if any(_REASONING in turn for turn in turns):  # gpt-oss's refuses it beside content and calls
        yield from _forms([{k: v for k, v in t.items() if k != _REASONING} for t in turns])


def _calls(turns: Sequence[Turn]) -> bool:
    return any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns)


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
    untyped.globals["raise_exception"] = _raise_exception
    untyped.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _environment()
