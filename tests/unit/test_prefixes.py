"""The engine with a prefix cache, on a model without tensors that checks what it is lent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from doubles.compute import ScriptedCompute
from doubles.journal import ListJournal
from mlxbun.application.checkpoints import Checkpoints
from mlxbun.application.engine import Engine
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.publication import BlockPublication
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec, Reused
from mlxbun.domain import residency
from mlxbun.domain.blocks import BLOCK, BlockInfo, Cuts, Namespace
from mlxbun.domain.generation_checkpoint import Addition, GenerationKey, Held
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits, PrefixReused, StepCommitted
from mlxbun.domain.steps import Compute, RowFailure, StepPlan

SPACE = Namespace("ab" * 32)
SECONDS = 20
GREEDY = SamplingParams(temperature=0.0)


class Client:
    def __init__(self) -> None:
        self.items: list[Item] = []
        self.over = threading.Event()

    def put(self, item: Item) -> None:
        self.items.append(item)
        if isinstance(item, Ended):
            self.over.set()

    @property
    def reason(self) -> str | None:
        last = self.items[-1] if self.items else None
        return last.reason if isinstance(last, Ended) else None

    @property
    def reused(self) -> int:
        return sum(item.num_tokens for item in self.items if isinstance(item, Reused))

    @property
    def tokens(self) -> list[int]:
        return [int(item.token_id) for item in self.items if isinstance(item, Drawn)]


class NoDisk:
    """No checkpoint is ever taken."""

    def takes(self, key: GenerationKey) -> bool:
        return False

    def held(self, key: GenerationKey) -> Held | None:
        return None

    def save(
        self, request_id: RequestId, addition: Addition, copies: Sequence[BlockInfo]
    ) -> None: ...

    def drop(self, key: GenerationKey) -> None: ...


class Bench:
    """An engine with a prefix cache on a scripted model."""

    def __init__(
        self,
        budget: int = 1 << 20,
        cuts: Cuts = "block",
        rows: int = 4,
        chunk: int = 512,
        compute: ScriptedCompute | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.compute = compute or ScriptedCompute(step_seconds=0.0005, cuts=cuts)
        self.prefixes = Prefixes(SPACE, Budget(budget))
        self.journal = ListJournal()
        limits = Limits(max_rows=rows, max_chunk_tokens=chunk, adaptive_chunks=False)
        self.engine = Engine(
            lambda: self.compute,
            limits,
            self.journal,
            open_prefixes=lambda: self.prefixes,
            open_checkpoints=lambda: checkpoints,
        )
        ready = threading.Event()
        self.engine.start(self._tell, ready.set, lambda _: None)
        assert ready.wait(SECONDS)
        self._count = 0

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    def submit(self, ids: Sequence[int], max_tokens: int = 3) -> tuple[RequestId, Client]:
        self._count += 1
        request_id, client = RequestId(f"r{self._count}"), Client()
        prompt = tuple(map(TokenId, ids))
        spec = RequestSpec(request_id, prompt, max_tokens, frozenset({TokenId(257)}), GREEDY)
        self.engine.submit(spec, client)
        return request_id, client

    def ask(self, ids: Sequence[int], max_tokens: int = 3) -> Client:
        _, client = self.submit(ids, max_tokens)
        assert client.over.wait(SECONDS)
        return client

    def events(self, kind: type) -> list[object]:
        return [e for batch in self.journal.read() for e in batch.events if isinstance(e, kind)]


@pytest.fixture
def bench() -> object:
    made = Bench()
    yield made
    made.engine.stop()
    assert made.compute.num_rows == 0
    assert not made.prefixes.blocks.state.lent and not made.prefixes.blocks.state.computing


def text(length: int, letter: str = "x") -> list[int]:
    return [ord(letter)] * length


def test_the_same_prompt_again_computes_its_end_only(bench: Bench) -> None:
    first, again = bench.ask(text(1000)), bench.ask(text(1000))
    assert (first.reused, again.reused) == (0, 999)
    assert first.tokens == again.tokens


def test_a_prompt_of_whole_blocks_computes_one_token_at_least(bench: Bench) -> None:
    bench.ask(text(2 * BLOCK + 1))
    assert bench.ask(text(2 * BLOCK)).reused == BLOCK
    assert bench.ask(text(2 * BLOCK + 1)).reused == 2 * BLOCK


def test_the_next_turn_begins_with_the_answer_too(bench: Bench) -> None:
    turn = [*text(BLOCK - 20), *b"[say:" + b"z" * 100 + b"]"]
    answer = bench.ask(turn, max_tokens=60)
    later = [*turn, *answer.tokens, *text(300, "y")]
    assert len(turn) < 2 * BLOCK < len(turn) + 60 + 300
    assert bench.ask(later).reused == len(turn) + 60 - 1


def test_a_prompt_that_differs_early_shares_nothing(bench: Bench) -> None:
    bench.ask(text(1000))
    assert bench.ask([ord("y"), *text(999)]).reused == 0


def test_prompts_that_arrive_together_share_one_prefill() -> None:
    bench = Bench(chunk=128)
    clients = [bench.submit(text(2000))[1] for _ in range(4)]
    for client in clients:
        assert client.over.wait(SECONDS)
    assert [c.reused for c in clients] == [0, *[1999] * 3]
    assert bench.events(residency.PrefixAwaited)
    bench.engine.stop()


def test_who_shares_a_beginning_waits_for_that_alone() -> None:
    """The second needs one block of a long prompt, and gets it before the rest is read."""
    bench = Bench(chunk=128)
    long_id, long = bench.submit(text(20_000), max_tokens=1)
    short_id, short = bench.submit([*text(BLOCK), *text(40, "y")], max_tokens=1)
    assert long.over.wait(SECONDS) and short.over.wait(SECONDS)
    assert short.reused == BLOCK
    log = [event for batch in bench.journal.read() for event in batch.events]
    lent = next(i for i, e in enumerate(log) if isinstance(e, PrefixReused))
    after = [e for e in log[lent:] if isinstance(e, StepPlan)]
    assert any(r == long_id for plan in after for r, _ in plan.prefill), "it is still read"
    assert log[lent] == PrefixReused(short_id, BLOCK)
    bench.engine.stop()


def test_a_retry_after_a_cancel_begins_where_the_first_stopped() -> None:
    bench = Bench(chunk=128)
    request_id, first = bench.submit(text(30_000))
    beat = threading.Event()
    while len(bench.events(StepCommitted)) < 6:
        beat.wait(0.001)
    bench.engine.cancel(request_id)
    again = bench.ask(text(30_000))
    assert not first.tokens
    assert again.reused >= 2 * BLOCK
    bench.engine.stop()


def test_a_small_budget_is_kept() -> None:
    bench = Bench(budget=4 * 4 * BLOCK)
    for letter in "abcdefgh":
        bench.ask(text(800, letter))
    assert bench.prefixes.blocks.state.ram_bytes <= 4 * 4 * BLOCK
    assert len(bench.compute.kept) == 5  # three blocks, what follows them, another tail
    assert bench.ask(text(800, "h")).reused == 799
    bench.engine.stop()


def test_no_budget_keeps_nothing_and_breaks_nothing() -> None:
    bench = Bench(budget=0)
    assert bench.ask(text(800)).tokens == bench.ask(text(800)).tokens
    assert not bench.compute.kept
    bench.engine.stop()


def test_a_model_that_cannot_be_cut_is_reused_at_the_end_of_a_prompt() -> None:
    bench = Bench(cuts="boundary")
    bench.ask(text(1000))
    assert bench.ask(text(1000)).reused == 999
    assert bench.ask([*text(999), *text(200, "y")]).reused == 999
    assert bench.ask(text(998)).reused == 0
    bench.engine.stop()


def test_a_copy_that_fails_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def broken(request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        raise MemoryError("no room")

    monkeypatch.setattr(bench.compute, "keep", broken)
    assert bench.ask(text(800)).tokens == bench.ask(text(800)).tokens
    assert bench.ask(text(800)).reused == 0
    bench.engine.stop()


def test_a_broken_step_leaves_nobody_waiting() -> None:
    bench = Bench(chunk=128)
    prompt = [*b"[break step]", *text(1000)]
    clients = [bench.submit(prompt)[1] for _ in range(3)]
    for client in clients:
        assert client.over.wait(SECONDS)
    assert not bench.prefixes.blocks.state.computing
    bench.engine.stop()


class BreaksOnce(ScriptedCompute):
    """The first prefill breaks, when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_break = threading.Event()
        self._broke = False

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        assert self.may_break.wait(SECONDS)
        if not self._broke:
            self._broke = True
            raise RuntimeError("the device is lost")
        return super().wait_prefill()


