"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from mlxbun.adapters.http.answers import Answer, EventStream, json_answer, warning
from mlxbun.adapters.http.fields import CHAT, refuse_unsupported
from mlxbun.adapters.http.openai_answer import ChatRecords, Said
from mlxbun.adapters.http.openai_logprobs import chat_logprobs
from mlxbun.adapters.http.openai_request import Reply, ask, new_id, usage
from mlxbun.adapters.http.openai_types import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
)
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.chat_prompt import Chat, template_arguments
from mlxbun.application.prepare import Preparer, generate
from mlxbun.application.row_specs import Prepared
from mlxbun.application.row_text import Piece
from mlxbun.application.service import Service
from mlxbun.application.wanted_answers import ForcedCall
from mlxbun.domain.conversation import well_formed_json
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import NO_LOGPROBS


class ChatCompletions:
    """Answers chat requests, whole or as a stream."""

    def __init__(
        self,
        service: Service,
        preparer: Preparer,
        template_defaults: Mapping[str, Any],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._template_defaults = template_defaults
        self._now = now
        self._decoder = msgspec.json.Decoder(ChatRequest)

    async def __call__(self, request: Request) -> Answer | EventStream:
        body = decode(self._decoder, request.body)
        refuse_unsupported(CHAT, body)
        model = await self._preparer.model(body.model)
        tools = _tools(body)
        effort = body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)
        arguments = template_arguments(effort, body.chat_template_kwargs)
        reply = Reply(new_id("chatcmpl-"), int(self._now()), model.card.id)
        prepared = await self._preparer.chat(
            model,
            Chat(
                body.messages,
                tools,
                {**self._template_defaults, **arguments},
                one_call=body.parallel_tool_calls is False,
                forced=_forced(body.tool_choice),
            ),
            ask(
                body,
                reply.id,
                request,
                max_tokens=_max_tokens(body),
                logprobs=_num_top(body),
            ),
        )
        headers = warning(*prepared.warnings)
        if body.stream:
            return EventStream(self._stream(prepared, reply, body), headers)
        return json_answer(await self._whole(prepared, reply), headers=headers)

    async def _whole(self, prepared: Prepared, reply: Reply) -> ChatCompletion:
        said = [Said(reply, i) for i in range(len(prepared.specs))]
        logprobs = [ChatLogprobs([]) if _with_logprobs(prepared) else None for _ in prepared.specs]
        finish: list[Any] = [None for _ in prepared.specs]
        async with (
            generate(self._service, prepared) as generation,
            aclosing(generation.pieces()) as pieces,
        ):
            async for piece in pieces:
                said[piece.row].add(piece.parts)
                finish[piece.row] = piece.finish
                likely = logprobs[piece.row]
                if likely is not None:
                    likely.content.extend(_logprobs(prepared, piece).content)
        choices = [
            ChatChoice(i, row.message(), logprobs[i], finish[i]) for i, row in enumerate(said)
        ]
        total = usage(prepared, generation)
        return ChatCompletion(**reply.fields(), choices=choices, usage=total)

    async def _stream(
        self, prepared: Prepared, reply: Reply, body: ChatRequest
    ) -> AsyncGenerator[bytes, None]:
        records = ChatRecords(reply, len(prepared.specs), with_usage=body.wants_usage)
        likely = _with_logprobs(prepared)
        async with generate(self._service, prepared) as generation:
            yield records.roles()
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    said = _logprobs(prepared, piece) if likely else None
                    if record := records.piece(piece, said):
                        yield record
            yield records.end(usage(prepared, generation))


def _with_logprobs(prepared: Prepared) -> bool:
    return prepared.specs[0].params.logprobs != NO_LOGPROBS


def _logprobs(prepared: Prepared, piece: Piece) -> ChatLogprobs:
    spec = prepared.specs[piece.row]
    tokenizer = prepared.model.tokenizer
    return chat_logprobs(
        tokenizer,
        piece.tokens,
        spec.params.logprobs,
        spec.stop_ids,
        shown=prepared.shown,
        num_cut=piece.num_cut,
    )


def _max_tokens(body: ChatRequest) -> int | None:
    said = [n for n in (body.max_tokens, body.max_completion_tokens) if n is not None]
    return min(said, default=None)


def _num_top(body: ChatRequest) -> int | None:
    if body.logprobs is False and body.top_logprobs:
        message = "top_logprobs asks for what logprobs: false switches off"
        raise Refused("invalid_value", message, "top_logprobs")
    if body.logprobs or body.top_logprobs:
        return body.top_logprobs or 0
    return None


def _forced(choice: Any) -> ForcedCall | None:
    """Return which call an answer must be.  Raises Refused for a choice that is none."""
    if choice in (None, "auto", "none"):
        return None
    if choice == "required":
        return ForcedCall()
    said = _object(choice)
    allowed = _object(said.get("allowed_tools"))
    if said.get("type") == "allowed_tools" and allowed.get("mode", "auto") in ("auto", "required"):
        return ForcedCall() if allowed.get("mode") == "required" else None
    name = _name(said)
    if said.get("type") == "function" and name is not None:
        return ForcedCall(name)
    message = "tool_choice must be none, auto, required, allowed_tools, or name a function"
    raise Refused("invalid_value", message, "tool_choice")


def _tools(body: ChatRequest) -> list[dict[str, Any]]:
    """Return the tools to show to the model.  Raises Refused for one that is no function."""
    if not body.tools or body.tool_choice == "none":
        return []
    for i, tool in enumerate(body.tools):
        if tool.get("type", "function") != "function":
            message = f"tools[{i}].type: only functions can be offered to the model"
            raise Refused("unsupported", message, f"tools[{i}].type")
        if not _name(tool):
            field = f"tools[{i}].function.name"
            raise Refused("invalid_value", f"{field} must be a string", field)
    shown = cast(list[dict[str, Any]], well_formed_json(body.tools, "tools"))
    choice = _object(body.tool_choice)
    if choice.get("type") != "allowed_tools":
        return shown
    allowed = set(map(_name, _list(_object(choice.get("allowed_tools")).get("tools"))))
    return [tool for tool in shown if _name(tool) in allowed]


def _name(said: Any) -> str | None:
    """Return the name of the function that a tool, or a choice, speaks of."""
    name = _object(_object(said).get("function")).get("name")
    return name if isinstance(name, str) else None


def _list(value: Any) -> list[Any]:
    return list(cast(Iterable[Any], value)) if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
