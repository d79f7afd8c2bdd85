"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

import msgspec

from mlxbun.adapters.http import sse
from mlxbun.adapters.http.answers import Answer, EventStream, Headers, json_answer
from mlxbun.adapters.http.fields import CHAT, refuse_unsupported
from mlxbun.adapters.http.openai_logprobs import chat_logprobs
from mlxbun.adapters.http.openai_request import Reply, ask, new_id, usage
from mlxbun.adapters.http.openai_types import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
    Usage,
)
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.generation import Piece
from mlxbun.application.prepare import Chat, Prepared, Preparer, generate, template_arguments
from mlxbun.application.service import Service
from mlxbun.domain.conversation import well_formed_json
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import NO_LOGPROBS

_UNPARSED: Headers = (
    (
        "warning",
        '199 - "tools are shown to the model, but its calls are not parsed: they are text"',
    ),
)


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
            Chat(body.messages, tools, {**self._template_defaults, **arguments}),
            ask(
                body,
                reply.id,
                request,
                max_tokens=_max_tokens(body),
                logprobs=_num_top(body),
            ),
        )
        headers = _UNPARSED if tools else ()
        if body.stream:
            return EventStream(self._stream(prepared, reply, body), headers)
        return json_answer(await self._whole(prepared, reply), headers=headers)

    async def _whole(self, prepared: Prepared, reply: Reply) -> ChatCompletion:
        texts: list[list[str]] = [[] for _ in prepared.specs]
        logprobs = [ChatLogprobs([]) if _with_logprobs(prepared) else None for _ in prepared.specs]
        finish: list[Any] = [None for _ in prepared.specs]
        async with (
            generate(self._service, prepared) as generation,
            aclosing(generation.pieces()) as pieces,
        ):
            async for piece in pieces:
                texts[piece.row].append(piece.text)
                finish[piece.row] = piece.finish
                said = logprobs[piece.row]
                if said is not None:
                    said.content.extend(_logprobs(prepared, piece).content)
        choices = [
            ChatChoice(i, AssistantMessage(content="".join(text)), logprobs[i], finish[i])
            for i, text in enumerate(texts)
        ]
        total = usage(prepared, generation)
        return ChatCompletion(**reply.fields(), choices=choices, usage=total)

    async def _stream(
        self, prepared: Prepared, reply: Reply, body: ChatRequest
    ) -> AsyncGenerator[bytes, None]:
        records = ChatRecords(reply, len(prepared.specs), with_usage=body.wants_usage)
        async with generate(self._service, prepared) as generation:
            yield records.roles()
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    said = _logprobs(prepared, piece) if _with_logprobs(prepared) else None
                    if record := records.piece(piece, said):
                        yield record
            yield records.end(usage(prepared, generation))


class ChatRecords:
    """The records of one stream.  A token's text is put into bytes that are built once."""

    def __init__(self, reply: Reply, num_choices: int, *, with_usage: bool) -> None:
        self._reply = reply
        self._with_usage = with_usage
        self._num_choices = num_choices
        self._texts = [
            sse.Template(self._chunk(ChunkChoice(i, Delta(content=sse.Template.HOLE))))
            for i in range(num_choices)
        ]

    def roles(self) -> bytes:
        """Return the first record of each choice."""
        first = Delta(role="assistant", content="")
        return b"".join(
            sse.record(self._chunk(ChunkChoice(i, first))) for i in range(self._num_choices)
        )

    def piece(self, piece: Piece, logprobs: ChatLogprobs | None) -> bytes:
        """Return what `piece` adds: a text record, a finish record, both, or nothing."""
        records = b""
        if logprobs is not None and logprobs.content:
            delta = Delta(content=piece.text)
            records = sse.record(self._chunk(ChunkChoice(piece.row, delta, logprobs)))
        elif piece.text:
            records = self._texts[piece.row].fill(piece.text)
        if piece.finish is not None:
            last = ChunkChoice(piece.row, Delta(), finish_reason=piece.finish)
            records += sse.record(self._chunk(last))
        return records

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return sse.DONE
        chunk = ChatChunk(**self._reply.fields(), choices=[], usage=usage)
        return sse.record(chunk) + sse.DONE

    def _chunk(self, choice: ChunkChoice) -> ChatChunk:
        nothing = None if self._with_usage else msgspec.UNSET
        return ChatChunk(**self._reply.fields(), choices=[choice], usage=nothing)


def _with_logprobs(prepared: Prepared) -> bool:
    return prepared.specs[0].params.logprobs != NO_LOGPROBS


def _logprobs(prepared: Prepared, piece: Piece) -> ChatLogprobs:
    spec = prepared.specs[piece.row]
    tokenizer = prepared.model.tokenizer
    return chat_logprobs(tokenizer, piece.tokens, spec.params.logprobs, spec.stop_ids)


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


def _tools(body: ChatRequest) -> list[dict[str, Any]]:
    """Return the tools to show to the model.  Raises Refused for one that is no function."""
    if not body.tools or body.tool_choice == "none":
        return []
    for i, tool in enumerate(body.tools):
        if tool.get("type", "function") != "function":
            message = f"tools[{i}].type: only functions can be offered to the model"
            raise Refused("unsupported", message, f"tools[{i}].type")
        function = tool.get("function")
        name = cast(dict[str, Any], function).get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not name:
            field = f"tools[{i}].function.name"
            raise Refused("invalid_value", f"{field} must be a string", field)
    return cast(list[dict[str, Any]], well_formed_json(body.tools, "tools"))
