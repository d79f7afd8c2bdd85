"""The service: everything that a front (HTTP, a command line) may ask of the running server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import anyio
from msgspec import Struct

from mlxbun.application.constraints import Constraints
from mlxbun.application.durability import FlushReport
from mlxbun.application.engine import Engine
from mlxbun.application.explain import Explanations
from mlxbun.application.generation_disk import GenerationDisk
from mlxbun.application.idempotency import Answers
from mlxbun.application.options import Setting
from mlxbun.application.outlines import Outlines
from mlxbun.application.persistence import Persistence
from mlxbun.application.requests import Outbox, Submitter
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.resuming import Resuming
from mlxbun.application.stats import Health, StatsProjection, health
from mlxbun.application.upkeep import Released
from mlxbun.domain.blocks import Cuts
from mlxbun.domain.conversation.markup import Family, family_of
from mlxbun.domain.embedding import Embedder, EmbeddingCard
from mlxbun.domain.journal import Event
from mlxbun.domain.kept_ids import KeptIds
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId
from mlxbun.domain.sampling_policy import SamplingRequest
from mlxbun.domain.steps import Compute
from mlxbun.domain.text import ModelCard, Tokenizer

log = logging.getLogger("mlxbun.service")


_UNKNOWN = family_of("", lambda _: False)


class Model(Struct, frozen=True):
    """The loaded model, as the text side sees it.  `aliases` are other names for its id.

    `cuts` is how its state is kept for later prompts; None where prompts are to be read as if
    nothing were: without a prefix cache, and under --l1.  `family` is how it writes.
    `constraints` is what answers are kept to; None where nothing is enforced.  A model that does
    not `answer` only embeds.
    """

    card: ModelCard
    tokenizer: Tokenizer
    aliases: tuple[str, ...] = ()
    cuts: Cuts | None = None
    family: Family = _UNKNOWN
    constraints: Constraints | None = None
    answers: bool = True

    def is_called(self, name: str) -> bool:
        """Say whether `name` means this model: its id, its last part, or what serve was given."""
        return is_called(name, self.card, self.aliases)


class EmbeddingModel(Struct, frozen=True):
    """The model that turns texts into vectors, as the text side sees it.

    `prefix` stands before every text, `suffix` after it where its tokenizer does not put it.
    At most `max_waiting` requests wait for it at once.
    """

    card: ModelCard
    sizes: EmbeddingCard
    tokenizer: Tokenizer
    embedder: Embedder
    aliases: tuple[str, ...] = ()
    prefix: str = ""
    suffix: tuple[TokenId, ...] = ()
    lower_case: bool = False
    max_waiting: int = 64

    def is_called(self, name: str) -> bool:
        """As `Model.is_called`."""
        return is_called(name, self.card, self.aliases)


def is_called(name: str, card: ModelCard, aliases: tuple[str, ...]) -> bool:
    return name in (card.id, card.id.rsplit("/", 1)[-1], *aliases)


CallSoon = Callable[..., object]


class Service:
    """Starts the engine, fans out what it says, and knows whether it is well.

    Lives on one event loop; `start` and `stop` are called there.
    """

    def __init__(
        self,
        engine: Engine,
        server_defaults: SamplingRequest,
        default_max_tokens: int | None,
        settings: Callable[[], list[Setting]],
        persistence: Callable[[], Persistence | None] = lambda: None,
        generations: Callable[[], GenerationDisk | None] = lambda: None,
    ) -> None:
        """`persistence` is the SSD tier once the model is open, `generations` its checkpoints."""
        self.engine = engine
        self.server_defaults = server_defaults
        self.default_max_tokens = default_max_tokens
        self.settings = settings
        self._persistence = persistence
        self._generations = generations
        self._resuming: Resuming | None = None
        self.answers = Answers()
        self.projection = StatsProjection()
        self.explanations = Explanations()
        self.outlines = Outlines()
        self.kept_ids = KeptIds()
        self.failure: Exception | None = None
        self._model: Model | None = None
        self._embedding: EmbeddingModel | None = None
        self._ready = False
        self._settled: anyio.Event | None = None

    def start(self, call_soon: CallSoon) -> None:
        """Begin loading.  `call_soon` runs a callable on the event loop from any thread."""
        self._settled = anyio.Event()

        def tell(outbox: Outbox) -> None:
            call_soon(self.deliver, outbox)

        def on_ready() -> None:
            call_soon(self._on_ready)

        def on_failed(error: Exception) -> None:
            call_soon(self._on_failed, error)

        self.engine.start(tell, on_ready, on_failed)

    def stop(self, write_seconds: float = 120.0) -> None:
        """Cancel what runs, release the model, and make durable what `write_seconds` allow."""
        deadline = time.monotonic() + write_seconds
        generations, persistence = self._generations(), self._persistence()
        if persistence is not None:
            persistence.try_again(write_seconds / 10)
        if not self.engine.stop(max(1.0, write_seconds / 2)):
            log.error("the device does not answer: the engine is left as it is")
        if generations is not None:
            generations.close(write_seconds / 2)
        if persistence is not None:
            persistence.close(max(0.0, deadline - time.monotonic()))

    def flush(self, timeout_seconds: float) -> FlushReport | None:
        """Wait until the SSD has what it is to have; None without one.  Blocks; any thread."""
        generations, persistence = self._generations(), self._persistence()
        if persistence is None:
            return None
        deadline = time.monotonic() + timeout_seconds
        self._settle(timeout_seconds)
        if generations is not None:
            generations.flush(max(0.0, deadline - time.monotonic()))
        return persistence.flush(max(0.0, deadline - time.monotonic()))

    def _settle(self, timeout_seconds: float) -> None:
        """Have the prefix cache give its disk what that was to have later."""
        settled = threading.Event()

        def settle(blocks: ResidentBlocks, compute: Compute) -> Sequence[Event]:
            try:
                return blocks.settle(compute)
            finally:
                settled.set()

        self.engine.report(settle)
        settled.wait(timeout_seconds)

    @property
    def submitter(self) -> Submitter:
        """What takes requests: the engine, or what looks for checkpoints before it."""
        generations = self._generations()
        if generations is None:
            return self.engine
        if self._resuming is None:
            self._resuming = Resuming(self.engine, generations)
        return self._resuming

    def close_session(self, name: str, timeout_seconds: float) -> Released:
        """Let go of what a session holds.  Blocks; any thread.  Raises Refused: unavailable."""
        if not self._ready:  # then nobody has computed anything
            return Released()
        done: Future[Released] = Future()
        self.engine.close_session(name, done.set_result)
        try:
            return done.result(timeout_seconds)
        except TimeoutError:
            raise Refused("unavailable", "the model is busy; try again") from None

    def opened(self, model: Model, embedding: EmbeddingModel | None = None) -> None:
        """Take the text side of what the engine is loading.  Any thread, once."""
        self._model, self._embedding = model, embedding

    def keep_ids(self, kept: KeptIds) -> None:
        """Take what is kept of texts from now on, and have the SSD keep it too."""
        self.kept_ids = kept
        persistence = self._persistence()
        if persistence is not None:
            persistence.keep(kept)

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
        """The model if it is ready to serve, without waiting."""
        return self._model if self._ready else None

    @property
    def embedding(self) -> EmbeddingModel | None:
        """The model that embeds if it is ready; None, too, where there is none."""
        return self._embedding if self._ready else None

    def health(self) -> Health:
        return health(
            self.projection,
            ready=self._ready,
            failed=self.failure is not None,
            now_seconds=time.monotonic(),
        )

    def _on_ready(self) -> None:
        self._ready = True
        persistence = self._persistence()
        if persistence is not None:
            self.kept_ids = persistence.kept_ids
        if self._settled is not None:
            self._settled.set()

    def _on_failed(self, error: Exception) -> None:
        self.failure, self._ready = error, False
        if self._settled is not None:
            self._settled.set()

    def deliver(self, outbox: Outbox) -> None:
        """Hand out what a turn brought, on the event loop.

        What breaks for one, or in a count, costs no other.
        """
        for mailbox, item in outbox.items:
            try:
                mailbox.put(item)
            except Exception:
                log.exception("an item was not delivered")
        try:
            if outbox.batch is not None:
                now = time.monotonic()
                self.projection.apply(outbox.batch, now)
                self.explanations.apply(outbox.batch, now)
        finally:
            for call in outbox.calls:
                call()
