"""The engine: the loop that turns decisions into work, on the one thread that owns the model.

In: requests, over a queue that any thread may write.  Out: once a step, one message to the
event loop with every row's token.  A turn is: hear commands, plan, dispatch step n+1, read
step n, commit, tell.  Decisions are the deciders'; this module only keeps the order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from mlxbun.application.between_steps import BetweenSteps, Piecework
from mlxbun.application.checkpoints import Checkpoints
from mlxbun.application.memory_watch import MemoryWatch
from mlxbun.application.prefixes import Prefixes, Released
from mlxbun.application.requests import (
    Accepted,
    Drawn,
    Ended,
    Item,
    Mailbox,
    Outbox,
    RequestSpec,
    Reused,
)
from mlxbun.domain import sampling, scheduling
from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.journal import Event, EventBatch, Journal
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId, TokenId
from mlxbun.domain.steps import Compute, RowFailure, StepPlan, TokenLogprobs

log = logging.getLogger("mlxbun.engine")

HOST_LOOKAHEAD_SECONDS = 0.02


class Engine:
    """Owns the model's thread.  `submit`, `finish`, `cancel`, `drain` may be called anywhere."""

    def __init__(
        self,
        open_compute: Callable[[], Compute],
        limits: scheduling.Limits,
        journal: Journal,
        now: Callable[[], float] = time.monotonic,
        leave_thread: Callable[[], None] = lambda: None,
        open_prefixes: Callable[[], Prefixes | None] = lambda: None,
        open_checkpoints: Callable[[], Checkpoints | None] = lambda: None,
    ) -> None:
        """`open_prefixes` is called once the model is open, on the engine's thread.

        So is, after it, `open_checkpoints`.
        """
        self._open_compute = open_compute
        self._open_prefixes = open_prefixes
        self._open_checkpoints = open_checkpoints
        self._prefixes: Prefixes | None = None
        self._checkpoints: Checkpoints | None = None
        self._journal = journal
        self._now = now
        self._memory = MemoryWatch(now)
        self._between = BetweenSteps()
        self._leave_thread = leave_thread  # called last on the thread, however it ends
        self._scheduling = scheduling.Scheduling(limits)
        self._sampling = sampling.Sampling()
        self._mailboxes: dict[RequestId, Mailbox] = {}
        self._specs: dict[RequestId, RequestSpec] = {}  # of requests that wait
        self._inbox: deque[Callable[[Compute], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._sequence = 0
        self._events: list[Event] = []
        self._items: list[tuple[Mailbox, Item]] = []
        self._last_read = 0.0
        self._prefill_seconds: dict[int, float] = {}
        self._thread: threading.Thread | None = None

    def start(
        self,
        tell: Callable[[Outbox], None],
        on_ready: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Start the thread; it opens the model, calls `on_ready` or `on_failed`, then serves.

        All three are called on the engine's thread and must return at once.
        """
        self._tell, self._on_ready, self._on_failed = tell, on_ready, on_failed
        self._thread = threading.Thread(target=self._run, name="mlxbun-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel what is left, end the thread and wait for it."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        """Offer a request.  `mailbox` gets Accepted or Ended first."""
        self._post(lambda _: self._on_submit(spec, mailbox))

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request whose text is complete.  Its mailbox gets nothing more."""
        self._post(lambda compute: self._on_release(compute, scheduling.Finish(request_id, reason)))

    def cancel(self, request_id: RequestId) -> None:
        """Drop a request that nobody wants.  Its mailbox gets nothing more."""
        self._post(lambda compute: self._on_release(compute, scheduling.Cancel(request_id)))

    def run_between_steps(self, work: Piecework) -> None:
        """Do `work` on the engine's thread, a piece a turn, until it is over or breaks."""
        self._post(lambda _: self._between.add(work))

    def report(self, report: Callable[[Prefixes, Compute], Sequence[Event]]) -> None:
        """Let the prefix cache hear of its disk, on the engine's thread."""

        def heard(compute: Compute) -> None:
            if self._prefixes is None:
                return
            try:
                self._note(report(self._prefixes, compute))
            except Exception as error:  # what a disk says must not end what runs
                log.error("the prefix cache could not take a report", exc_info=error)

        self._post(heard)

    def close_session(self, name: str, answer: Callable[[Released], None]) -> None:
        """Let go of what a session holds.  `answer` is called on the engine's thread."""

        def close(compute: Compute) -> None:
            released = Released()
            if self._prefixes is not None:
                released, events = self._prefixes.close_session(compute, name)
                self._note(events)
            answer(released)

        self._post(close)

    def drain(self) -> None:
        """Admit nobody new."""
        self._post(lambda _: self._apply(self._decide(scheduling.Drain())))

    def _post(self, command: Callable[[Compute], None]) -> None:
        self._inbox.append(command)
        self._wake.set()

    # -- everything below runs on the engine's thread --

    def _run(self) -> None:
        try:
            self._open_and_serve()
        finally:
            self._leave_thread()

    def _open_and_serve(self) -> None:
        try:
            compute = self._open_compute()
            self._prefixes = self._open_prefixes()
            self._checkpoints = self._open_checkpoints()
        except Exception as error:  # the thread's edge: whoever waits must hear of it
            self._on_failed(error)
            return
        self._respect(compute)
        self._on_ready()
        try:
            self._serve(compute)
        except Exception as error:  # not even dropping everything helped
            log.critical("the engine cannot go on", exc_info=error)
            self._on_failed(error)
            self._turn_away(compute)

    def _serve(self, compute: Compute) -> None:
        while not self._stopping:
            try:
                self._hear(compute)
                self._turn(compute)
            except Exception as error:  # a step broke: its rows end, the engine goes on
                log.exception("a step failed; its rows are ended")
                self._fail_step(compute, error)
            self._flush()  # what was drawn goes out before the piece that follows
            if self._between:
                self._note(self._between.advance(alone=self._scheduling.idle))
                self._flush()
        for request_id in list(self._mailboxes):
            self._on_release(compute, scheduling.Cancel(request_id))
        self._between.end(RuntimeError("the engine stopped"))
        self._flush()
        compute.reset()

    def _turn_away(self, compute: Compute) -> None:
        """End every request there is, and whoever still comes."""
        self._between.end(RuntimeError("the engine stopped"))
        while not self._stopping:
            for request_id in list(self._mailboxes):
                self._end(request_id, Ended("failed", _broken()))
            self._flush()
            self._wake.wait()
            self._wake.clear()
            while self._inbox:
                with suppress(Exception):  # the model is broken, and was reported
                    self._inbox.popleft()(compute)
            self._between.end(RuntimeError("the engine stopped"))

    def _respect(self, compute: Compute) -> None:
        """Keep to what the model and its device can do."""
        limits = self._scheduling.limits
        if compute.max_rows is not None:
            max_rows = min(compute.max_rows, limits.max_rows)
            limits = msgspec.structs.replace(limits, max_rows=max_rows)
        if not compute.runs_apart:
            limits = msgspec.structs.replace(limits, lookahead_seconds=HOST_LOOKAHEAD_SECONDS)
        self._scheduling = scheduling.Scheduling(limits)

    def _hear(self, compute: Compute) -> None:
        if self._scheduling.idle and not self._inbox and not self._between:
            self._rest(compute)
        self._wake.clear()
        while self._inbox:
            self._inbox.popleft()(compute)

    def _rest(self, compute: Compute) -> None:
        """Wait for a command, or until something that is kept has been idle for long enough."""
        prefixes = self._prefixes
        self._note(self._memory.look(compute, prefixes, resting=True))
        self._flush()
        self._wake.wait(prefixes.idle_seconds() if prefixes is not None else None)
        if prefixes is not None:
            self._note(prefixes.pass_time(compute))

    def _turn(self, compute: Compute) -> None:
        """Dispatch the next step, then read the one before it, then wait for prefill."""
        if self._scheduling.in_flight and not scheduling.looks_ahead(self._scheduling):
            self._commit(compute)
            self._flush()
            self._hear(compute)  # who came meanwhile is in the plan
        self._find_prefixes(compute)
        plan = self._next_plan(compute)
        started = self._now()
        in_flight = self._scheduling.in_flight
        if plan is not None:
            if len(in_flight) == 1:
                self._last_read = self._now()  # nothing was running before it
            if self._prefixes is not None and plan.start:
                self._note(self._prefixes.starting(compute, plan.start))
            self._fail_rows(compute, compute.dispatch(plan))
        oldest = next(iter(in_flight), None)
        if oldest is not None and (plan is None or oldest != plan.step):
            self._commit(compute)
        if plan is not None and plan.prefill:
            self._flush()
            self._fail_rows(compute, compute.wait_prefill())
            seconds = self._prefill_seconds[plan.step] = self._now() - started
            if self._prefixes is not None:
                self._note(self._prefixes.read(compute, plan.prefill, seconds))
        self._note(self._memory.look(compute, self._prefixes))

    def _next_plan(self, compute: Compute) -> StepPlan | None:
        events = self._decide(scheduling.PlanStep())
        self._apply(events)
        for event in events:
            if isinstance(event, scheduling.RequestAdmitted):
                self._open_row(compute, self._specs.pop(event.request_id))
        return next((e for e in events if isinstance(e, StepPlan)), None)

    def _find_prefixes(self, compute: Compute) -> None:
        """Say of everybody who is about to be admitted what they begin with, or hold them."""
        prefixes, state = self._prefixes, self._scheduling
        if prefixes is None or not state.waiting:
            return
        for request_id, row in list(state.waiting.items()):
            if row.held and not prefixes.awaits(request_id):
                self._apply(self._decide(scheduling.Release(request_id)))
        asked, before = set[RequestId](), len(self._events)
        while new := [r for r in scheduling.next_in(self._scheduling) if r not in asked]:
            for request_id in new:
                asked.add(request_id)
                spec = self._specs[request_id]
                known = spec.known_ids
                self._note(prefixes.find(compute, request_id, known, spec.session, spec.boundaries))
                _, num_tokens = self._beginning(compute, spec)
                self._apply(self._decide(scheduling.Reuse(request_id, num_tokens)))
                stops = prefixes.stops(request_id)
                self._apply(self._decide(scheduling.StopAt(request_id, stops)))
                if prefixes.awaits(request_id):
                    self._apply(self._decide(scheduling.Hold(request_id)))
        for request_id, row in self._scheduling.waiting.items():
            if not row.held and prefixes.may_read_ahead(request_id):
                known_ids = self._specs[request_id].known_ids
                self._note(prefixes.read_ahead(compute, request_id, known_ids))
                break  # one a turn: hashing a long prompt takes a while
        if len(self._events) > before:
            self._flush()  # who watches the clock must not count the step that follows

    def _open_row(self, compute: Compute, spec: RequestSpec) -> None:
        request_id, num_drawn = spec.request_id, len(spec.drawn)
        keys, num_tokens = self._beginning(compute, spec)
        matcher = spec.grammar.matcher(spec.drawn) if spec.grammar is not None else None
        compute.open_row(
            request_id, spec.known_ids, spec.params, keys, num_tokens, num_drawn, matcher
        )
        if self._prefixes is not None:
            self._note(self._prefixes.begun(compute, request_id, num_tokens))
        if self._checkpoints is not None:
            self._checkpoints.begun(compute, request_id)
        if num_tokens:
            reused = Reused(min(num_tokens, len(spec.prompt_ids)))
            self._items.append((self._mailboxes[request_id], reused))

    def _beginning(self, compute: Compute, spec: RequestSpec) -> tuple[tuple[BlockKey, ...], int]:
        """Return the copies that a row begins with, and how many tokens they cover."""
        lent = self._prefixes.lent(spec.request_id) if self._prefixes is not None else None
        keys, num_tokens = (lent.keys, lent.num_tokens) if lent is not None else ((), 0)
        if self._checkpoints is None:
            return keys, num_tokens
        return self._checkpoints.beginning(compute, spec, keys, num_tokens)

    def _leave_prefixes(
        self, compute: Compute, request_id: RequestId, *, answered: bool = False
    ) -> None:
        """Keep what a request computed.  Called before its row is closed."""
        if self._prefixes is not None:
            self._note(self._prefixes.over(compute, request_id, answered=answered))

    def _note(self, events: Sequence[Event]) -> None:
        """Journal events that were applied where they were decided."""
        self._events += events

    def _commit(self, compute: Compute) -> None:
        result = compute.collect()
        now = self._now()
        elapsed, self._last_read = now - self._last_read, now
        drawn = sampling.decide(
            self._sampling,
            sampling.CommitTokens(
                result.step, result.request_ids, result.token_ids, result.complete
            ),
        )
        finished: dict[RequestId, FinishReason] = {
            e.request_id: e.reason for e in drawn if isinstance(e, sampling.SamplingFinished)
        }
        if self._prefixes is not None:
            self._prefixes.drawn(result.request_ids, result.token_ids)
        if drawn:
            self._post_tokens(result.request_ids, result.token_ids, result.logprobs)
        self._apply(drawn)
        self._apply(
            self._decide(
                scheduling.CommitStep(
                    result.step,
                    tuple(finished.items()),
                    elapsed,
                    self._prefill_seconds.pop(result.step, 0.0),
                    result.num_wide,
                    result.kv_bytes,
                )
            )
        )
        for request_id, reason in finished.items():
            self._leave_prefixes(compute, request_id, answered=True)
            if self._checkpoints is not None:
                self._checkpoints.finished(compute, request_id)
            compute.close_row(request_id)
            self._end(request_id, Ended(reason))
        self._fail_rows(compute, [f for f in result.failures if f.request_id not in finished])
        if self._checkpoints is not None and self._prefixes is not None:
            rows, drew = result.request_ids, result.token_ids
            self._note(self._checkpoints.drawn(compute, self._prefixes, rows, drew))

    def _post_tokens(
        self,
        request_ids: Sequence[RequestId],
        token_ids: Sequence[TokenId],
        logprobs: Sequence[TokenLogprobs | None],
    ) -> None:
        sessions = self._sampling.sessions
        for index, request_id in enumerate(request_ids):
            if request_id in sessions:
                row_logprobs = logprobs[index] if logprobs else None
                mailbox = self._mailboxes[request_id]
                self._items.append((mailbox, Drawn(token_ids[index], row_logprobs)))

    def _on_submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        request_id, drawn = spec.request_id, spec.drawn
        num_left = spec.max_tokens - len(drawn)
        events = self._decide(scheduling.Submit(request_id, len(spec.known_ids), num_left))
        self._apply(events)
        for event in events:
            if isinstance(event, scheduling.RequestRejected):
                self._items.append((mailbox, Ended("rejected", scheduling.refusal(event))))
            elif isinstance(event, scheduling.RequestQueued):
                self._apply(
                    sampling.decide(
                        self._sampling,
                        sampling.OpenSession(
                            request_id, spec.max_tokens, spec.stop_ids, len(drawn)
                        ),
                    )
                )
                self._mailboxes[request_id] = mailbox
                self._specs[request_id] = spec
                self._items.append((mailbox, Accepted(len(drawn))))
                self._items += [(mailbox, Drawn(token_id, None)) for token_id in drawn]
                if self._checkpoints is not None:
                    self._note(self._checkpoints.accepted(spec))

    def _on_release(self, compute: Compute, command: scheduling.Finish | scheduling.Cancel) -> None:
        request_id = command.request_id
        self._apply(self._decide(command))
        self._apply(sampling.decide(self._sampling, sampling.CloseSession(request_id)))
        self._leave_prefixes(compute, request_id)
        if self._checkpoints is not None:
            over = isinstance(command, scheduling.Finish)
            say = self._checkpoints.finished if over else self._checkpoints.left
            say(compute, request_id)
        compute.close_row(request_id)
        self._mailboxes.pop(request_id, None)
        self._specs.pop(request_id, None)

    def _fail_rows(self, compute: Compute, failures: Sequence[RowFailure]) -> None:
        for failure in failures:
            log.error("request %s failed: %s", failure.request_id, failure.cause)
            self._fail(compute, (failure.request_id,), failure.cause)

    def _fail_step(self, compute: Compute, error: Exception) -> None:
        if self._prefixes is not None:  # what a broken step leaves behind is not kept
            for request_id in list(self._scheduling.rows):
                self._note(self._prefixes.broke(compute, request_id))
        self._fail(compute, tuple(self._scheduling.rows), f"{type(error).__name__}: {error}")
        compute.reset()
        for step in list(self._scheduling.in_flight):
            self._apply(self._decide(scheduling.CommitStep(step, (), 0.0)))
        self._prefill_seconds.clear()

    def _fail(self, compute: Compute, request_ids: tuple[RequestId, ...], cause: str) -> None:
        self._apply(self._decide(scheduling.Fail(request_ids, cause)))
        for request_id in request_ids:
            self._apply(sampling.decide(self._sampling, sampling.CloseSession(request_id)))
            self._leave_prefixes(compute, request_id)
            if self._checkpoints is not None:
                self._checkpoints.failed(compute, request_id)
            compute.close_row(request_id)
            self._end(request_id, Ended("failed", _broken()))

    def _end(self, request_id: RequestId, item: Ended) -> None:
        mailbox = self._mailboxes.pop(request_id, None)
        if mailbox is not None:
            self._items.append((mailbox, item))

    def _decide(self, command: scheduling.Command) -> list[scheduling.Event]:
        return scheduling.decide(self._scheduling, command)

    def _apply(self, events: Sequence[sampling.Event | scheduling.Event]) -> None:
        for event in events:
            if isinstance(event, sampling.Event):
                self._sampling = sampling.evolve(self._sampling, event)
            else:
                self._scheduling = scheduling.evolve(self._scheduling, event)
        self._events += events

    def _flush(self) -> None:
        """Say once, for all rows, what this turn brought."""
        calls = self._between.take_ended()
        if not self._events and not self._items and not calls:
            return
        batch = None
        if self._events:
            self._sequence += 1
            batch = EventBatch(self._sequence, tuple(self._events))
            self._journal.append(batch)
        outbox = Outbox(tuple(self._items), batch, calls)
        self._events, self._items = [], []
        self._tell(outbox)


def _broken() -> Refused:
    return Refused("engine_failed", "the model failed on this request; see the server's log")
