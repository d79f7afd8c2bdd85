"""The service: everything that a front (HTTP, a command line) may ask of the running server."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import anyio
from msgspec import Struct

from mlxbun.application.engine import Engine, Outbox
from mlxbun.application.stats import Health, StatsProjection, health
from mlxbun.domain.sampling import SamplingRequest
from mlxbun.domain.text import ModelCard, Tokenizer


class Setting(Struct, frozen=True):
    """One line of the effective configuration."""

    name: str
    value: Any
    source: str  # flag, environment, model, default, or machine
    note: str = ""


class Model(Struct, frozen=True):
    """The loaded model, as the text side sees it."""

    card: ModelCard
    tokenizer: Tokenizer


class Service:
    """Starts the engine, fans out what it says, and knows whether it is well.

    Lives on one event loop; `start` and `stop` are called there.
    """

    def __init__(
        self,
        engine: Engine,
        open_model: Callable[[], Model],
        server_defaults: SamplingRequest,
        default_max_tokens: int | None,
        settings: Callable[[], list[Setting]],
    ) -> None:
        self.engine = engine
        self.server_defaults = server_defaults
        self.default_max_tokens = default_max_tokens
        self.settings = settings
        self.projection = StatsProjection()
        self.failure: Exception | None = None
        self._open_model = open_model
        self._model: Model | None = None
        self._settled: anyio.Event | None = None

    def start(self, call_soon: Callable[..., object]) -> None:
        """Begin loading.  `call_soon` runs a callable on the event loop from any thread."""
        self._settled = anyio.Event()
        self.engine.start(
            tell=lambda outbox: call_soon(self._deliver, outbox),
            on_ready=lambda: call_soon(self._on_ready, self._open_model()),
            on_failed=lambda error: call_soon(self._on_failed, error),
        )

    def stop(self) -> None:
        self.engine.stop()

    async def model(self) -> Model:
        """Return the model, waiting while it loads.  Raises what loading raised."""
        if self._settled is not None and not self._settled.is_set():
            await self._settled.wait()
        if self.failure is not None:
            raise self.failure
        assert self._model is not None, "start() was not called"
        return self._model

    @property
    def loaded(self) -> Model | None:
        """The model if it is loaded, without waiting."""
        return self._model

    def health(self) -> Health:
        return health(
            self.projection,
            ready=self._model is not None,
            failed=self.failure is not None,
            now_seconds=time.monotonic(),
        )

    def _on_ready(self, model: Model) -> None:
        self._model = model
        if self._settled is not None:
            self._settled.set()

    def _on_failed(self, error: Exception) -> None:
        self.failure = error
        if self._settled is not None:
            self._settled.set()

    def _deliver(self, outbox: Outbox) -> None:
        if outbox.batch is not None:
            self.projection.apply(outbox.batch, time.monotonic())
        for mailbox, item in outbox.items:
            mailbox.put(item)
