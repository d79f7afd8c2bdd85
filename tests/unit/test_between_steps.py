"""Work beside rows: a piece a turn at most, nobody waits for ever, failures stay where they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pytest

from doubles.compute import GREETING, ScriptedCompute
from doubles.journal import ListJournal
from mlxbun.application.between_steps import BetweenSteps, Piece
from mlxbun.application.engine import Engine
from mlxbun.application.requests import Drawn, Item, Outbox, RequestSpec
from mlxbun.domain.embedding import TextsEmbedded
from mlxbun.domain.journal import Event
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits, StepCommitted

SECONDS = 20


class Work:
    """So many pieces, each of which is an event with the number of this work."""

    def __init__(
        self,
        number: int,
        num_pieces: int,
        breaks_at: int | None = None,
        half: Sequence[int] = (),
    ) -> None:
        self.half = half  # numbers of pieces left where a thing is half done
        self.number, self.num_left, self.breaks_at = number, num_pieces, breaks_at
        self.alone: list[bool] = []
        self.error: Exception | None = None
        self.over = threading.Event()

    def advance(self, *, alone: bool) -> Piece:
        assert not self.over.is_set()
        self.alone.append(alone)
        if len(self.alone) == self.breaks_at:
            raise RuntimeError("it broke, as it was told to")
        self.num_left -= 1
        left: Literal["nothing", "more", "half"] = "more" if self.num_left else "nothing"
        if self.num_left in self.half:
            left = "half"
        return Piece(left, (TextsEmbedded(0, self.number, 0.0),))

    def ended(self, error: Exception | None) -> None:
        assert not self.over.is_set(), "it is told once"
        self.error = error
        self.over.set()


class Bench:
    """An engine on a scripted model, and the order of all that it did."""

    def __init__(self, compute: ScriptedCompute | None = None) -> None:
        self.journal = ListJournal()
        self.compute = compute or ScriptedCompute()
        self.engine = Engine(lambda: self.compute, Limits(), self.journal)
        self.failed = threading.Event()
        ready = threading.Event()
        self.engine.start(self._tell, ready.set, lambda _: self.failed.set())
        assert ready.wait(SECONDS)

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)
        for call in outbox.calls:
            call()

    def row(self, prompt: str) -> Row:
        row = Row(RequestId(prompt))
        ids = tuple(TokenId(b) for b in prompt.encode())
        params = SamplingParams(temperature=0.0)
        self.engine.submit(
            RequestSpec(row.request_id, ids, 10_000, frozenset({TokenId(257)}), params), row
        )
        return row

    def add(self, *works: Work) -> None:
        for work in works:
            self.engine.run_between_steps(work)

    @property
    def log(self) -> list[Event]:
        return [event for batch in self.journal.read() for event in batch.events]


class Row:
    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        self.tokens: list[int] = []
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        with self._changed:
            self.tokens += [item.token_id] if isinstance(item, Drawn) else []
            self._changed.notify_all()

    def wait(self, holds: Callable[[list[int]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.tokens), SECONDS)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.engine.stop()


def test_a_running_row_draws_a_token_between_any_two_pieces(bench: Bench) -> None:
    row = bench.row("[forever]")
    row.wait(lambda tokens: len(tokens) > 3)
    works = [Work(1, 50), Work(2, 30)]
    bench.add(*works)
    for work in works:
        assert work.over.wait(SECONDS) and work.error is None
    bench.engine.cancel(row.request_id)
    log = [e for e in bench.log if isinstance(e, TextsEmbedded | StepCommitted)]
    pieces = [i for i, event in enumerate(log) if isinstance(event, TextsEmbedded)]
    assert len(pieces) == 80
    for one, next_ in zip(pieces, pieces[1:], strict=False):
        between = [e for e in log[one + 1 : next_] if isinstance(e, StepCommitted)]
        assert between and all(step.num_decoded for step in between)
    assert not any(work.alone.count(True) for work in works)


def test_works_take_turns_so_a_short_one_is_over_first(bench: Bench) -> None:
    row = bench.row("[forever]")
    row.wait(lambda tokens: len(tokens) > 3)
    long, short = Work(1, 400), Work(2, 3)
    bench.add(long, short)
    assert short.over.wait(SECONDS) and long.over.wait(SECONDS)
    bench.engine.cancel(row.request_id)
    numbers = [e.num_tokens for e in bench.log if isinstance(e, TextsEmbedded)]
    last = max(i for i, number in enumerate(numbers) if number == 2)
    from_short = numbers.index(2)
    assert numbers[from_short : last + 1] == [2, 1, 2, 1, 2]


def test_without_rows_pieces_follow_one_another_and_the_engine_rests_after(bench: Bench) -> None:
    work = Work(1, 20)
    bench.add(work)
    assert work.over.wait(SECONDS)
    assert work.alone == [True] * 20
    row = bench.row("hello")
    row.wait(lambda tokens: tokens[-1:] == [257])
    assert bytes(row.tokens[:-1]).decode() == GREETING


def test_work_that_breaks_is_told_so_and_disturbs_nobody(bench: Bench) -> None:
    row = bench.row("[forever]")
    row.wait(lambda tokens: len(tokens) > 3)
    broken, sound = Work(1, 9, breaks_at=2), Work(2, 9)
    bench.add(broken, sound)
    assert broken.over.wait(SECONDS) and sound.over.wait(SECONDS)
    assert isinstance(broken.error, RuntimeError) and len(broken.alone) == 2
    assert sound.error is None and len(sound.alone) == 9
    num_tokens = len(row.tokens)
    row.wait(lambda tokens: len(tokens) > num_tokens)
    bench.engine.cancel(row.request_id)


def test_a_step_that_breaks_ends_its_rows_and_no_work(bench: Bench) -> None:
    work = Work(1, 300)
    bench.add(work)
    bench.row("[break step]")
    assert work.over.wait(SECONDS) and work.error is None


class Hopeless(ScriptedCompute):
    """A device that is gone: steps break, and so does the way back."""

    def dispatch(self, plan: object) -> tuple[()]:
        raise RuntimeError("the device is gone")

    def reset(self) -> None:
        raise RuntimeError("the device is gone")


def test_an_engine_that_cannot_go_on_ends_work_that_waits_and_that_comes_later() -> None:
    bench = Bench(Hopeless())
    waiting, later = Work(1, 10**9), Work(2, 1)
    bench.add(waiting)
    bench.row("hello")
    assert bench.failed.wait(SECONDS)
    assert waiting.over.wait(SECONDS) and waiting.error is not None
    bench.add(later)
    assert later.over.wait(SECONDS) and later.error is not None
    bench.engine.stop()


def test_stopping_ends_work_that_waits() -> None:
    bench = Bench()
    work = Work(1, 10**9)
    bench.add(work)
    bench.engine.stop()
    assert work.over.is_set() and work.error is not None


def test_what_is_half_done_is_done_before_the_work_of_others() -> None:
    between, done = BetweenSteps(), list[Event]()
    for work in (Work(1, 5, half=(3, 2)), Work(2, 3)):
        between.add(work)
    while between:
        done += between.advance(alone=True)
    numbers = [event.num_tokens for event in done if isinstance(event, TextsEmbedded)]
    assert numbers == [1, 2, 1, 1, 1, 2, 1, 2]


def test_the_end_is_told_once_and_nothing_is_left() -> None:
    between, works = BetweenSteps(), [Work(i, i) for i in (1, 2)]
    for work in works:
        between.add(work)
    while between:
        between.advance(alone=True)
    for call in between.take_ended():
        call()
    assert [work.over.is_set() for work in works] == [True, True]
    assert between.take_ended() == () and between.advance(alone=True) == ()