def test_who_waits_for_a_row_whose_step_breaks_computes_what_it_needs() -> None:
    """Nobody else comes, and nothing runs: it is its own reason to go on."""
    compute = BreaksOnce()
    bench = Bench(chunk=128, compute=compute)
    _, first = bench.submit(text(1000))
    _, second = bench.submit(text(1000))
    compute.may_break.set()
    assert first.over.wait(SECONDS) and second.over.wait(SECONDS)
    assert [client.reason for client in (first, second)] == ["failed", "length"]
    bench.engine.stop()


def test_a_prompt_that_cannot_be_looked_up_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    find = bench.prefixes.find

    def broken(
        compute: Compute, request_id: RequestId, prompt_ids: tuple[TokenId, ...], *rest: Any
    ) -> list[residency.Event]:
        if prompt_ids[0] == ord("!"):
            raise KeyError("a fault of ours")
        return find(compute, request_id, prompt_ids, *rest)

    monkeypatch.setattr(bench.prefixes, "find", broken)
    neighbour_id, neighbour = bench.submit([*b"[forever]"], max_tokens=100_000)
    bench.ask(text(10))
    assert bench.ask(text(600, "!")).reason == "failed"
    assert bench.ask(text(600)).reason == "length"
    assert not neighbour.over.is_set(), "it goes on"
    bench.engine.cancel(neighbour_id)
    bench.engine.stop()


def test_a_request_that_cannot_be_kept_account_of_ends_alone() -> None:
    class Unaccountable(Checkpoints):
        def accepted(self, spec: RequestSpec) -> NoReturn:
            raise KeyError("a fault of ours")

    bench = Bench(checkpoints=Unaccountable(9, NoDisk(), SPACE))
    assert bench.ask(text(600)).reason == "failed"
    assert bench.ask(text(600)).reason == "failed"
    bench.engine.stop()
    assert not bench.events(StepCommitted)


def test_who_waits_for_what_cannot_be_published_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(chunk=128)

    def broken(*_: object, **__: object) -> NoReturn:
        raise KeyError("a fault of ours")

    monkeypatch.setattr(BlockPublication, "end", broken)
    monkeypatch.setattr(bench.compute, "keep", broken)
    first_id, _ = bench.submit(text(20_000))
    _, second = bench.submit(text(20_000))
    bench.engine.cancel(first_id)
    assert second.over.wait(SECONDS)
    assert second.reason == "length"
    bench.engine.stop()
