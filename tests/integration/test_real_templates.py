"""Calls in the chat templates of real models, which no package here carries.

MLXBUN_TEST_TEMPLATES is a folder of them, such as vendor/llama.cpp/models/templates of the source
of llama-cpp-python.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlxbun.adapters.tokenizer.chat_template import ChatTemplate
from mlxbun.domain.conversation import CallArguments, CallBegun
from mlxbun.domain.conversation.markup import family_of

FOLDER = os.environ.get("MLXBUN_TEST_TEMPLATES")
TEMPLATES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
# They want variables or notations of their own, and say so, or name no notation that is read.
APART = (
    "c4ai-command-r-plus",
    "firefunction",
    "functionary-medium-v3.2",
    "granite-3.3",  # shows no calls in history
    "llama-cpp-deepseek-r1",  # not for Jinja
)
PROPERTIES = {
    name: {"type": kind, "description": name}
    for name, kind in (("city", "string"), ("days", "integer"), ("exact", "boolean"))
} | {"more": {"type": "object", "description": "more", "properties": {}}}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Does.", "parameters": {
        "type": "object", "properties": PROPERTIES, "required": ["city"]}}}
    for name in ("get_weather", "wait")
]  # fmt: skip
SAID: dict[str, Any] = {
    "city": 'São "Paulo" <b>\nit\'s {here} [now]',
    "days": 12345678901234567890,
    "exact": True,
    "more": {"a": 1.5, "b": [True, "x"]},
}


@pytest.mark.skipif(FOLDER is None, reason="MLXBUN_TEST_TEMPLATES names no folder")
def test_there_are_templates() -> None:
    assert TEMPLATES


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_call_is_read_back_from_a_real_template(path: Path) -> None:
    if any(name in path.stem for name in APART):
        pytest.skip("see APART")
    source = path.read_text()
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    call = {"id": "call_1", "function": {"name": "get_weather", "arguments": SAID}}
    question = {"role": "user", "content": "hi"}
    arguments = {"enable_thinking": False}
    prompt = template.render([question], TOOLS, arguments)
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = template.render([question, answer], TOOLS, arguments)
    at = len(os.path.commonprefix([prompt, whole]))
    # A prompt may end with a tag of thoughts that history has not: cut before it.
    if at < len(prompt):
        at = max(whole.rfind("\n", 0, at), whole.rfind(">", 0, at), whole.rfind("]", 0, at)) + 1
    reader = family_of(source, lambda _: False).reader(TOOLS, whole[:at])
    parts = [part for char in whole[at:] for part in reader.feed(char)]
    parts += reader.flush()
    assert [part.name for part in parts if isinstance(part, CallBegun)] == ["get_weather"]
    assert [json.loads(p.text) for p in parts if isinstance(p, CallArguments)] == [SAID]


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "call_1", "function": {"name": "get_weather", "arguments": {"city": "Ulm"}}}
OTHER = {"id": "call_2", "function": {"name": "wait", "arguments": {"city": "Bonn"}}}
RESULT, SECOND = (said("tool", f"is {id}", tool_call_id=id) for id in ("call_1", "call_2"))
SESSIONS = {
    "late system": [said("user", "first"), said("assistant", "answer"), said("system", "late"),
                    said("user", "second")],
    "users in a row": [said("user", "first"), said("user", "second")],
    "a result is last": [said("system", "system"), said("user", "first"),
                         said("assistant", "beside", tool_calls=[CALL]), RESULT],
    "two calls": [said("user", "first"), said("assistant", "", tool_calls=[CALL, OTHER]), SECOND,
                  RESULT, said("assistant", "answer"), said("user", "second")],
    "the user breaks in": [said("user", "first"), said("assistant", "", tool_calls=[CALL]), RESULT,
                           said("user", "second")],
    "a greeting": [said("assistant", "greeting"), said("user", "first")],
}  # fmt: skip
# Of other languages than Jinja's, or with variables of their own.
FOREIGN = ("firefunction", "llama-cpp-deepseek-r1", "c4ai-command-r-plus")


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_nothing_of_a_session_is_refused_or_lost(path: Path, session: str, tools: Any) -> None:
    if any(name in path.stem for name in FOREIGN):
        pytest.skip("see FOREIGN")
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate({"default": path.read_text()}, variables)
    text = template.render(SESSIONS[session], tools, {})
    for turn in SESSIONS[session]:
        assert turn["content"] in text
        for call in turn.get("tool_calls", ()):
            assert call["function"]["arguments"]["city"] in text
