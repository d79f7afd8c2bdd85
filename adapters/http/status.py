"""What the server says about itself: /, /v1, /health, /stats, /v1/effective-config."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Literal

import msgspec
from msgspec import Struct

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.application.options import Setting
from mlxbun.application.responses_store import StoreReport
from mlxbun.application.service import Service

VERSION = version("mlxbun")


class About(Struct, frozen=True):
    name: str
    version: str
    model: str | None  # null while it loads
    endpoints: list[str]


class HealthReport(Struct, frozen=True):
    status: Literal["ok", "loading", "stalled", "failed", "draining"]


class ServerStats(Struct, frozen=True):
    """`started_at` is in seconds since 1970."""

    model: str | None
    version: str
    started_at: int
    uptime_seconds: float


class ConfigReport(Struct, frozen=True):
    settings: list[Setting]


class Status:
    """Answers at once, whatever the engine does."""

    def __init__(
        self,
        service: Service,
        draining: Callable[[], bool],
        endpoints: list[str],
        response_store: Callable[[], StoreReport] = lambda: StoreReport(0, 0, 0, 0),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._service = service
        self._draining = draining
        self._endpoints = endpoints
        self._response_store = response_store
        self._now = now
        self._started = now()

    async def about(self, request: Request) -> Answer:
        return json_answer(About("mlxbun", VERSION, self._model_id(), self._endpoints))

    async def health(self, request: Request) -> Answer:
        """Answer 200 with these very bytes, which monitors compare, or 503."""
        status = "draining" if self._draining() else self._service.health()
        return Answer(200 if status == "ok" else 503, b'{"status": "%s"}' % status.encode())

    async def stats(self, request: Request) -> Answer:
        now = self._now()
        server = ServerStats(
            self._model_id(), VERSION, int(self._started), round(now - self._started, 3)
        )
        engine = msgspec.structs.asdict(self._service.projection.stats)
        store = self._response_store()
        return json_answer({"server": server, "response_store": store, **engine})

    async def effective_config(self, request: Request) -> Answer:
        """Answer with every setting and where it came from; secrets are told as set or not."""
        return json_answer(ConfigReport(self._service.settings()))

    def _model_id(self) -> str | None:
        model = self._service.loaded
        return model.card.id if model else None
