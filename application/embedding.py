"""Embedding: texts in, vectors out, between the steps of whoever generates.

Encoding happens off the event loop for long requests; the model reads on the engine's thread, in
pieces.  A request that nobody waits for any more is dropped before its next piece.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
from msgspec import Struct

from mlxbun.application.between_steps import Piece
from mlxbun.application.encoding import SLICE_CHARS, tokens_at_least
from mlxbun.application.prepare import Preparer
from mlxbun.application.service import EmbeddingModel, Service
from mlxbun.domain.embedding import (
    EmbeddingRun,
    TextsEmbedded,
    measured,
    piece_tokens,
    shortened,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

MAX_TEXTS = 2048
EXPECTED_IDS = "send texts (in LangChain: check_embedding_ctx_length=False)"


class EmbeddingAsk(Struct, frozen=True):
    """What is to be embedded, and how.

    Lists of ids are read as they are.  `dimensions` None is all of them, an `instruction` says
    what texts are searched for.  `num_bytes` is what the request came in.
    """

    texts: Sequence[str | Sequence[int]]
    dimensions: int | None = None
    instruction: str | None = None
    num_bytes: int = 0


class Embeddings(Struct, frozen=True):
    """Vectors in the order of the texts, and how many tokens were read for them."""

    vectors: tuple[array[float], ...]
    num_tokens: int


class Embedding:
    """The use case."""

    def __init__(
        self,
        service: Service,
        preparer: Preparer,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._preparer = preparer
        self._now = now
        self._rate = Rate()
        self._num_waiting = 0

    async def model(self, name: str | None) -> EmbeddingModel:
        """Return the embedding model called `name`; None is whichever is here.

        Raises Refused: model_not_found, unsupported for a model that embeds nothing, unavailable.
        """
        model, embedding = await self._preparer.loaded()
        if embedding is not None and (name is None or embedding.is_called(name)):
            return embedding
        if name is not None and not model.is_called(name):
            served = embedding.card.id if embedding is not None else model.card.id
            message = f"the model {name!r} is not served here; {served!r} is"
            raise Refused("model_not_found", message, "model")
        help = (
            f"the one that embeds here is {embedding.card.id!r}"
            if embedding is not None
            else "serve one beside it with --embedding-model PATH, or one alone"
        )
        message = f"{model.card.id!r} is no embedding model: {help}"
        raise Refused("unsupported", message, "model")

    async def embed(self, model: EmbeddingModel, ask: EmbeddingAsk) -> Embeddings:
        """Return the vectors of the texts.  Raises Refused, naming the field at fault."""
        _check(model, ask)
        if self._num_waiting >= model.max_waiting:
            message = f"{self._num_waiting} requests wait for the embedding model; try again"
            raise Refused("queue_full", message)
        self._num_waiting += 1
        try:
            ids = await self._preparer.off_loop(lambda: _encoded(model, ask), ask.num_bytes)
            vectors = await self._read(model, ids)
        finally:
            self._num_waiting -= 1
        wanted = ask.dimensions or model.sizes.dimensions
        kept: list[array[float]] = []
        for vector in vectors:
            kept.append(shortened(vector, wanted))
            if wanted != model.sizes.dimensions:  # a loop over numbers: others have their turn
                await anyio.lowlevel.checkpoint()
        return Embeddings(tuple(kept), sum(map(len, ids)))

    async def _read(
        self, model: EmbeddingModel, ids: Sequence[Sequence[TokenId]]
    ) -> list[array[float]]:
        work = TextWork(model, ids, self._rate, self._now)
        self._service.engine.run_between_steps(work)
        try:
            await work.over.wait()
        finally:
            work.wanted = False
        if work.error is not None:
            raise Refused("engine_failed", "the model failed on these texts; see the server's log")
        return work.vectors


class Rate:
    """How quickly the model reads, in tokens a second; 0 is not measured.  Engine's thread."""

    def __init__(self) -> None:
        self.tokens_per_second = 0.0


