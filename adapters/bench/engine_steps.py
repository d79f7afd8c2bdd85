"""The engine's own cost: tokens a second and host CPU a step, without HTTP.

Host CPU is the CPU time of the thread that decides, builds and submits steps; the forward
passes' own arithmetic runs on MLX's threads and is not in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from mlxbun.application.engine import Engine
from mlxbun.application.requests import Ended, Item, Outbox, RequestSpec
from mlxbun.domain.journal import EventBatch
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits, StepCommitted
from mlxbun.domain.steps import Compute

WARM_STEPS = 8  # at either end of a run: rows join, shapes are compiled, rows leave
FINISH_SECONDS = 300.0


class StepCost(Struct, frozen=True):
    """One run of `num_steps` decode steps of `num_rows` rows."""

    num_rows: int
    num_steps: int
    host_ms_per_step: float
    wall_ms_per_step: float

    @property
    def tokens_per_second(self) -> float:
        return 1000 * self.num_rows / self.wall_ms_per_step


class Mark(Struct, frozen=True):
    """The clocks when a step was over: seconds."""

    host: float
    wall: float


class StepsFailed(RuntimeError):
    """The model could not be opened, or rows broke, or nothing moved."""


def cost(marks: Sequence[Mark], num_rows: int) -> StepCost:
    """Return the mean cost of the steps between `marks`, without the first and last few.

    Raises StepsFailed when there are too few of them.
    """
    kept = marks[WARM_STEPS : len(marks) - WARM_STEPS]
    if len(kept) < 2:
        raise StepsFailed(f"{len(marks)} steps of {num_rows} rows are too few to measure")
    steps = len(kept) - 1
    host, wall = kept[-1].host - kept[0].host, kept[-1].wall - kept[0].wall
    return StepCost(num_rows, steps, 1000 * host / steps, 1000 * wall / steps)


def now() -> Mark:
    """Return the calling thread's CPU clock, and the wall's."""
    return Mark(time.thread_time(), time.perf_counter())


class EngineSteps:
    """Runs an engine on its thread and measures it there.  Use as a context manager."""

    def __init__(
        self,
        open_compute: Callable[[], Compute],
        limits: Limits,
        leave_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = Engine(open_compute, limits, _NoJournal(), leave_thread=leave_thread)
        self._ready = threading.Event()
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._marks: list[Mark] = []
        self._num_rows = 0
        self._num_live = 0
        self._run = 0

    def __enter__(self) -> EngineSteps:
        self._engine.start(self._tell, self._ready.set, self._fail)
        self._ready.wait()
        if self._failure is not None:
            raise StepsFailed(f"the model could not be opened: {self._failure}")
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.stop()

    def measure(
        self, params: Sequence[SamplingParams], prompt_ids: Sequence[TokenId], num_steps: int
    ) -> StepCost:
        """Decode one row for each of `params` together and return what a step cost.

        Raises StepsFailed when a row broke.
        """
        self._marks, self._num_rows, self._num_live = [], len(params), len(params)
        self._over.clear()
        self._run += 1
        for i, row in enumerate(params):
            row_id = RequestId(f"bench-{self._run}-{i}")
            total = num_steps + 2 * WARM_STEPS + len(params)  # rows may join one a step
            spec = RequestSpec(row_id, tuple(prompt_ids), total, frozenset(), row)
            self._engine.submit(spec, _Mailbox())
        if not self._over.wait(FINISH_SECONDS):
            raise StepsFailed(f"{self._num_live} rows did not end in {FINISH_SECONDS:g} s")
        if self._failure is not None:
            raise StepsFailed(str(self._failure))
        return cost(self._marks, len(params))

    def _fail(self, error: Exception) -> None:
        self._failure = error
        self._ready.set()

    def _tell(self, outbox: Outbox) -> None:
        """Take the engine's clocks, on its thread, at each step of all rows."""
        if outbox.batch is not None:
            for event in outbox.batch.events:
                if isinstance(event, StepCommitted) and event.num_decoded == self._num_rows:
                    self._marks.append(now())
        for _, item in outbox.items:
            if isinstance(item, Ended):
                self._num_live -= 1
                if item.refusal is not None:
                    self._failure = item.refusal
        if not self._num_live:
            self._over.set()


class _NoJournal:
    def append(self, batch: EventBatch) -> None:
        """Keep nothing."""

    def read(self, after: int = 0) -> Iterator[EventBatch]:
        return iter(())


class _Mailbox:
    def put(self, item: Item) -> None:
        """Drop what comes: nobody calls this, for nobody delivers here."""


def mixed_params(num_rows: int) -> list[SamplingParams]:
    """Return rows that all differ: temperature and seed in each, filters and penalties in some."""
    return [
        SamplingParams(
            temperature=0.5 + 0.02 * i,
            top_p=1.0 if i % 4 == 0 else 0.98 - 0.005 * i,
            top_k=20 + i if i % 2 else 0,
            min_p=0.02 if i % 8 == 2 else 0.0,
            repetition_penalty=1.05 + 0.01 * i if i % 2 == 0 else 1.0,
            presence_penalty=0.3 if i % 4 == 1 else 0.0,
            frequency_penalty=0.2 if i % 4 == 3 else 0.0,
            seed=1000 + i,
        )
        for i in range(num_rows)
    ]


def greedy_params(num_rows: int) -> list[SamplingParams]:
    return [SamplingParams(temperature=0.0)] * num_rows


def nucleus_params(num_rows: int) -> list[SamplingParams]:
    """Return what many clients ask: temperature 0.7, top_p 0.9, each with its seed."""
    return [SamplingParams(temperature=0.7, top_p=0.9, seed=i) for i in range(num_rows)]


Sampling = Literal["greedy", "nucleus", "mixed"]
SAMPLINGS: dict[Sampling, Callable[[int], list[SamplingParams]]] = {
    "greedy": greedy_params,
    "nucleus": nucleus_params,
    "mixed": mixed_params,
}
