"""The engine loop with a scripted model: order, endings, failures, and what is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import pytest

from doubles.compute import GREETING, ScriptedCompute
from doubles.grammar import Texts
from doubles.journal import ListJournal
from mlxbun.application.engine import Engine
from mlxbun.application.requests import Accepted, Drawn, Ended, Item, Outbox, RequestSpec
from mlxbun.domain import memory, sampling, scheduling
from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.constraint import Matcher, RowGrammar
from mlxbun.domain.memory import MemoryUse
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import RowFailure, StepPlan, StepResult

EOS = frozenset({TokenId(257)})
SECONDS = 20


class Client:
    """A mailbox that wakes whoever waits for it."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def wait(self, enough: Callable[[Client], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self), SECONDS), self.items

    @property
    def tokens(self) -> list[int]:
        return [int(item.token_id) for item in self.items if isinstance(item, Drawn)]

    @property
    def end(self) -> Ended | None:
        last = self.items[-1] if self.items else None
        return last if isinstance(last, Ended) else None

    def ended(self) -> Ended:
        self.wait(lambda client: client.end is not None)
        assert self.end is not None
        return self.end


class Bench:
    """An engine on a scripted model, and everything that it said."""

    def __init__(self, limits: Limits, compute: ScriptedCompute | None = None) -> None:
        self.compute = compute or ScriptedCompute(step_seconds=0.0005)
        self.journal = ListJournal()
        self.engine = Engine(lambda: self.compute, limits, self.journal)
        self.failures: list[Exception] = []
        self.ready = threading.Event()
        self.failed = threading.Event()
        self.engine.start(self._tell, self.ready.set, self._on_failed)
        self._count = 0

    def _on_failed(self, error: Exception) -> None:
        self.failures.append(error)
        self.failed.set()

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    def ask(
        self, prompt: str, max_tokens: int = 1000, texts: Sequence[str] | None = None
    ) -> tuple[RequestId, Client]:
        """Submit a request, whose answer is one of `texts`."""
        self._count += 1
        client, request_id = Client(), RequestId(f"r{self._count}")
        ids = tuple(TokenId(b) for b in prompt.encode())
        params = SamplingParams(temperature=0.0)
        grammar = RowGrammar("digest", Texts(texts)) if texts is not None else None
        spec = RequestSpec(request_id, ids, max_tokens, EOS, params, grammar=grammar)
        self.engine.submit(spec, client)
        return request_id, client

    def settle(self) -> None:
        """Wait until the engine has nothing left to do."""
        _, client = self.ask("hi", 1)
        client.ended()

    @property
    def log(self) -> list[object]:
        return [event for batch in self.journal.read() for event in batch.events]


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(Limits(max_rows=3, max_waiting=2, max_chunk_tokens=16))
    assert made.ready.wait(SECONDS)
    yield made
    made.engine.stop()
    assert made.compute.num_rows == 0, "stopping releases every row"


def test_an_answer_comes_in_order_and_ends_once(bench: Bench) -> None:
    _, client = bench.ask("hello")
    assert client.ended() == Ended("stop")
    assert isinstance(client.items[0], Accepted)
    assert bytes(client.tokens[:-1]).decode() == GREETING
    assert client.tokens[-1] == 257, "the end token counts, though it is not text"
    assert sum(isinstance(item, Ended) for item in client.items) == 1


def test_max_tokens_ends_a_row_at_its_token(bench: Bench) -> None:
    _, client = bench.ask("hello", 5)
    assert client.ended() == Ended("length")
    assert len(client.tokens) == 5


def test_a_cancelled_request_hears_nothing_more_and_leaves_no_row(bench: Bench) -> None:
    request_id, client = bench.ask("[forever]")
    client.wait(lambda c: len(c.tokens) > 3)
    bench.engine.cancel(request_id)
    bench.settle()
    bench.settle()
    assert client.end is None
    assert bench.compute.num_rows == 0
    assert scheduling.RequestCancelled(request_id) in bench.log


def test_a_stop_string_finishes_a_row_from_outside(bench: Bench) -> None:
    request_id, client = bench.ask("[forever]")
    client.wait(lambda c: len(c.tokens) > 3)
    bench.engine.finish(request_id, "stop")
    bench.settle()
    assert scheduling.RequestFinished(request_id, "stop") in bench.log
    assert bench.compute.num_rows == 0


def test_the_queue_refuses_what_it_cannot_hold_and_serves_the_rest(bench: Bench) -> None:
    clients = [bench.ask("[say:" + "x" * 60 + "]") for _ in range(12)]
    ends = [client.ended() for _, client in clients]
    rejected = [end for end in ends if end.reason == "rejected"]
    assert rejected and len(rejected) < 12
    assert {end.refusal.code for end in rejected if end.refusal} == {"queue_full"}
    assert [end.reason for end in ends if end.reason != "rejected"] == ["stop"] * (
        12 - len(rejected)
    )


