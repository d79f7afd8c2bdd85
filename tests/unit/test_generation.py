from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from doubles.tokenizer import EOS, ByteTokenizer
from mlxbun.application.generation import open_generation
from mlxbun.application.requests import Accepted, Drawn, Ended, Item, Mailbox, RequestSpec
from mlxbun.application.row_text import Row
from mlxbun.domain.conversation import PlainText
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import TokenLogprobs

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


class Words:
    """Port TokenDecoder: a token is one of `words`, as bytes that need not be whole characters."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: TokenId) -> str:
        return self._utf8.decode(self._words[token_id])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class Told(Struct):
    """What was told of a row: its text, and its tokens' bytes as far as they are shown."""

    text: str = ""
    tokens: list[bytes] = []
    num_cut: int = 0


def told(
    words: Sequence[bytes], stops: Sequence[str], size: int, early: list[tuple[str, bytes]]
) -> Told:
    """Generate `words`, `size` of them at a time; note in `early` what was told after each."""
    said = Told()
    row = Row(0, specs(1)[0], stops, Words(words), PlainText())
    drawn: list[Drawn | Ended] = [Drawn(TokenId(i), TokenLogprobs(-0.5)) for i in range(len(words))]
    items = [*drawn, Ended("length")]
    for at in range(0, len(items), size):
        if row.ended:
            break
        piece = row.read(items[at : at + size])
        said.text += piece.text
        said.tokens += [words[token_id] for token_id, _ in piece.tokens]
        said.num_cut = piece.num_cut
        assert piece.spoken == piece.tokens
        early.append((said.text, b"".join(said.tokens)))
    assert row.ended
    return said


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "bé", "é👋", "ba", "👋"]), min_size=1, max_size=12),
    st.lists(st.integers(1, 3), min_size=1, max_size=30),
    st.lists(st.sampled_from(["ab", "bé", "éa", "👋", "bab", "é👋b"]), max_size=2),
    st.integers(1, 4),
)
def test_the_tokens_that_are_told_are_those_of_the_text(
    texts: list[str], sizes: list[int], stops: list[str], size: int
) -> None:
    """Whatever stop strings cut, across tokens, within one, or within a character's bytes."""
    left = "".join(texts).encode()
    words: list[bytes] = []
    for length in itertools.cycle(sizes):
        words.append(left[:length])
        left = left[length:]
        if not left:
            break
    early: list[tuple[str, bytes]] = []
    said = told(words, stops, size, early)
    shown = b"".join(said.tokens)
    assert said.tokens == words[: len(said.tokens)], "in order, none left out"
    if said.num_cut:
        assert len(shown.decode(errors="ignore")) == len(said.text) + said.num_cut
        assert len(said.tokens[-1].decode(errors="replace")) >= said.num_cut
        shown = shown.decode(errors="ignore")[: -said.num_cut].encode()
    # Half a character before a stop string that begins with it is of no text.
    assert shown.decode(errors="ignore") == said.text
    assert len(shown) - len(said.text.encode()) < 4
    for text, bytes_ in early[:-1]:
        assert text.startswith(bytes_.decode(errors="ignore")), "no token comes before its text"
