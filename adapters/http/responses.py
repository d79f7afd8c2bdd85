"""POST /v1/responses, and how many tokens its prompt has.

A client that leaves ends its response, as everywhere here: it is kept as cancelled, unless
`store` is false.  With `background` it goes on without its client.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from mlxbun.adapters.http.answers import Answer, EventStream, json_answer, warning
from mlxbun.adapters.http.fields import RESPONSES, refuse_unsupported
from mlxbun.adapters.http.in_flight import InFlight
from mlxbun.adapters.http.openai_request import ask, constraint, new_id
from mlxbun.adapters.http.request import Request, decode
from mlxbun.adapters.http.responses_background import BackgroundRun
from mlxbun.adapters.http.responses_by_id import ResponsesById, UnderWay
from mlxbun.adapters.http.responses_events import record
from mlxbun.adapters.http.responses_output import Output
from mlxbun.adapters.http.responses_request import (
    ENCRYPTED,
    Asked,
    answers,
    effort,
    forced,
    form,
    max_tokens,
    num_logprobs,
    understand,
)
from mlxbun.adapters.http.responses_run import Ends, Run
from mlxbun.adapters.http.responses_types import (
    ConversationNamed,
    InputTokens,
    ReasoningUsed,
    Response,
    ResponsesRequest,
)
from mlxbun.adapters.http.routing import Routes
from mlxbun.application.chat_prompt import Chat, template_arguments
from mlxbun.application.prepare import Preparer
from mlxbun.application.responses_store import ResponsesStore
from mlxbun.application.row_specs import Prepared
from mlxbun.application.service import Service
from mlxbun.domain.refusal import Refused


class Responses:
    """Makes responses, and keeps them in `store` for those who name them."""

    def __init__(
        self,
        service: Service,
        preparer: Preparer,
        store: ResponsesStore,
        in_flight: InFlight,
        template_defaults: Mapping[str, Any],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._store = store
        self._template_defaults = template_defaults
        self._now = now
        self._by_id = ResponsesById(store)
        self._in_flight = in_flight
        self._decoder = msgspec.json.Decoder(ResponsesRequest)

    @property
    def routes(self) -> Routes:
        one, by_id = "/v1/responses/{id}", self._by_id
        return {
            "/v1/responses": {"POST": self.create},
            "/v1/responses/input_tokens": {"POST": self.input_tokens},
            "/v1/responses/compact": {"POST": self.compact},
            one: {"GET": by_id.retrieve, "DELETE": by_id.delete},
            f"{one}/cancel": {"POST": by_id.cancel},
            f"{one}/input_items": {"GET": by_id.input_items},
        }

    async def create(self, request: Request) -> Answer | EventStream:
        body = decode(self._decoder, request.body)
        refuse_unsupported(RESPONSES, body)
        model = await self._preparer.model(body.model)
        if body.background and body.store is False:
            message = "background needs store: what is not kept can be read by nobody later"
            raise Refused("invalid_value", message, "background")
        self._by_id.check_over(body.previous_response_id, "previous_response_id")
        asked = understand(body, self._store, new_id)
        chat = self._chat(body, asked)
        how = ask(
            body,
            new_id("resp_"),
            request,
            max_tokens=max_tokens(body),
            logprobs=num_logprobs(body),
            form=form(body),
        )
        try:
            prepared = await self._preparer.chat(model, chat, how)
        except Refused as refused:
            raise asked.translation.located(refused) from None
        response = _begun(how.id, int(self._now()), body, asked, prepared)
        output = Output(
            asked.tools,
            new_id,
            seals=ENCRYPTED in (body.include or ()),
            silent=not answers(body),
        )
        made = self._under_way(prepared, response, output, asked)
        run, background = made.run, made.background
        headers = warning(*asked.warnings, *prepared.warnings)
        if background is not None:
            self._in_flight.start(background.work, background.broken)
            first = await background.begun()
            if body.stream:
                return background.stream(-1, headers)
            return json_answer(first, headers=headers)
        if body.stream:
            return EventStream(_records(run), headers, run.heartbeat, run.broken)
        async with aclosing(run.events()) as events:
            async for _ in events:
                pass
        return json_answer(run.response, headers=headers)

    async def input_tokens(self, request: Request) -> Answer:
        """Count the tokens of a prompt; nothing runs."""
        body = decode(self._decoder, request.body)
        refuse_unsupported(RESPONSES, body)
        model = await self._preparer.model(body.model)
        asked = understand(body, self._store, new_id)
        chat = self._chat(body, asked)
        try:
            num_tokens = await self._preparer.count(
                model, chat, len(request.body), constraint(body, form(body))
            )
        except Refused as refused:
            raise asked.translation.located(refused) from None
        return json_answer(InputTokens(num_tokens), headers=warning(*asked.warnings))

    async def compact(self, request: Request) -> Answer:
        message = "conversations are not compacted here: send what shall stay of one as input"
        raise Refused("unsupported", message)

    def _under_way(
        self, prepared: Prepared, response: Response, output: Output, asked: Asked
    ) -> UnderWay:
        """Return a run that is found by its id from when it begins."""

        def begun() -> None:
            self._by_id.begin(made)

        def over() -> None:
            if made.background is None:  # else it is over when its last record is in its log
                self._by_id.end(made)

        run = Run(self._service, prepared, response, output, Ends(begun, over), self._now)
        made = UnderWay(run, asked)
        if response.background:
            made.background = BackgroundRun(run, lambda: self._by_id.end(made))
        return made

    def _chat(self, body: ResponsesRequest, asked: Asked) -> Chat:
        arguments = template_arguments(effort(body), body.chat_template_kwargs)
        return Chat(
            asked.translation.messages,
            asked.tools.shown,
            {**self._template_defaults, **arguments},
            one_call=body.parallel_tool_calls is False,
            forced=forced(asked.tools, body.tool_choice),
        )


async def _records(run: Run) -> AsyncGenerator[bytes, None]:
    async with aclosing(run.events()) as events:
        async for some in events:
            yield b"".join(map(record, some))


def _begun(
    response_id: str, created_at: int, body: ResponsesRequest, asked: Asked, prepared: Prepared
) -> Response:
    """Return the response object as it is before anything was generated."""
    params = prepared.specs[0].params
    return Response(
        id=response_id,
        created_at=created_at,
        background=body.background is True,
        conversation=(
            ConversationNamed(asked.conversation) if asked.conversation is not None else None
        ),
        instructions=asked.instructions,
        max_output_tokens=body.max_output_tokens,
        model=prepared.model.card.id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=str(body.prompt_cache_key) if body.prompt_cache_key is not None else None,
        reasoning=ReasoningUsed(body.reasoning.effort, body.reasoning.summary)
        if body.reasoning
        else ReasoningUsed(),
        store=body.store is not False,
        temperature=params.temperature,
        text={
            "format": (body.text and body.text.format) or {"type": "text"},
            "verbosity": (body.text and body.text.verbosity) or "medium",
        },
        tool_choice=body.tool_choice or "auto",
        tools=body.tools or [],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p or 1.0,
        metadata=body.metadata or {},
    )