def test_a_row_that_breaks_ends_alone(bench: Bench) -> None:
    _, healthy = bench.ask("[say:still here]")
    _, broken = bench.ask("[break row] " + "x" * 40)
    end = broken.ended()
    assert end.reason == "failed"
    assert end.refusal is not None and end.refusal.code == "engine_failed"
    assert healthy.ended() == Ended("stop")


def test_a_step_that_breaks_ends_its_rows_and_the_engine_serves_on(bench: Bench) -> None:
    _, neighbour = bench.ask("[forever]")
    neighbour.wait(lambda c: len(c.tokens) > 2)
    _, broken = bench.ask("[break step]")
    assert broken.ended().reason == "failed"
    assert neighbour.ended().reason == "failed"
    _, after = bench.ask("hello")
    assert after.ended() == Ended("stop")
    assert bytes(after.tokens[:-1]).decode() == GREETING


def test_those_who_wait_survive_a_step_that_breaks(bench: Bench) -> None:
    running = [bench.ask("[forever]") for _ in range(2)]
    for _, client in running:
        client.wait(lambda c: len(c.tokens) > 2)
    _, broken = bench.ask("[break step]")
    _, waiting = bench.ask("[say:my turn]")
    assert broken.ended().reason == "failed"
    assert waiting.ended() == Ended("stop")


def test_a_drain_lets_the_old_finish_and_rejects_the_new(bench: Bench) -> None:
    _, old = bench.ask("[say:" + "x" * 40 + "]")
    old.wait(lambda c: len(c.tokens) > 2)
    bench.engine.drain()
    _, new = bench.ask("hello")
    end = new.ended()
    assert end.reason == "rejected" and end.refusal is not None
    assert end.refusal.code == "draining"
    assert old.ended() == Ended("stop")


def test_a_model_that_does_not_load_is_reported() -> None:
    failures: list[Exception] = []
    failed = threading.Event()

    def broken() -> ScriptedCompute:
        raise RuntimeError("no such model")

    def on_failed(error: Exception) -> None:
        failures.append(error)
        failed.set()

    engine = Engine(broken, Limits(), ListJournal())
    engine.start(lambda _: None, lambda: None, on_failed)
    assert failed.wait(SECONDS)
    engine.stop()
    assert str(failures[0]) == "no such model"


def test_the_journal_alone_rebuilds_what_the_engine_decided(bench: Bench) -> None:
    clients = [bench.ask("[say:one two three]", 6 + i) for i in range(3)]
    request_id, forever = bench.ask("[forever]")
    for _, client in clients:
        client.ended()
    forever.wait(lambda c: len(c.tokens) > 5)
    bench.engine.cancel(request_id)
    bench.settle()
    bench.engine.stop()
    batches = list(bench.journal.read())
    assert [b.sequence for b in batches] == list(range(1, len(batches) + 1))
    scheduled = scheduling.Scheduling(Limits(max_rows=3, max_waiting=2, max_chunk_tokens=16))
    sampled = sampling.Sampling()
    for event in bench.log:
        if isinstance(event, sampling.Event):
            sampled = sampling.evolve(sampled, event)
        elif not isinstance(event, memory.Event):
            assert isinstance(event, scheduling.Event)
            scheduled = scheduling.evolve(scheduled, event)
    assert not scheduled.rows and not scheduled.waiting
    assert not sampled.sessions
    counted = sum(len(e.token_ids) for e in bench.log if isinstance(e, sampling.TokensCommitted))
    assert counted == sum(len(c.tokens) for _, c in clients) + len(forever.tokens) + 1


def test_a_tokens_step_is_one_event_however_many_rows(bench: Bench) -> None:
    clients = [bench.ask("[say:abcdef]") for _ in range(3)]
    for _, client in clients:
        client.ended()
    steps = [e for e in bench.log if isinstance(e, sampling.TokensCommitted)]
    assert len({e.step for e in steps}) == len(steps)
    assert max(len(e.request_ids) for e in steps) == 3


