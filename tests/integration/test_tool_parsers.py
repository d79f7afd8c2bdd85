"""Calls are read as mlx-lm's own parsers read them."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from doubles.notations import template
from mlxbun.adapters.tokenizer.chat_template import ChatTemplate
from mlxbun.domain.conversation import CallArguments, CallBegun
from mlxbun.domain.conversation.markup import family_of
from mlxbun.domain.conversation.markup.literals import is_json

# Ours, and the module of mlx_lm.tool_parsers.
PARSERS = {
    "hermes": "json_tools",
    "qwen": "qwen3_coder",
    "glm": "glm47",
    "longcat": "longcat",
    "minicpm": "minicpm5",
    "minimax": "minimax_m2",
    "muse": "muse_spark",
    "gemma4": "gemma4",
    "function-gemma": "function_gemma",
    "kimi": "kimi_k2",
    "kimi3": "kimi_k3",
    "mistral": "mistral",
    "lfm": "pythonic",
}
PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "exact": {"type": "boolean"},
    "more": {"type": "object"},
    "names": {"type": "array"},
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": PROPERTIES}},
}
# function_gemma's parser cuts at every comma.
FLAT: dict[str, Any] = {"city": 'São Paulo, "the" city\nit\'s', "days": 12, "exact": True}
NESTED: dict[str, Any] = {**FLAT, "more": {"a": [1, "x"], "b": None}, "names": ["a", "b"]}


@pytest.mark.parametrize("family", PARSERS)
def test_a_call_is_what_mlx_lm_reads(family: str) -> None:
    module = importlib.import_module(f"mlx_lm.tool_parsers.{PARSERS[family]}")
    arguments = FLAT if family == "function-gemma" else NESTED
    call = {"id": "1", "function": {"name": "get_weather", "arguments": arguments}}
    turns = [{"role": "user", "content": "hi"}]
    made = ChatTemplate({"default": template(family)}, {})
    prompt = made.render(turns, [TOOL], {})
    turns.append({"role": "assistant", "content": "", "tool_calls": [call]})  # type: ignore[dict-item]
    text = made.render(turns, [TOOL], {}).removeprefix(prompt).removesuffix("<|assistant|>")

    body = text[text.index(module.tool_call_start) + len(module.tool_call_start) :]
    if module.tool_call_end:
        body = body[: body.rindex(module.tool_call_end)]
    theirs = module.parse_tool_call(body.strip(), [TOOL])
    theirs = theirs[0] if isinstance(theirs, list) else theirs

    reader = family_of(template(family), lambda _: False).reader([TOOL], prompt)
    parts = (*reader.feed(text), *reader.flush())
    names = [part.name for part in parts if isinstance(part, CallBegun)]
    said = [part.text for part in parts if isinstance(part, CallArguments)]
    assert names == [theirs["name"]] and is_json(said[0])
    assert json.loads(said[0]) == theirs["arguments"] == arguments
