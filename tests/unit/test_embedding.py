"""Vectors made shorter, the pace of pieces, and the use case over a scripted model."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from doubles import server
from doubles.carrier import running
from doubles.embedder import ScriptedEmbedder, vector_of
from mlxbun.application.embedding import Embedding, EmbeddingAsk
from mlxbun.application.prepare import Preparer
from mlxbun.application.service import Service
from mlxbun.domain.embedding import (
    FIRST_PIECE_TOKENS,
    MAX_PIECE_TOKENS,
    SECONDS_ALONE,
    SECONDS_BESIDE_ROWS,
    measured,
    piece_tokens,
    shortened,
)
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import TokenId

numbers = st.floats(-1e3, 1e3, width=32)


@given(st.lists(numbers, min_size=1, max_size=40).flatmap(
    lambda v: st.tuples(st.just(v), st.integers(1, len(v)))
))  # fmt: skip
def test_a_shortened_vector_points_where_its_first_dimensions_do(
    made: tuple[list[float], int],
) -> None:
    vector, dimensions = array("f", made[0]), made[1]
    kept = shortened(vector, dimensions)
    assert len(kept) == dimensions
    if dimensions == len(vector):
        assert kept == vector
        return
    length = math.sqrt(math.fsum(x * x for x in vector[:dimensions]))
    assert [x * length for x in kept] == pytest.approx(vector[:dimensions].tolist(), abs=1e-3)
    if length:
        assert math.sqrt(math.fsum(x * x for x in kept)) == pytest.approx(1.0, abs=1e-5)


@given(st.floats(1e-3, 1e9), st.booleans())
def test_a_piece_is_what_is_read_in_its_time_up_to_a_limit(rate: float, alone: bool) -> None:
    tokens = piece_tokens(rate, alone=alone)
    assert 0 < tokens <= MAX_PIECE_TOKENS
    seconds = SECONDS_ALONE if alone else SECONDS_BESIDE_ROWS
    if tokens < MAX_PIECE_TOKENS:
        assert tokens == rate * seconds


def test_the_first_piece_is_short_and_the_rate_follows_what_is_measured() -> None:
    assert piece_tokens(0.0, alone=True) == FIRST_PIECE_TOKENS
    rate = measured(0.0, 1000, 0.5)
    assert rate == 2000.0
    assert measured(rate, 1000, 1.0) == 2000.0 - 1000.0 / 4
    assert measured(rate, 5, 0.0) > 0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Asked(Struct, frozen=True):
    """A running service with an embedder, and the use case on it."""

    service: Service
    embedder: ScriptedEmbedder
    use_case: Embedding

    async def embed(self, *texts: str | Sequence[int]) -> Sequence[array[float]]:
        model = await self.use_case.model(None)
        return (await self.use_case.embed(model, EmbeddingAsk(texts))).vectors


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    embedder = ScriptedEmbedder()
    async with running(server.service(embedder=embedder)) as service:
        await service.model()
        yield Asked(service, embedder, Embedding(service, Preparer(service, load_seconds=5.0)))


def ids(*numbers: int) -> list[TokenId]:
    return [*map(TokenId, numbers)]


@pytest.mark.anyio
async def test_each_of_many_requests_at_once_gets_its_own_vectors(asked: Asked) -> None:
    got: dict[int, Sequence[array[float]]] = {}

    async def embed(n: int) -> None:
        got[n] = await asked.embed([n, n + 1], [n + 2])

    async with anyio.create_task_group() as tasks:
        for n in range(10, 10 + server.MAX_EMBEDDING):
            tasks.start_soon(embed, n)
    assert got == {n: (vector_of(ids(n, n + 1)), vector_of(ids(n + 2))) for n in got}
    assert len(got) == server.MAX_EMBEDDING


@pytest.mark.anyio
async def test_a_request_that_is_left_reads_no_further_and_makes_room(asked: Asked) -> None:
    texts = [[1, 2, 3, 4, 5] * 20] * 300
    asked.embedder.hold.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(server.MAX_EMBEDDING):
            tasks.start_soon(asked.embed, *texts)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    asked.embedder.hold.set()
    assert await asked.embed([9]) == (vector_of(ids(9)),)
    assert len(asked.embedder.pieces) <= 2, "the piece that was being read, and the last request's"


@pytest.mark.anyio
async def test_what_the_model_wants_around_a_text_is_put_there(asked: Asked) -> None:
    model = await asked.use_case.model(None)
    wanting = replace(model, prefix="Q: ", suffix=(TokenId(3),), lower_case=True)
    made = await asked.use_case.embed(wanting, EmbeddingAsk(["ÀB", [65]]))
    read = [*model.tokenizer.encode("q: àb", add_special=True), 3]
    assert made.vectors == (vector_of([*map(TokenId, read)]), vector_of(ids(65)))
    assert made.num_tokens == len(read) + 1


@pytest.mark.anyio
async def test_an_instruction_needs_a_model_that_was_trained_with_one(asked: Asked) -> None:
    model = await asked.use_case.model(None)
    untrained = replace(model, sizes=replace(model.sizes, instructed=False))
    with pytest.raises(Refused) as caught:
        await asked.use_case.embed(untrained, EmbeddingAsk(["a"], instruction="Find it"))
    assert (caught.value.code, caught.value.field) == ("unsupported", "instruction")