class Fragile(ScriptedCompute):
    """Breaks where it is told to, once or for ever."""

    def __init__(self, where: str, *, for_ever: bool = False) -> None:
        super().__init__(step_seconds=0.0005)
        self.where: str | None = where
        self._for_ever = for_ever

    def _break(self, where: str) -> None:
        if self.where == where:
            self.where = where if self._for_ever else None
            raise RuntimeError(f"{where} broke")

    def open_row(
        self,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        params: SamplingParams,
        prefix: tuple[BlockKey, ...] = (),
        num_cached: int = 0,
        num_drawn: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        self._break("open_row")
        super().open_row(request_id, prompt_ids, params, prefix, num_cached, num_drawn, matcher)

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        self._break("dispatch")
        return super().dispatch(plan)

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        self._break("wait_prefill")
        return super().wait_prefill()

    def collect(self) -> StepResult:
        self._break("collect")
        return super().collect()

    def close_row(self, request_id: RequestId) -> None:
        self._break("close_row")
        super().close_row(request_id)

    def memory(self) -> MemoryUse:
        self._break("memory")
        return super().memory()

    def reset(self) -> None:
        if self.where == "reset" or (self._for_ever and self.where != "memory"):
            raise RuntimeError("reset broke")
        super().reset()


@pytest.mark.parametrize("where", ["open_row", "dispatch", "wait_prefill", "collect"])
def test_wherever_a_step_breaks_its_rows_end_and_the_next_request_is_served(where: str) -> None:
    bench = Bench(Limits(max_rows=3, max_chunk_tokens=16), Fragile(where))
    try:
        _, broken = bench.ask("hello there, this is a prompt")
        assert broken.ended().reason == "failed"
        _, after = bench.ask("hello")
        assert after.ended() == Ended("stop")
        assert bytes(after.tokens[:-1]).decode() == GREETING
        assert not bench.failures
    finally:
        bench.engine.stop()


def test_an_engine_that_cannot_even_drop_its_rows_says_so_and_leaves_nobody_waiting() -> None:
    bench = Bench(Limits(max_rows=3), Fragile("dispatch", for_ever=True))
    _, client = bench.ask("hello")
    _, other = bench.ask("hello")
    assert client.ended().reason == "failed"
    assert other.ended().reason == "failed"
    assert bench.failed.wait(SECONDS)
    assert str(bench.failures[0]) == "reset broke"
    _, late = bench.ask("hello")
    assert late.ended().reason == "failed"
    bench.engine.stop()


def test_a_row_that_cannot_be_opened_ends_alone() -> None:
    compute = Fragile("")
    bench = Bench(Limits(max_rows=3, max_chunk_tokens=16), compute)
    try:
        _, neighbour = bench.ask("[forever]")
        neighbour.wait(lambda c: len(c.tokens) > 2)
        compute.where = "open_row"
        _, broken = bench.ask("hello there, this is a prompt")
        assert broken.ended().reason == "failed"
        seen = len(neighbour.tokens)
        neighbour.wait(lambda c: len(c.tokens) > seen + 2)
        assert neighbour.end is None
        assert compute.num_rows == 1
    finally:
        bench.engine.stop()


def test_a_grammar_whose_matcher_cannot_be_made_ends_its_row_alone(bench: Bench) -> None:
    class Unmade(Texts):
        def matcher(self) -> NoReturn:
            raise MemoryError("no room for a matcher")

    _, neighbour = bench.ask("[say:still here]")
    client = Client()
    ids, grammar = (TokenId(65), TokenId(66)), RowGrammar("digest", Unmade(["yes"]))
    params = SamplingParams(temperature=0.0)
    bench.engine.submit(
        RequestSpec(RequestId("unmade"), ids, 9, EOS, params, grammar=grammar), client
    )
    assert client.ended().reason == "failed"
    assert neighbour.ended() == Ended("stop")


class Hanging(ScriptedCompute):
    """A device that answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def collect(self) -> StepResult:
        self.asked.set()
        assert self.may_answer.wait(SECONDS)
        return super().collect()


def test_a_device_that_hangs_does_not_keep_the_engine_from_being_left() -> None:
    compute = Hanging()
    bench = Bench(Limits(), compute)
    bench.ask("hello")
    assert compute.asked.wait(SECONDS)
    assert not bench.engine.stop(0.01)
    compute.may_answer.set()
    assert bench.engine.stop()


def test_turns_that_break_without_a_row_to_blame_end_and_leave_nobody_waiting() -> None:
    bench = Bench(Limits(max_rows=3), Fragile("memory", for_ever=True))
    assert bench.failed.wait(SECONDS), "it would break and be logged for ever"
    _, late = bench.ask("hello")
    assert late.ended().reason == "failed"
    bench.engine.stop()


def test_a_row_that_keeps_to_a_grammar_ends_when_it_is_complete(bench: Bench) -> None:
    _, client = bench.ask("[say:yes, indeed]", texts=["yes", "no"])
    assert client.ended() == Ended("stop")
    assert bytes(client.tokens) == b"yes"


def test_a_text_complete_at_its_last_token_ends_by_itself(bench: Bench) -> None:
    _, client = bench.ask("[say:yes]", 3, ["yes"])
    assert client.ended() == Ended("stop")


def test_a_row_that_cannot_go_on_fails_alone(bench: Bench) -> None:
    _, stuck = bench.ask("[say:x]", 9, [])
    others = [bench.ask("[say:fine]", 9)[1], bench.ask("x", 9, ["ok"])[1]]
    assert stuck.ended().reason == "failed"
    assert [client.ended() for client in others] == [Ended("stop"), Ended("stop")]
