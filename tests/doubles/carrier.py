"""Carries requests to the front without a network, as `adapters.http.rsgi` does with one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from mlxbun.adapters.http.access import Access
from mlxbun.adapters.http.answers import Answer
from mlxbun.adapters.http.front import Front, request_id
from mlxbun.adapters.http.in_flight import InFlight
from mlxbun.adapters.http.request import Head, Request, tidy
from mlxbun.adapters.http.routes import routes
from mlxbun.adapters.http.routing import Router
from mlxbun.application.service import Service


class Reply(Struct, frozen=True):
    """What a client got.  `records` are the pieces of a stream, as they were sent."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    records: tuple[bytes, ...] = ()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def chunks(self) -> list[Any]:
        """The stream's JSON records, without the [DONE] that must end it."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


class Carrier:
    def __init__(
        self,
        service: Service,
        access: Access | None = None,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.in_flight = InFlight()
        table = routes(
            service, lambda: self.front.draining, template_arguments or {}, 5.0, self.in_flight
        )
        self.front = Front(Router(table), access or Access())

    async def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        return await self.send(method, path, b"", headers)

    async def post(self, path: str, body: Any, **headers: str) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.send("POST", path, data, headers)

    async def chat(self, content: str = "hi", **fields: Any) -> Reply:
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        return await self.post("/v1/chat/completions", body)

    async def complete(self, prompt: Any = "hi", **fields: Any) -> Reply:
        body = {"prompt": prompt, "temperature": 0, **fields}
        return await self.post("/v1/completions", body)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        path, _, query = path.partition("?")
        head = Head(method, tidy(path), spelled, request_id(spelled), query)
        found = self.front.open(head)
        if not isinstance(found, Answer):
            opened = await self.front.respond(found, Request(head, body))
            if not isinstance(opened, Answer):
                records = [r async for r in self.front.records(head, opened)]
                dressed = dict(self.front.dress(head, opened.headers))
                return Reply(200, dressed, b"".join(records), tuple(records))
            found = opened
        return Reply(found.status, dict(self.front.dress(head, found.headers)), found.body)


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    """Start `service` on this event loop; stop it at the end."""
    service.start(asyncio.get_running_loop().call_soon_threadsafe)
    try:
        yield service
    finally:
        service.stop()
