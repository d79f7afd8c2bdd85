"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec.structs import replace

from mlxbun.adapters.http import sse
from mlxbun.adapters.http.answers import Answer, EventStream, json_answer, warning
from mlxbun.adapters.http.fields import COMPLETIONS, refuse_unsupported
from mlxbun.adapters.http.openai_logprobs import TextOffsets, completion_logprobs
from mlxbun.adapters.http.openai_request import Reply, ask, new_id, texts_or_ids, usage
from mlxbun.adapters.http.openai_types import (
    CompletionLogprobs,
    CompletionRequest,
    TextChoice,
    TextCompletion,
    Usage,
)
from mlxbun.adapters.http.request import Request, decode
from mlxbun.application.prepare import Preparer, generate
from mlxbun.application.row_specs import Prepared
from mlxbun.application.row_text import Piece
from mlxbun.application.service import Service
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import NO_LOGPROBS, TokenId
from mlxbun.domain.text import Tokenizer


class TextCompletions:
    """Continues bare texts, whole or as a stream."""

    def __init__(
        self, service: Service, preparer: Preparer, now: Callable[[], float] = time.time
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._now = now
        self._decoder = msgspec.json.Decoder(CompletionRequest)

    async def __call__(self, request: Request) -> Answer | EventStream:
        body = decode(self._decoder, request.body)
        refuse_unsupported(COMPLETIONS, _chosen_from(body))
        _check_echo(body)
        prompts = texts_or_ids(body.prompt, "prompt")
        model = await self._preparer.model(body.model)
        reply = Reply(new_id("cmpl-"), int(self._now()), model.card.id)
        asked = ask(
            body,
            reply.id,
            request,
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
        )
        prepared = await self._preparer.texts(model, prompts, asked, body.suffix)
        echoes = _echoes(model.tokenizer, prompts, asked.n) if body.echo else []
        headers = warning(*prepared.warnings)
        if body.stream:
            return EventStream(self._stream(prepared, reply, echoes, body), headers)
        return json_answer(await self._whole(prepared, reply, echoes), headers=headers)

    async def _whole(
        self, prepared: Prepared, reply: Reply, echoes: Sequence[str]
    ) -> TextCompletion:
        texts = [[echo] for echo in echoes] or [[""] for _ in prepared.specs]
        finish: list[Any] = [None for _ in prepared.specs]
        rows = Logprobs(prepared)
        logprobs: list[CompletionLogprobs | None] = [rows.nothing() for _ in prepared.specs]
        async with (
            generate(self._service, prepared) as generation,
            aclosing(generation.pieces()) as pieces,
        ):
            async for piece in pieces:
                texts[piece.row].append(piece.text)
                finish[piece.row] = piece.finish
                _extend(logprobs[piece.row], rows.of(piece))
        choices = [
            TextChoice(i, "".join(text), logprobs[i], finish[i]) for i, text in enumerate(texts)
        ]
        said = usage(prepared, generation)
        return TextCompletion(**reply.fields(), choices=choices, usage=said)

    async def _stream(
        self, prepared: Prepared, reply: Reply, echoes: Sequence[str], body: CompletionRequest
    ) -> AsyncGenerator[bytes, None]:
        records = TextRecords(reply, len(prepared.specs), with_usage=body.wants_usage)
        rows = Logprobs(prepared)
        async with generate(self._service, prepared) as generation:
            # Even without an echo something goes out: it carries the status to the client.
            yield records.texts(echoes or [""] * len(prepared.specs))
            async with aclosing(generation.pieces()) as pieces:
                async for piece in pieces:
                    if record := records.piece(piece, rows.of(piece)):
                        yield record
            yield records.end(usage(prepared, generation))


class Logprobs:
    """The log-probabilities of each row, as far as they were asked for."""

    def __init__(self, prepared: Prepared) -> None:
        self._specs = prepared.specs
        self._tokenizer = prepared.model.tokenizer
        self._asked = prepared.specs[0].params.logprobs
        self._offsets = [TextOffsets(self._tokenizer) for _ in prepared.specs if self._wanted]

    @property
    def _wanted(self) -> bool:
        return self._asked != NO_LOGPROBS

    def nothing(self) -> CompletionLogprobs | None:
        return CompletionLogprobs([], [], [] if self._asked else None, []) if self._wanted else None

    def of(self, piece: Piece) -> CompletionLogprobs | None:
        if not self._wanted:
            return None
        offsets, end_ids = self._offsets[piece.row], self._specs[piece.row].stop_ids
        return completion_logprobs(self._tokenizer, piece.tokens, self._asked, end_ids, offsets)


class TextRecords:
    """The records of one stream, as `ChatRecords`."""

    def __init__(self, reply: Reply, num_choices: int, *, with_usage: bool) -> None:
        self._reply = reply
        self._with_usage = with_usage
        self._texts = [
            sse.Template(self._chunk(TextChoice(i, sse.Template.HOLE))) for i in range(num_choices)
        ]

    def texts(self, texts: Sequence[str]) -> bytes:
        """Return a record for each choice."""
        return b"".join(self._texts[i].fill(text) for i, text in enumerate(texts))

    def piece(self, piece: Piece, logprobs: CompletionLogprobs | None) -> bytes:
        """Return what `piece` adds; its last record carries the finish reason."""
        if piece.finish is not None or (logprobs is not None and logprobs.tokens):
            choice = TextChoice(piece.row, piece.text, logprobs, piece.finish)
            return sse.record(self._chunk(choice))
        return self._texts[piece.row].fill(piece.text) if piece.text else b""

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return sse.DONE
        chunk = TextCompletion(**self._reply.fields(), choices=[], usage=usage)
        return sse.record(chunk) + sse.DONE

    def _chunk(self, choice: TextChoice) -> TextCompletion:
        nothing = None if self._with_usage else msgspec.UNSET
        return TextCompletion(**self._reply.fields(), choices=[choice], usage=nothing)


def _check_echo(body: CompletionRequest) -> None:
    if not body.echo:
        return
    if body.logprobs is not None:
        message = "echo with logprobs is not supported: the prompt's are not computed"
        raise Refused("unsupported", message, "echo")
    if body.suffix:
        raise Refused("unsupported", "echo cannot be combined with suffix", "echo")


def _chosen_from(body: CompletionRequest) -> CompletionRequest:
    """Return `body` without a best_of that leaves no choice: the best n of n are all of them."""
    return replace(body, best_of=None) if body.best_of == (body.n or 1) else body


def _echoes(tokenizer: Tokenizer, prompts: Sequence[str | Sequence[int]], n: int) -> list[str]:
    """Return what each choice's text begins with."""
    return [text for text in (_text(tokenizer, p) for p in prompts) for _ in range(n)]


def _text(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    decoder = tokenizer.decoder()
    return "".join([*(decoder.add(TokenId(i)) for i in prompt), decoder.flush()])


def _extend(said: CompletionLogprobs | None, more: CompletionLogprobs | None) -> None:
    if said is None or more is None:
        return
    said.tokens.extend(more.tokens)
    said.token_logprobs.extend(more.token_logprobs)
    said.text_offset.extend(more.text_offset)
    if said.top_logprobs is not None and more.top_logprobs is not None:
        said.top_logprobs.extend(more.top_logprobs)
