from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import pytest

from doubles.tokenizer import EOS, ByteTokenizer
from mlxbun.application.generation import open_generation
from mlxbun.application.requests import Accepted, Drawn, Ended, Item, Mailbox, RequestSpec
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, SamplingParams, TokenId

pytestmark = pytest.mark.anyio
BROKE = Ended("failed", Refused("engine_failed", "the model failed on this request"))
FULL = Ended("rejected", Refused("queue_full", "too many wait"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class AtOnce:
    """Port Submitter: each row's items are there as soon as it is submitted."""

    def __init__(self, *rows: Sequence[Item]) -> None:
        self.cancelled: list[RequestId] = []
        self._rows = list(rows)

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        for item in self._rows.pop(0):
            mailbox.put(item)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        raise AssertionError("no stop string was asked for")

    def cancel(self, request_id: RequestId) -> None:
        self.cancelled.append(request_id)


def specs(number: int) -> list[RequestSpec]:
    return [
        RequestSpec(RequestId(f"r-{i}"), (TokenId(1),), 9, frozenset({EOS}), SamplingParams())
        for i in range(number)
    ]


async def texts(engine: AtOnce, number: int) -> list[str]:
    tokenizer = ByteTokenizer()
    said = [""] * number
    async with (
        open_generation(engine, specs(number), (), tokenizer.decoder) as generation,
        aclosing(generation.pieces()) as pieces,
    ):
        async for piece in pieces:
            said[piece.row] += piece.text
    return said


async def test_a_row_that_breaks_as_soon_as_it_is_accepted_was_accepted() -> None:
    engine = AtOnce([Accepted(), BROKE], [Accepted()])
    decoder = ByteTokenizer().decoder
    async with open_generation(engine, specs(2), (), decoder) as generation:
        assert all(row.accepted for row in generation.rows)
        with pytest.raises(Refused, match="the model failed"):
            await anext(generation.pieces())
    assert engine.cancelled == ["r-1"]


async def test_of_rows_the_one_that_is_refused_is_told_and_the_others_are_cancelled() -> None:
    engine = AtOnce([Accepted(), Drawn(TokenId(65), None)], [FULL])
    with pytest.raises(Refused, match="too many wait"):
        await texts(engine, 2)
    assert engine.cancelled == ["r-0"]


async def test_what_comes_before_all_rows_are_accepted_is_not_lost() -> None:
    row: list[Item] = [Accepted(), *(Drawn(TokenId(i), None) for i in b"ab"), Ended("length")]
    assert await texts(AtOnce(row, row), 2) == ["ab", "ab"]