class TextWork:
    """The texts of one request, as work between steps.  See `between_steps.Piecework`.

    Made on the event loop, where `over` is set at the end; in between it is the engine's.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        texts: Sequence[Sequence[TokenId]],
        rate: Rate,
        now: Callable[[], float],
    ) -> None:
        self.wanted = True  # False stops it before its next piece; any thread may say so
        self.over = anyio.Event()
        self.error: Exception | None = None
        self.vectors: list[array[float]] = [array("f")] * len(texts)
        self._num_left = len(texts)
        self._num_read = 0.0
        self._model = model
        self._texts = texts
        self._rate = rate
        self._now = now
        self._run: EmbeddingRun | None = None

    def advance(self, *, alone: bool) -> Piece:
        if not self.wanted:
            self._run = None  # and with it what it holds
            return Piece("nothing")
        started, rate = self._now(), self._rate
        if self._run is None:
            self._run = self._model.embedder.begin(self._texts)
        wanted = piece_tokens(rate.tokens_per_second, alone=alone)
        num_tokens, complete = self._run.advance(wanted)
        seconds = self._now() - started
        rate.tokens_per_second = measured(rate.tokens_per_second, num_tokens, seconds)
        for place, vector in complete:
            self.vectors[place] = vector
        self._num_left -= len(complete)
        told, self._num_read = round(self._num_read), self._num_read + num_tokens
        half = self._run.holds
        if not self._num_left:
            self._run = None
        return Piece(
            "half" if half else "more" if self._num_left else "nothing",
            (TextsEmbedded(len(complete), round(self._num_read) - told, seconds),),
        )

    def ended(self, error: Exception | None) -> None:
        self.error, self._run = error, None
        self.over.set()


def _check(model: EmbeddingModel, ask: EmbeddingAsk) -> None:
    if not ask.texts:
        raise Refused("invalid_value", "input must not be empty", "input")
    if len(ask.texts) > MAX_TEXTS:
        message = f"input has {len(ask.texts)} texts; at most {MAX_TEXTS} are embedded at once"
        raise Refused("invalid_value", message, "input")
    most = model.sizes.dimensions
    if ask.dimensions is not None and not 1 <= ask.dimensions <= most:
        message = f"dimensions must be between 1 and {most}, this model's, not {ask.dimensions}"
        raise Refused("invalid_value", message, "dimensions")
    if ask.instruction and not model.sizes.instructed:
        message = f"instruction: {model.card.id!r} was not trained with one; leave it out"
        raise Refused("unsupported", message, "instruction")
    if ask.instruction and not all(isinstance(text, str) for text in ask.texts):
        message = "instruction stands before texts, and input has token ids"
        raise Refused("unsupported", message, "instruction")


def _encoded(model: EmbeddingModel, ask: EmbeddingAsk) -> list[Sequence[TokenId]]:
    one = len(ask.texts) == 1
    return [
        _ids(model, text, ask.instruction, "input" if one else f"input[{i}]")
        for i, text in enumerate(ask.texts)
    ]


def _ids(
    model: EmbeddingModel, text: str | Sequence[int], instruction: str | None, field: str
) -> Sequence[TokenId]:
    most = model.sizes.max_tokens
    if not text:
        raise Refused("invalid_value", f"{field} must not be empty", field)
    if isinstance(text, str):
        # Source: the model card of Qwen3-Embedding.
        said = f"Instruct: {instruction}\nQuery:{text}" if instruction else model.prefix + text
        said = said.lower() if model.lower_case else said
        if len(said) > SLICE_CHARS:
            _check_length(tokens_at_least(model.tokenizer, said, most), most, field)
        ids = [*model.tokenizer.encode(said, add_special=True), *model.suffix]
        if not ids:
            raise Refused("invalid_value", f"{field} has no tokens", field)
    else:
        vocab_size = model.card.vocab_size
        bad = next((i for i in text if not 0 <= i < vocab_size), None)
        if bad is not None:
            message = (
                f"{field}: {bad} is no token id of {model.card.id!r}, whose vocabulary has "
                f"{vocab_size} tokens: {EXPECTED_IDS}"
            )
            raise Refused("invalid_value", message, field)
        ids = list(map(TokenId, text))
    _check_length(len(ids), most, field)
    return ids


def _check_length(num_tokens: int, most: int, field: str) -> None:
    if num_tokens > most:
        # In the words that clients look for: see `prepare`.
        message = (
            f"{field} is too long: {num_tokens} tokens > {most} maximum; this model's maximum "
            f"context length is {most} tokens"
        )
        raise Refused("context_length_exceeded", message, field)
