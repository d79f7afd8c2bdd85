"""Who runs beside whom where memory is short."""

from __future__ import annotations

from mlxbun.application.admission import PATIENCE_SECONDS, Admission
from mlxbun.application.deciders import Deciders
from mlxbun.domain import scheduling
from mlxbun.domain.memory import MemoryMeasured, MemoryUse, measured
from mlxbun.domain.sampling import RequestId
from mlxbun.domain.scheduling import Limits, next_in

A, B, C, D = (RequestId(name) for name in "ABCD")
WORKING_SET = 1_000_000  # of which 850,000 may be in use
WEIGHTS = 250_000
PER_TOKEN = 100


class Bench:
    """A scheduler whose rows take PER_TOKEN bytes a token."""

    def __init__(self, working_set: int = WORKING_SET) -> None:
        self.seconds = 0.0
        self.working_set = working_set
        self.deciders = Deciders(Limits(max_rows=4), lambda _: None)
        self.admission = Admission(lambda: self.seconds)

    def ledger(self, cache_bytes: int = 0) -> MemoryMeasured:
        rows = self.deciders.scheduling.rows.values()
        live = PER_TOKEN * sum(row.num_prefilled + row.num_drawn for row in rows)
        use = MemoryUse(
            active_bytes=WEIGHTS + live + cache_bytes,
            working_set_bytes=self.working_set,
            weights_bytes=WEIGHTS,
            live_kv_bytes=live,
        )
        return measured(use, prefix_cache_bytes=cache_bytes)

    def submit(self, request_id: RequestId, num_tokens: int) -> None:
        self.deciders.schedule(scheduling.Submit(request_id, num_tokens, 8))

    def run(self, request_id: RequestId, num_tokens: int) -> None:
        """Have a row whose prompt was read."""
        self.submit(request_id, num_tokens)
        while request_id not in (rows := self.deciders.scheduling.rows) or (
            rows[request_id].num_unfilled
        ):
            self.deciders.schedule(scheduling.PlanStep())
        self.admission.learn(self.deciders.scheduling, self.ledger())

    @property
    def holds_any(self) -> bool:
        return self.admission.holds_any(self.deciders.scheduling)

    def let_in(self, cache_bytes: int = 0) -> list[RequestId]:
        self.admission.keep(self.deciders, self.ledger(cache_bytes))
        return next_in(self.deciders.scheduling)


def test_who_does_not_fit_waits_until_those_who_run_leave() -> None:
    bench = Bench()
    bench.run(A, 4000)
    bench.submit(B, 3000)
    assert bench.let_in() == []
    assert bench.holds_any
    bench.deciders.schedule(scheduling.Finish(A, "stop"))
    assert bench.let_in() == [B]
    assert not bench.holds_any


def test_who_fits_may_pass_but_not_for_ever() -> None:
    bench = Bench()
    bench.run(A, 4000)
    bench.submit(B, 3000)
    bench.submit(C, 1000)
    assert bench.let_in() == [C]
    bench.seconds += PATIENCE_SECONDS + 1
    bench.submit(D, 10)
    assert bench.let_in() == [], "all wait behind B"
    bench.deciders.schedule(scheduling.Finish(A, "stop"))
    assert bench.let_in() == [B, C, D]


def test_of_two_that_fit_one_by_one_the_second_waits() -> None:
    bench = Bench()
    bench.run(A, 1000)
    bench.submit(B, 3000)
    bench.submit(C, 3000)
    assert bench.let_in() == [B]


def test_a_prompt_that_is_still_being_read_counts_whole() -> None:
    bench = Bench()
    bench.run(A, 1000)
    bench.submit(B, 4000)
    assert bench.let_in() == [B]
    bench.deciders.schedule(scheduling.PlanStep())
    bench.submit(C, 3000)
    assert bench.let_in() == []


def test_who_is_alone_runs_however_large_it_is() -> None:
    bench = Bench()
    bench.run(A, 1000)
    bench.deciders.schedule(scheduling.Finish(A, "stop"))
    bench.submit(B, 100_000)
    bench.submit(C, 1000)
    assert bench.let_in() == [B]


def test_the_prefix_cache_makes_room() -> None:
    bench = Bench()
    bench.run(A, 1000)
    bench.submit(B, 4000)
    assert bench.let_in(cache_bytes=600_000) == [B]


def test_what_is_little_runs_though_weights_take_nearly_all() -> None:
    bench = Bench(working_set=WEIGHTS)
    bench.run(A, 300)
    bench.submit(B, 30)
    bench.submit(C, 300)
    assert bench.let_in() == [B]


def test_nobody_is_held_where_nothing_is_known() -> None:
    bench = Bench()
    bench.submit(A, 100_000)
    bench.submit(B, 100_000)
    assert bench.let_in() == [A, B], "of a token's size"
    unknown = Bench(working_set=0)
    unknown.run(A, 4000)
    unknown.submit(B, 100_000)
    assert unknown.let_in() == [B], "of the device"


def test_who_leaves_while_it_is_held_is_forgotten() -> None:
    bench = Bench()
    bench.run(A, 4000)
    bench.submit(B, 3000)
    assert bench.let_in() == []
    bench.deciders.schedule(scheduling.Cancel(B))
    assert not bench.holds_any
    assert bench.let_in() == []
