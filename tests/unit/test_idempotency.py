"""Answers under keys: who follows what, what is kept and for how long."""

from __future__ import annotations

import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from mlxbun.application.idempotency import Answers, Attempt, check_key
from mlxbun.application.requests import Accepted, Drawn, Ended, Item, Mailbox, RequestSpec
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, SamplingParams, TokenId

pytestmark = pytest.mark.anyio

FULL = Refused("queue_full", "no room")


class Engine:
    """A Submitter that remembers; a test says what the engine would."""

    def __init__(self) -> None:
        self.mailboxes: dict[RequestId, Mailbox] = {}
        self.finished: list[RequestId] = []
        self.cancelled: list[RequestId] = []

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        self.mailboxes[spec.request_id] = mailbox

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        self.finished.append(request_id)

    def cancel(self, request_id: RequestId) -> None:
        self.cancelled.append(request_id)


class Client:
    def __init__(self) -> None:
        self.items: list[Item] = []

    def put(self, item: Item) -> None:
        self.items.append(item)


class Clock:
    at = 100.0

    def __call__(self) -> float:
        return self.at


def specs(name: str, num_rows: int = 1) -> list[RequestSpec]:
    ids = (TokenId(1),)
    return [
        RequestSpec(RequestId(f"{name}-{i}"), ids, 9, frozenset(), SamplingParams())
        for i in range(num_rows)
    ]


def attempt(key: str = "key", asked: bytes = b"body") -> Attempt:
    return Attempt(key, asked)


def drawn(number: int) -> Drawn:
    return Drawn(TokenId(number), None)


@given(st.integers(0, 6), st.integers(0, 6))
def test_everybody_gets_everything_in_order_whenever_they_come(first: int, second: int) -> None:
    engine, answers = Engine(), Answers()
    items: list[Item] = [Accepted(), *map(drawn, range(5)), Ended("stop")]
    clients: list[Client] = []
    for place, item in enumerate(items):
        for _ in range((place == 0) + (place == first) + (place == second)):
            mine = specs(f"client{len(clients)}")
            holding = answers.attach(attempt(), mine, engine)
            clients.append(Client())
            holding.submit(mine[0], clients[-1])
        engine.mailboxes[RequestId("client0-0")].put(item)
    assert len(clients) == 3 and len(engine.mailboxes) == 1
    assert [client.items for client in clients] == [items] * 3


async def test_the_first_to_see_a_stop_string_ends_the_row_once_and_for_all() -> None:
    engine, answers = Engine(), Answers()
    clients, holdings = [Client(), Client()], []
    for number, client in enumerate(clients):
        mine = specs(f"client{number}")
        holdings.append(answers.attach(attempt(), mine, engine))
        holdings[-1].submit(mine[0], client)
    for number in range(2):
        holdings[number].finish(RequestId(f"client{number}-0"), "stop")
    assert engine.finished == [RequestId("client0-0")]
    engine.mailboxes[RequestId("client0-0")].put(drawn(7))  # drawn before the engine heard
    assert [client.items for client in clients] == [[Ended("stop")]] * 2


async def test_a_row_that_breaks_takes_its_answer_along_and_the_next_attempt_is_new() -> None:
    engine, answers = Engine(), Answers()
    mine = specs("one", 2)
    holding = answers.attach(attempt(), mine, engine)
    for spec in mine:
        holding.submit(spec, Client())
    engine.mailboxes[RequestId("one-0")].put(Ended("rejected", FULL))
    assert engine.cancelled == [RequestId("one-1")]
    answers.attach(attempt(), specs("two", 2), engine)
    assert len(engine.mailboxes) == 4
    answers.leave("key", holding)


def complete(answers: Answers, engine: Engine, key: str, num_tokens: int = 1) -> None:
    mine = specs(key)
    holding = answers.attach(attempt(key), mine, engine)
    mailbox = engine.mailboxes[RequestId(f"{key}-0")]
    items: list[Item] = [Accepted(), *map(drawn, range(num_tokens)), Ended("stop")]
    for item in items:
        mailbox.put(item)
    answers.leave(key, holding)


def is_kept(answers: Answers, key: str) -> bool:
    """Return whether another attempt is no new request.  It counts as an attempt."""
    engine = Engine()
    holding = answers.attach(attempt(key), specs("probe"), engine)
    client = Client()
    holding.submit(specs("probe")[0], client)
    return not engine.mailboxes


async def test_a_complete_answer_is_kept_for_its_time() -> None:
    clock = Clock()
    answers = Answers(now=clock, kept_seconds=10)
    complete(answers, Engine(), "key")
    clock.at += 10
    assert is_kept(answers, "key")
    clock.at += 0.1
    assert not is_kept(answers, "key")


async def test_the_oldest_go_when_there_are_too_many() -> None:
    answers, engine = Answers(max_kept=2), Engine()
    for key in "abc":
        complete(answers, engine, key)
    assert [is_kept(answers, key) for key in "abc"] == [False, True, True]


async def test_the_oldest_go_when_they_are_too_large() -> None:
    answers, engine = Answers(max_kept_bytes=30_000), Engine()
    complete(answers, engine, "a", 200)
    complete(answers, engine, "b", 200)
    assert [is_kept(answers, key) for key in "ab"] == [False, True]
    complete(answers, engine, "c", 1000)
    assert [is_kept(answers, key) for key in "bc"] == [False, False], "larger than all that is kept"


async def test_an_answer_that_is_left_is_cancelled_after_its_grace_and_not_before() -> None:
    engine, answers = Engine(), Answers(grace_seconds=0.001)
    mine = specs("one", 2)
    holding = answers.attach(attempt(), mine, engine)
    for spec in mine:
        holding.submit(spec, Client())
        holding.cancel(spec.request_id)
    assert not engine.cancelled
    answers.leave("key", holding)
    assert not engine.cancelled
    while not engine.cancelled:
        await checkpoint()
    assert engine.cancelled == [spec.request_id for spec in mine]
    assert not is_kept(answers, "key")


async def test_an_attempt_within_the_grace_goes_on_with_the_answer() -> None:
    engine, answers = Engine(), Answers(grace_seconds=60)
    first = answers.attach(attempt(), specs("one"), engine)
    answers.leave("key", first)
    grace = first.answer.grace
    assert grace is not None and not grace.cancelled()
    again = answers.attach(attempt(), specs("two"), engine)
    assert grace.cancelled() and again.answer is first.answer and again.answer.grace is None
    assert list(engine.mailboxes) == [RequestId("one-0")]
    engine.mailboxes[RequestId("one-0")].put(Ended("stop"))
    answers.leave("key", again)


async def test_an_answer_that_completes_in_its_grace_is_kept() -> None:
    engine, answers = Engine(), Answers(grace_seconds=60)
    mine = specs("one")
    holding = answers.attach(attempt(), mine, engine)
    answers.leave("key", holding)
    engine.mailboxes[RequestId("one-0")].put(Ended("stop"))
    assert holding.answer.grace is None
    assert is_kept(answers, "key")


@given(st.text(max_size=300))
def test_a_key_is_taken_as_it_is_or_refused(text: str) -> None:
    try:
        key = check_key(text)
    except Refused as refused:
        assert refused.field == "Idempotency-Key"
        assert len(text) > 255 or not text.isprintable()
    else:
        assert key == (text or None)


@given(st.text(min_size=1, max_size=20), st.binary())
def test_the_seed_is_the_keys_alone(key: str, asked: bytes) -> None:
    assert Attempt(key, asked).seed == Attempt(key, b"other").seed
    assert 0 <= Attempt(key, asked).seed < 2**63
