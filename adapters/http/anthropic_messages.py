"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mlxbun.adapters.http.answers import Answer, EventStream, json_answer, warning
from mlxbun.adapters.http.anthropic_blocks import Blocks, Content, Records, ping
from mlxbun.adapters.http.anthropic_request import ask, constraint, model_name, understand
from mlxbun.adapters.http.anthropic_types import (
    CountRequest,
    Message,
    MessageDelta,
    MessageEvent,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessagesUsage,
    OutputTokens,
    Stopped,
    StopReason,
    TokenCount,
)
from mlxbun.adapters.http.fields import COUNT_TOKENS, MESSAGES, refuse_unsupported
from mlxbun.adapters.http.openai_request import new_id
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.generation import Generation
from mlxbun.application.outlines import Diagnostics
from mlxbun.application.prepare import Preparer, generate
from mlxbun.application.row_specs import Prepared
from mlxbun.application.row_text import Piece
from mlxbun.application.service import Service
from mlxbun.domain.prompt_usage import prompt_usage
from mlxbun.domain.refusal import Refused


class Reply(Struct, frozen=True):
    """What an answer repeats of its request, and what it is held to."""

    id: str
    model: str
    max_tokens: int
    omit_thinking: bool
    diagnostics: Diagnostics | None | UnsetType

    @property
    def is_nothing(self) -> bool:
        """Whether only the prompt is to be read, so that the next request finds it in the cache."""
        return self.max_tokens == 0


class Messages:
    """Answers requests of Anthropic's protocol, whole or as a stream."""

    def __init__(
        self, service: Service, preparer: Preparer, template_defaults: Mapping[str, Any]
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._template_defaults = template_defaults
        self._decoder = msgspec.json.Decoder(MessagesRequest)

    async def __call__(self, request: Request) -> Answer | EventStream:
        body = decode(self._decoder, request.body)
        refuse_unsupported(MESSAGES, body)
        asked = understand(body, self._template_defaults)
        model = await self._preparer.model(model_name(body.model))
        answer_id = new_id("msg_")
        try:
            prepared = await self._preparer.chat(model, asked.chat, ask(body, answer_id, request))
        except Refused as refused:
            raise asked.translation.located(refused) from None
        reply = Reply(
            answer_id,
            model.card.id,
            body.max_tokens,
            body.thinking is not None and body.thinking.display == "omitted",
            self._diagnostics(body, answer_id),
        )
        headers = warning(*asked.warnings, *prepared.warnings)
        events = self._events(prepared, reply)
        if body.stream:
            return EventStream(_records(events), headers, heartbeat=ping)
        return json_answer(await _whole(events), headers=headers)

    async def _events(
        self, prepared: Prepared, reply: Reply
    ) -> AsyncGenerator[list[MessageEvent], None]:
        """Yield the events of an answer, those that come together in one list."""
        blocks = Blocks(omit_thinking=reply.omit_thinking)
        last: Piece | None = None
        async with generate(self._service, prepared) as generation:
            yield [MessageStart(self._beginning(prepared, reply, generation))]
            async with aclosing(generation.pieces()) as pieces:
                async for last in pieces:
                    if not reply.is_nothing and (events := list(blocks.add(last.parts))):
                        yield events
            stopped = _stopped(last, prepared, reply)
            usage = self._usage(prepared, reply, generation)
            ends = () if reply.is_nothing else blocks.end()
            yield [*ends, MessageDelta(stopped, usage), MessageStop()]

    def _beginning(self, prepared: Prepared, reply: Reply, generation: Generation) -> Message:
        return Message(
            id=reply.id,
            model=reply.model,
            content=[],
            usage=self._usage(prepared, reply, generation),
            diagnostics=reply.diagnostics,
        )

    def _usage(self, prepared: Prepared, reply: Reply, generation: Generation) -> MessagesUsage:
        """Count what is known so far: what the cache had comes with the first token."""
        explained = self._service.explanations.find(reply.id) or ()
        prompt = prompt_usage(
            prepared.num_prompt_tokens,
            generation.num_cached_tokens,
            sum(row.num_published_tokens for row in explained),
        )
        return MessagesUsage(
            prompt.input_tokens,
            prompt.cache_creation_input_tokens,
            prompt.cache_read_input_tokens,
            0 if reply.is_nothing else generation.num_completion_tokens,
            OutputTokens(
                0 if reply.is_nothing else generation.num_reasoning_tokens,
                generation.num_replayed_tokens or UNSET,
            ),
        )

    def _diagnostics(self, body: MessagesRequest, answer_id: str) -> Diagnostics | None | UnsetType:
        if body.diagnostics is None:
            return UNSET
        return self._service.outlines.diagnose(answer_id, body.diagnostics.previous_message_id)


class CountTokens:
    """Says how many tokens a prompt has, without a place in the queue."""

    def __init__(self, preparer: Preparer, template_defaults: Mapping[str, Any]) -> None:
        self._preparer = preparer
        self._template_defaults = template_defaults
        self._decoder = msgspec.json.Decoder(CountRequest)

    async def __call__(self, request: Request) -> Answer:
        body = decode(self._decoder, request.body)
        refuse_unsupported(COUNT_TOKENS, body)
        asked = understand(body, self._template_defaults)
        model = await self._preparer.model(model_name(body.model))
        try:
            num_tokens = await self._preparer.count(
                model, asked.chat, len(request.body), constraint(body)
            )
        except Refused as refused:
            raise asked.translation.located(refused) from None
        return json_answer(TokenCount(num_tokens), headers=warning(*asked.warnings))


async def _records(
    events: AsyncGenerator[list[MessageEvent], None],
) -> AsyncGenerator[bytes, None]:
    records = Records()
    async with aclosing(events):
        async for together in events:
            yield records.write(together)


async def _whole(events: AsyncGenerator[list[MessageEvent], None]) -> Message:
    """Return what a client of the stream would have at its end."""
    content = Content()
    message: Message | None = None
    async with aclosing(events):
        async for together in events:
            for event in together:
                content.apply(event)
                if isinstance(event, MessageStart):
                    message = event.message
                elif isinstance(event, MessageDelta):
                    assert message is not None
                    message = replace(
                        message,
                        content=content.blocks,
                        stop_reason=event.delta.stop_reason,
                        stop_sequence=event.delta.stop_sequence,
                        usage=event.usage,
                    )
    assert message is not None, "an answer begins and ends"
    return message


def _stopped(last: Piece | None, prepared: Prepared, reply: Reply) -> Stopped:
    assert last is not None, "a row has a last piece"
    if reply.is_nothing:
        return Stopped("max_tokens", None)
    if last.stopped_by is not None:
        return Stopped("stop_sequence", last.stopped_by)
    reason: StopReason
    match last.finish:
        case "length":
            cut_short = prepared.specs[0].max_tokens < reply.max_tokens
            reason = "model_context_window_exceeded" if cut_short else "max_tokens"
        case "tool_calls":
            reason = "tool_use"
        case _:
            reason = "end_turn"
    return Stopped(reason, None)
