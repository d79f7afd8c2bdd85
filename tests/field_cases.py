"""For every field of every endpoint a request that shows what becomes of it.

`Desk` sends a body and gathers all that a field can change: the answer, the rows that the engine
was asked for, the headers.  CASES has, for each endpoint, cases by field; `adapters.http.fields`
says which there must be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from doubles.carrier import Carrier, Reply
from doubles.embedder import DIMENSIONS
from doubles.tokenizer import BOS
from mlxbun.adapters.http.anthropic_types import CountRequest, MessagesRequest
from mlxbun.adapters.http.fields import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Field,
)
from mlxbun.adapters.http.openai_embeddings import EmbeddingsRequest
from mlxbun.adapters.http.openai_types import ChatRequest, CompletionRequest
from mlxbun.adapters.http.responses_types import ResponsesRequest
from mlxbun.application.requests import Mailbox, RequestSpec
from mlxbun.application.service import Service
from mlxbun.domain.sampling import RequestId

_HI = len('arguments: {"enable_thinking": false}\nuser: hi\nassistant: ')
JSON_TEXT = '{"a":1}'  # what the double's grammar knows of every schema
KEPT = "the id of a response that is kept"  # as a value: it is put in its place
TALK = "the id of a conversation"  # likewise
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_CHANGING = re.compile(r'"(id|created|created_at|completed_at|item_id|call_id)":\s*("[^"]*"|\d+)')


class Outcome(Struct, frozen=True):
    """What came of one request.  Ids and times are left out, so that equal ones compare equal."""

    status: int
    text: str
    headers: Mapping[str, str]
    specs: tuple[RequestSpec, ...]
    kept: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def spec(self) -> RequestSpec:
        return self.specs[0]

    @property
    def prompt(self) -> str:
        return bytes(i for i in self.spec.prompt_ids if i < BOS).decode()

    @property
    def warning(self) -> str:
        return self.headers.get("warning", "")


class Case(Struct, frozen=True):
    """`see` gives `expected` with the field at `value`, and something else without it.

    `beside` are fields that both requests have, `says` is what the model answers.
    """

    value: Any
    see: Callable[[Outcome], Any]
    expected: Any
    beside: Mapping[str, Any] = {}
    says: str | None = None


class Endpoint(Struct, frozen=True):
    """`needed` is a body that is taken; `ask` makes the field that has the prompt."""

    name: str  # of its part in docs/api.md
    path: str
    fields: tuple[Field, ...]
    body: type[Struct]
    ask: Callable[[str], Mapping[str, Any]]
    needed: Mapping[str, Any] = {}

    def base(self, said: str = "hi") -> dict[str, Any]:
        return {**self.needed, **self.ask(said)}


class Desk:
    """Sends requests to a service and hears what the engine is asked for."""

    def __init__(self, service: Service) -> None:
        self._carrier = Carrier(service)
        self._specs: list[RequestSpec] = []
        self._kept_id = ""
        self._talk_id = ""
        submit = service.engine.submit

        def heard(spec: RequestSpec, mailbox: Mailbox) -> None:
            self._specs.append(spec)
            submit(spec, mailbox)

        service.engine.submit = heard  # type: ignore[method-assign]

    async def send(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Outcome:
        if KEPT in body.values():
            if not self._kept_id:
                before = {"input": "[say:x]", "instructions": "be kind"}
                self._kept_id = (await self._carrier.post("/v1/responses", before)).json["id"]
            body = {k: self._kept_id if v == KEPT else v for k, v in body.items()}
        if TALK in body.values():
            if not self._talk_id:
                so_far = {"items": [{"role": "user", "content": "so far"}]}
                self._talk_id = (await self._carrier.post("/v1/conversations", so_far)).json["id"]
            body = {k: self._talk_id if v == TALK else v for k, v in body.items()}
        self._specs.clear()
        reply = await self._carrier.post(endpoint.path, body)
        specs = tuple(replace(spec, request_id=RequestId("")) for spec in self._specs)
        headers = {k: v for k, v in reply.headers.items() if "request-id" not in k}
        text = _CHANGING.sub("", reply.body.decode()) if reply.status == 200 else ""
        text = text.replace("{,", "{").replace(",,", ",").replace(",}", "}")
        while ",," in text:
            text = text.replace(",,", ",")
        return Outcome(reply.status, text, headers, specs, await self._is_kept(reply))

    async def post(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Reply:
        """Return the reply itself, whatever it is."""
        self._specs.clear()
        reply = await self._carrier.post(endpoint.path, body)
        assert not (reply.status != 200 and self._specs), "what is refused does not run"
        return reply

    async def _is_kept(self, reply: Reply) -> bool:
        answer = reply.json if reply.headers["content-type"] == "application/json" else {}
        if answer.get("object") != "response":
            return False
        return (await self._carrier.get(f"/v1/responses/{answer['id']}")).status == 200


def _turn(said: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": said}]}


def _prompt(said: str) -> dict[str, Any]:
    return {"prompt": said}


def _input(said: str) -> dict[str, Any]:
    return {"input": said}


_SEEDED = {"seed": 7, "temperature": 1}
ENDPOINTS = (
    Endpoint("chat", "/v1/chat/completions", CHAT, ChatRequest, _turn,
             {**_SEEDED, "max_tokens": 150}),
    Endpoint("completion", "/v1/completions", COMPLETIONS, CompletionRequest, _prompt,
             {**_SEEDED, "max_tokens": 150}),
    Endpoint("response", "/v1/responses", RESPONSES, ResponsesRequest, _input,
             {**_SEEDED, "max_tokens": 150}),
    Endpoint("messages", "/v1/messages", MESSAGES, MessagesRequest, _turn,
             {**_SEEDED, "max_tokens": 150}),
    Endpoint("count", "/v1/messages/count_tokens", COUNT_TOKENS, CountRequest, _turn),
    Endpoint("embedding", "/v1/embeddings", EMBEDDINGS, EmbeddingsRequest, _input),
)  # fmt: skip


def said(outcome: Outcome) -> str:
    """Return the visible text of a whole answer, of any protocol."""
    answer = outcome.json
    if "choices" in answer:
        choice = answer["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    blocks = answer["content"] if "content" in answer else _message(answer)["content"]
    return "".join(block["text"] for block in blocks)


def _message(response: Any) -> Any:
    return next(item for item in response["output"] if item["type"] == "message")


def _num_calls(outcome: Outcome) -> int:
    answer = outcome.json
    if "choices" in answer:
        return len(answer["choices"][0]["message"].get("tool_calls", ()))
    made = answer["content"] if "content" in answer else answer["output"]
    return sum(item["type"] in ("tool_use", "function_call") for item in made)


def _param(name: str, value: Any, expected: Any = None) -> Case:
    meant = value if expected is None else expected
    return Case(value, lambda o: getattr(o.spec.params, name), meant)


def _in_prompt(value: Any, words: str, **beside: Any) -> Case:
    return Case(value, lambda o: words in o.prompt, True, beside)


def _counted(value: Any, more: int, **beside: Any) -> Case:
    """The prompt has `more` tokens, which are bytes, than that of "hi" alone."""
    return Case(value, lambda o: o.json["input_tokens"], _HI + more, beside)


def _status(value: Any, status: int, **beside: Any) -> Case:
    return Case(value, lambda o: o.status, status, beside)


def _max_tokens(o: Outcome) -> int:
    return o.spec.max_tokens


def _session(o: Outcome) -> str | None:
    return o.spec.session


def _enforced(o: Outcome) -> bool:
    return o.spec.grammar is not None


def _is_stream(o: Outcome) -> bool:
    return o.headers["content-type"].startswith("text/event-stream")


def _num_usages(o: Outcome) -> int:
    return o.text.count('"choices":[],"usage":{')


def _vector(o: Outcome) -> Any:
    return o.json["data"][0]["embedding"]


def _num_tokens(o: Outcome) -> int:
    return int(o.json["usage"]["prompt_tokens"])


def _left_out(o: Outcome) -> bool:
    return "not offered: " in o.warning


_FUNCTION = {"name": "look", "description": "d", "parameters": SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_FLAT = {"type": "function", **_FUNCTION}
_DIGITS = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
_CLAUDE = {"name": "look", "input_schema": SCHEMA}
_CALL = '<tool_call>{"name": "look", "arguments": {"a": 1}}</tool_call>'
_JSON_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
_FLAT_FORM = {"type": "json_schema", "name": "x", "schema": SCHEMA}
_TWO = ["yes", "no"]

_DRAWING = {
    "temperature": [_param("temperature", 0.5)],
    "top_p": [_param("top_p", 0.25)],
    "top_k": [_param("top_k", 5)],
    "min_p": [_param("min_p", 0.125)],
    "xtc_probability": [_param("xtc_probability", 0.5)],
    "xtc_threshold": [_param("xtc_threshold", 0.25)],
    "repetition_penalty": [_param("repetition_penalty", 1.5)],
    "repetition_context_size": [_param("repetition_context_size", 64)],
    "presence_penalty": [_param("presence_penalty", -1.5)],
    "presence_context_size": [_param("presence_context_size", 64)],
    "frequency_penalty": [_param("frequency_penalty", 1.5)],
    "frequency_context_size": [_param("frequency_context_size", 0)],
    "logit_bias": [_param("logit_bias", {"65": 2.5}, ((65, 2.5),))],
    "seed": [_param("seed", 8)],
    "ignore_eos": [Case(True, lambda o: o.spec.stop_ids, frozenset())],
    "stream": [Case(True, _is_stream, True)],
    "model": [
        _status("somebody-else", 404),
        Case("scripted", lambda o: o.status, 200, {"model": "somebody-else"}),
    ],
    "session_id": [Case("s", _session, "s"), Case(5, _session, "5")],
    "prompt_cache_key": [Case("k", _session, "k")],
}
_STOP = [Case("c", said, "ab", says="abcd"), Case(["d", "b"], said, "a", says="abcd")]
_STREAM_OPTIONS = [Case({"include_usage": True}, _num_usages, 1, {"stream": True})]
_GUIDED = {
    "guided_json": [Case(SCHEMA, said, JSON_TEXT)],
    "guided_grammar": [Case('root ::= "{}"', _enforced, True)],
    "guided_regex": [Case("[a-c]{4}", _enforced, True)],
    "guided_choice": [Case(_TWO, said, "no", says="no way")],
    "structured_outputs": [
        Case({"choice": _TWO}, said, "no", says="no way"),
        Case({"json": SCHEMA}, said, JSON_TEXT),
        Case({"regex": "[a-c]{4}"}, _enforced, True),
        Case({"grammar": 'root ::= "{}"'}, _enforced, True),
        Case(SCHEMA, said, JSON_TEXT),
    ],
}
_RESPONSE_FORMAT = [
    Case(_JSON_FORM, said, JSON_TEXT),
    Case({"type": "json_object"}, said, JSON_TEXT),
    _status({"type": "xml"}, 400),
]
_TEMPLATE = [_in_prompt({"k": "v"}, '"k": "v"')]


def _choices(tool: Any, named: Any, required: Any, none: Any) -> list[Case]:
    beside = {"tools": [tool]}
    return [
        Case(none, lambda o: "tools: " in o.prompt, False, beside),
        Case(required, _enforced, True, beside),
        Case(named, _enforced, True, beside),
        _status(required, 400),
    ]


def _allowed(mode: str, *names: str) -> Any:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


_CLAUDE_PROMPT = {
    "messages": [_in_prompt([{"role": "user", "content": "else"}], "user: else")],
    "system": [
        _in_prompt("be kind", "system: be kind"),
        _in_prompt([{"type": "text", "text": "be kind"}], "system: be kind"),
    ],
    "model": [*_DRAWING["model"], Case("claude-x", lambda o: o.status, 200, {"model": "other"})],
    "tools": [
        _in_prompt([_CLAUDE], "tools: "),
        _in_prompt([{"type": "bash_20250124", "name": "bash"}], '"restart"'),
        Case([{"type": "web_search_20250305", "name": "w"}], _left_out, True),
        _status([{"name": "look"}], 400),
    ],
    "tool_choice": [
        *_choices(_CLAUDE, {"type": "tool", "name": "look"}, {"type": "any"}, {"type": "none"}),
        Case({"type": "auto", "disable_parallel_tool_use": True}, _num_calls, 1,
             {"tools": [_CLAUDE]}, _CALL + _CALL),
    ],
    "thinking": [
        _in_prompt({"type": "adaptive"}, '"enable_thinking": true'),
        _in_prompt({"type": "enabled", "budget_tokens": 1024}, '"enable_thinking": true'),
        Case({"type": "enabled", "budget_tokens": 1024},
             lambda o: "budget_tokens is not kept to" in o.warning, True),
        Case({"type": "adaptive", "display": "omitted"},
             lambda o: o.json["content"][0]["thinking"], "", says="<think>hm</think>x"),
        Case({"type": "between_tools"}, lambda o: "as disabled" in o.warning, True),
    ],
    "output_config": [
        _in_prompt({"effort": "low"}, '"reasoning_effort": "low"'),
        _in_prompt({"effort": "max"}, '"reasoning_effort": "xhigh"'),
        Case({"format": _FLAT_FORM}, said, JSON_TEXT),
    ],
    "chat_template_kwargs": _TEMPLATE,
    "output_format": [Case(_FLAT_FORM, said, JSON_TEXT)],
}  # fmt: skip
_COUNTED = {
    "messages": [_counted([{"role": "user", "content": "12345"}], 3)],
    "system": [_counted("be kind", 16)],
    "model": _CLAUDE_PROMPT["model"],
    "tools": [
        Case([_CLAUDE], lambda o: o.json["input_tokens"] > _HI, True),
        *_CLAUDE_PROMPT["tools"][2:],
    ],
    "tool_choice": [
        Case({"type": "none"}, lambda o: o.json["input_tokens"], _HI, {"tools": [_CLAUDE]}),
        _status({"type": "some"}, 400),
    ],
    "thinking": [
        _counted({"type": "adaptive"}, -1),
        _CLAUDE_PROMPT["thinking"][2],
    ],
    "output_config": [
        _counted({"effort": "low"}, 27),
        _status({"format": {"type": "xml"}}, 400),
    ],
    "chat_template_kwargs": [_counted({"k": "v"}, 10)],
    "output_format": [_status({"type": "xml"}, 400)],
}

CASES: Mapping[str, Mapping[str, list[Case]]] = {
    "chat": {
        **_DRAWING, **_GUIDED,
        "messages": [
            _in_prompt([{"role": "user", "content": "else"}], "user: else"),
            _in_prompt([{"role": "developer", "content": "x"}, *_turn("y")["messages"]],
                       "system: x\nuser: y"),
        ],
        "max_tokens": [Case(3, _max_tokens, 3), Case(9, _max_tokens, 9)],
        "max_completion_tokens": [Case(3, _max_tokens, 3)],
        "stop": _STOP,
        "n": [Case(2, lambda o: len(o.specs), 2),
              Case(2, lambda o: [spec.params.seed for spec in o.specs], [7, 8])],
        "stream_options": _STREAM_OPTIONS,
        "logprobs": [_param("logprobs", True, 0),
                     Case(True, lambda o: o.json["choices"][0]["logprobs"] is not None, True)],
        "top_logprobs": [_param("logprobs", 2)],
        "chat_template_kwargs": _TEMPLATE,
        "reasoning_effort": [
            _in_prompt("low", '"enable_thinking": true, "reasoning_effort": "low"'),
            _in_prompt("none", '"enable_thinking": false'),
        ],
        "reasoning": [_in_prompt({"effort": "low"}, '"reasoning_effort": "low"')],
        "tools": [_in_prompt([_TOOL], "tools: "), _status([{"type": "web_search"}], 400)],
        "tool_choice": [
            *_choices(_TOOL, {"type": "function", "function": {"name": "look"}}, "required",
                      "none"),
            Case(_allowed("required", "look"), _enforced, True, {"tools": [_TOOL]}),
            Case(_allowed("auto"), lambda o: "tools: " in o.prompt, False, {"tools": [_TOOL]}),
        ],
        "parallel_tool_calls": [Case(False, _num_calls, 1, {"tools": [_TOOL]}, _CALL + _CALL)],
        "response_format": _RESPONSE_FORMAT,
    },
    "completion": {
        **_DRAWING, **_GUIDED,
        "prompt": [
            Case("else", lambda o: o.prompt, "else"),
            Case(["a", "b"], lambda o: len(o.specs), 2),
            Case([65, 66], lambda o: o.prompt, "AB"),
            Case([[65], [66]], lambda o: len(o.specs), 2),
        ],
        "max_tokens": [Case(3, _max_tokens, 3)],
        "stop": _STOP,
        "n": [Case(2, lambda o: [spec.params.seed for spec in o.specs], [7, 8])],
        "stream_options": _STREAM_OPTIONS,
        "echo": [Case(True, lambda o: said(o)[:9], "[say:abc]", says="abc")],
        "suffix": [Case("the end", lambda o: o.prompt, "hithe end")],
        "logprobs": [_param("logprobs", 2),
                     Case(0, lambda o: o.json["choices"][0]["logprobs"] is not None, True)],
        "response_format": _RESPONSE_FORMAT,
    },
    "messages": {
        **_DRAWING, **_CLAUDE_PROMPT,
        "max_tokens": [Case(3, _max_tokens, 3)],
        "stop_sequences": _STOP[1:],
        "diagnostics": [
            Case({"previous_message_id": "msg_nobody"},
                 lambda o: "previous_message_not_found" in o.text, True),
        ],
        "metadata": [
            Case({"user_id": "u"}, lambda o: str(o.spec.session).startswith("user-"), True),
        ],
    },
    "count": _COUNTED,
    "embedding": {
        "input": [
            Case(["a", "b"], lambda o: len(o.json["data"]), 2),
            Case([5, 6, 8, 9], _num_tokens, 4),
            Case([[5], [6, 8]], lambda o: [item["index"] for item in o.json["data"]], [0, 1]),
            _status([], 400),
        ],
        "model": [
            _status("somebody-else", 404),
            _status("scripted", 400),
            Case("the-embedder", lambda o: o.status, 200, {"model": "somebody-else"}),
        ],
        "encoding_format": [Case("base64", lambda o: isinstance(_vector(o), str), True)],
        "dimensions": [Case(2, lambda o: len(_vector(o)), 2), _status(DIMENSIONS + 1, 400)],
        "instruction": [Case("find", lambda o: _num_tokens(o) > 20, True)],
    },
    "response": {
        **_DRAWING, **_GUIDED,
        "input": [
            _in_prompt("else", "user: else"),
            _in_prompt([{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}],
                       "system: x\nuser: y"),
        ],
        "instructions": [_in_prompt("be kind", "system: be kind"),
                         _in_prompt("be swift", "system: be swift", previous_response_id=KEPT)],
        "previous_response_id": [
            _in_prompt(KEPT, "user: [say:x]\nassistant: x\nuser: hi"),
            _in_prompt(KEPT, "system: be kind"),
            _status("resp_nobody", 404),
        ],
        "conversation": [
            _in_prompt(TALK, "user: so far\nuser: hi"),
            _status("conv_nobody", 404),
            _status(TALK, 400, previous_response_id=KEPT),
        ],
        "max_output_tokens": [Case(3, _max_tokens, 3)],
        "max_tokens": [Case(3, _max_tokens, 3)],
        "stop": _STOP,
        "tools": [
            _in_prompt([_FLAT], "tools: "),
            _in_prompt([{"type": "namespace", "name": "g", "tools": [_FLAT]}], '"look"'),
            _in_prompt([{"type": "custom", "name": "patch"}], '"patch"'),
            _in_prompt([{"type": "shell"}], '"commands"'),
            Case([{"type": "custom", "name": "pick", "format": _DIGITS}],
                 lambda o: o.spec.grammar is not None, True),
            Case([{"type": "custom", "name": "pick", "format": {**_DIGITS, "syntax": "lark"}}],
                 lambda o: "not enforced: pick" in o.warning, True),
            Case([{"type": "web_search"}], _left_out, True),
        ],
        "tool_choice": [
            *_choices(_FLAT, {"type": "function", "name": "look"}, "required", "none"),
            Case({"type": "shell"}, _enforced, True, {"tools": [{"type": "shell"}]}),
            Case({"type": "function", "name": "look", "namespace": "h"}, _enforced, True,
                 {"tools": [{"type": "namespace", "name": group, "tools": [_FLAT]}
                            for group in "gh"]}),
            Case({"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]},
                 _enforced, True, {"tools": [_FLAT]}),
            Case({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "look"}]},
                 lambda o: '"other"' in o.prompt, False,
                 {"tools": [_FLAT, {**_FLAT, "name": "other"}]}),
        ],
        "parallel_tool_calls": [Case(False, _num_calls, 1, {"tools": [_FLAT]}, _CALL + _CALL)],
        "text": [
            Case({"format": _FLAT_FORM}, said, JSON_TEXT),
            Case({"format": {"type": "json_object"}}, said, JSON_TEXT),
            Case({"verbosity": "low"}, lambda o: o.json["text"]["verbosity"], "low"),
        ],
        "reasoning": [
            _in_prompt({"effort": "low"}, '"reasoning_effort": "low"'),
            _in_prompt({"effort": "max"}, '"reasoning_effort": "xhigh"'),
            Case({"summary": "auto"}, lambda o: o.json["reasoning"]["summary"], "auto"),
        ],
        "chat_template_kwargs": _TEMPLATE,
        "top_logprobs": [_param("logprobs", 2)],
        "include": [
            Case(["message.output_text.logprobs"], lambda o: o.spec.params.logprobs, 0),
            Case(["reasoning.encrypted_content"],
                 lambda o: o.json["output"][0]["encrypted_content"] is None, False,
                 says="<think>hm</think>x"),
        ],
        "store": [Case(False, lambda o: o.kept, False)],
        "generate": [Case(False, lambda o: (o.json["status"], o.json["output"]),
                          ("completed", []))],
        "prompt_cache_options": [
            Case({"prewarm": True, "mode": "explicit"},
                 lambda o: (o.json["output"], o.spec.max_tokens), ([], 1)),
            _status({"prewarm": "yes"}, 400),
        ],
        "background": [Case(True, lambda o: (o.json["status"], o.json["background"]),
                            ("in_progress", True))],
        "metadata": [Case({"a": "b"}, lambda o: o.json["metadata"], {"a": "b"})],
    },
}  # fmt: skip
