"""POST /v1/responses, and what can be done with a response by its id.

A client that leaves ends its response, as everywhere here: it is kept as cancelled, unless
`store` is false.  What is under way can be read and cancelled by its id.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec.structs import replace

from mlxbun.adapters.http.answers import Answer, EventStream, json_answer, warning
from mlxbun.adapters.http.fields import RESPONSES, refuse_unsupported
from mlxbun.adapters.http.openai_request import ask, constraint, new_id
from mlxbun.adapters.http.request import Request, decode
from mlxbun.adapters.http.responses_events import record
from mlxbun.adapters.http.responses_output import Output
from mlxbun.adapters.http.responses_request import (
    ENCRYPTED,
    Asked,
    effort,
    forced,
    form,
    max_tokens,
    num_logprobs,
    understand,
)
from mlxbun.adapters.http.responses_run import Ends, Run
from mlxbun.adapters.http.responses_types import (
    Deleted,
    InputTokens,
    ItemList,
    ReasoningUsed,
    Response,
    ResponsesRequest,
)
from mlxbun.adapters.http.routing import Routes
from mlxbun.application.chat_prompt import Chat, template_arguments
from mlxbun.application.prepare import Preparer
from mlxbun.application.responses_store import ResponsesStore, StoredResponse
from mlxbun.application.row_specs import Prepared
from mlxbun.application.service import Service
from mlxbun.domain.refusal import Refused

MAX_LISTED, DEFAULT_LISTED = 100, 20


class Responses:
    """Makes responses, and keeps them in `store` for those who name them."""

    def __init__(
        self,
        service: Service,
        preparer: Preparer,
        store: ResponsesStore,
        template_defaults: Mapping[str, Any],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._store = store
        self._template_defaults = template_defaults
        self._now = now
        self._running: dict[str, Run] = {}
        self._decoder = msgspec.json.Decoder(ResponsesRequest)

    @property
    def routes(self) -> Routes:
        one = "/v1/responses/{id}"
        return {
            "/v1/responses": {"POST": self.create},
            "/v1/responses/input_tokens": {"POST": self.input_tokens},
            one: {"GET": self.retrieve, "DELETE": self.delete},
            f"{one}/cancel": {"POST": self.cancel},
            f"{one}/input_items": {"GET": self.input_items},
        }

    async def create(self, request: Request) -> Answer | EventStream:
        body = decode(self._decoder, request.body)
        refuse_unsupported(RESPONSES, body)
        model = await self._preparer.model(body.model)
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
        seals = ENCRYPTED in (body.include or ())
        output = Output(asked.tools, new_id, seals=seals)
        ends = Ends(self._begin, lambda run: self._end(run, asked))
        run = Run(self._service, prepared, response, output, ends, self._now)
        headers = warning(*asked.warnings, *prepared.warnings)
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

    async def retrieve(self, request: Request) -> Answer:
        query = parse_qs(request.head.query)
        if query.get("stream", ["false"])[-1].lower() == "true":
            message = "stream: a response is read whole; its events are sent to who made it"
            raise Refused("unsupported", message, "stream")
        run = self._running.get(_id(request))
        if run is not None and run.response.store:
            return json_answer(run.response)
        return json_answer(self._store.find(_id(request)).response)

    async def delete(self, request: Request) -> Answer:
        response_id = _id(request)
        if response_id in self._running:
            message = f"Response '{response_id}' is still in progress: cancel it first."
            raise Refused("invalid_value", message, "id")
        self._store.delete(response_id)
        return json_answer(Deleted(response_id))

    async def cancel(self, request: Request) -> Answer:
        """End a response that is under way; one that was cancelled stays so."""
        run = self._running.get(_id(request))
        if run is not None:
            run.cancel()
            return json_answer(replace(run.response, status="cancelled"))
        response = self._store.find(_id(request)).response
        if response["status"] != "cancelled":
            message = f"Response '{_id(request)}' is {response['status']}: it cannot be cancelled."
            raise Refused("invalid_value", message, "id")
        return json_answer(response)

    async def input_items(self, request: Request) -> Answer:
        """List what a response was made from, the latest first unless `order` is asc."""
        stored = self._store.find(_id(request))
        return json_answer(_page(stored.items, parse_qs(request.head.query)))

    def _chat(self, body: ResponsesRequest, asked: Asked) -> Chat:
        arguments = template_arguments(effort(body), body.chat_template_kwargs)
        return Chat(
            asked.translation.messages,
            asked.tools.shown,
            {**self._template_defaults, **arguments},
            one_call=body.parallel_tool_calls is False,
            forced=forced(asked.tools, body.tool_choice),
        )

    def _begin(self, run: Run) -> None:
        self._running[run.id] = run

    def _end(self, run: Run, asked: Asked) -> None:
        self._running.pop(run.id, None)
        if run.response.store and run.response.status != "in_progress":
            response = msgspec.to_builtins(run.response)
            self._store.keep(StoredResponse(response, asked.items, asked.instructions))


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
        instructions=asked.instructions,
        max_output_tokens=body.max_output_tokens,
        model=prepared.model.card.id,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
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


def _id(request: Request) -> str:
    return request.head.path.split("/")[3]  # as `routes` have it


def _page(items: list[dict[str, Any]], query: Mapping[str, list[str]]) -> ItemList:
    """Return the page of `items` that `order`, `after` and `limit` ask for."""
    order = query.get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise Refused("invalid_value", "order must be asc or desc", "order")
    said = query.get("limit", [str(DEFAULT_LISTED)])[-1]
    if not said.isdecimal() or not 1 <= int(said) <= MAX_LISTED:
        raise Refused("invalid_value", f"limit must be 1 to {MAX_LISTED}", "limit")
    listed = items if order == "asc" else items[::-1]
    if "after" in query:
        after = query["after"][-1]
        at = next((i for i, item in enumerate(listed) if item["id"] == after), None)
        if at is None:
            raise Refused("invalid_value", f"after: no input item has the id {after!r}", "after")
        listed = listed[at + 1 :]
    page = listed[: int(said)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else ("", "")
    return ItemList(page, first, last, has_more=len(page) < len(listed))
