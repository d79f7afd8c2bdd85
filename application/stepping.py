"""Stepping: the requests of one open model, from their queue to their end, step by step.

A turn is: plan, dispatch step n+1, read step n, commit, wait for prefill.  Decisions are the
deciders'; this module only keeps the order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from mlxbun.application.admission import Admission
from mlxbun.application.deciders import Deciders
from mlxbun.application.kept_state import KeptState
from mlxbun.application.memory_watch import MemoryWatch
from mlxbun.application.outgoing import Outgoing
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import (
    Accepted,
    Ended,
    Mailbox,
    RequestSpec,
    Reused,
    replayed,
)
from mlxbun.domain import sampling, scheduling
from mlxbun.domain.sampling import FinishReason, RequestId
from mlxbun.domain.steps import Compute, RowFailure, StepPlan

log = logging.getLogger("mlxbun.engine")

HOST_LOOKAHEAD_SECONDS = 0.02


class Stepping:
    """Runs the rows of `compute`, all on the engine's thread."""

    def __init__(
        self,
        compute: Compute,
        deciders: Deciders,
        kept: KeptState,
        outgoing: Outgoing,
        now: Callable[[], float],
    ) -> None:
        self.kept = kept
        self._compute = compute
        self._deciders = deciders
        self._outgoing = outgoing
        self._now = now
        self._memory = MemoryWatch(now)
        self._admission = Admission(now)
        self._specs: dict[RequestId, RequestSpec] = {}  # of requests that wait
        self._last_read = 0.0
        self._prefill_seconds: dict[int, float] = {}

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done before a command comes.

        No step is on its way, nobody runs, and whoever waits is held for what is yet to come.
        """
        state = self._deciders.scheduling
        return state.idle and not (self._admission.holds_any(state) or self._free_again())

    # -- commands --

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        """Offer a request.  `mailbox` gets Accepted or Ended first."""
        request_id, drawn = spec.request_id, spec.drawn
        num_left = spec.max_tokens - len(drawn)
        submit = scheduling.Submit(request_id, len(spec.known_ids), num_left)
        for event in self._deciders.schedule(submit):
            if isinstance(event, scheduling.RequestRejected):
                self._outgoing.reject(mailbox, scheduling.refusal(event))
            elif isinstance(event, scheduling.RequestQueued):
                self._outgoing.open(request_id, mailbox)
                self._outgoing.put(request_id, [Accepted(len(drawn))])
                if spec.resume is not None:
                    self._outgoing.put(request_id, replayed(spec.resume))
                self._specs[request_id] = spec
                with self._blaming(request_id):
                    self._deciders.sample(
                        sampling.OpenSession(request_id, spec.max_tokens, spec.stop_ids, len(drawn))
                    )
                    self.kept.accepted(spec)

    def release(self, command: scheduling.Finish | scheduling.Cancel) -> None:
        """End a request whose text is complete, or that nobody wants; it hears nothing more."""
        request_id = command.request_id
        self._deciders.schedule(command)
        self._deciders.sample(sampling.CloseSession(request_id))
        self._outgoing.close(request_id)
        self._specs.pop(request_id, None)
        self.kept.over(request_id, "cut" if isinstance(command, scheduling.Finish) else "left")
        self._compute.close_row(request_id)

    def drain(self) -> None:
        """Admit nobody new."""
        self._deciders.schedule(scheduling.Drain())

    # -- a turn --

    def read_first(self) -> bool:
        """Read the step on its way where none is to be computed ahead of it; say whether it was.

        Who came meanwhile is then heard before the next is planned.
        """
        state = self._deciders.scheduling
        if not state.in_flight or scheduling.looks_ahead(state):
            return False
        self._commit()
        self._tell()
        return True

    def turn(self) -> None:
        """Dispatch the next step, then read the one before it, then wait for prefill."""
        self._find_prefixes()
        plan = self._next_plan()
        started = self._now()
        in_flight = self._deciders.scheduling.in_flight
        if plan is not None:
            if len(in_flight) == 1:
                self._last_read = self._now()  # nothing was running before it
            self.kept.starting(plan.start)
            self._fail_rows(self._compute.dispatch(plan))
        oldest = next(iter(in_flight), None)
        if oldest is not None and (plan is None or oldest != plan.step):
            self._commit()
        if plan is not None and plan.prefill:
            self._tell()
            self._fail_rows(self._compute.wait_prefill())
            seconds = self._prefill_seconds[plan.step] = self._now() - started
            self.kept.read(plan.prefill, seconds)
        self.look_at_memory()

    def look_at_memory(self) -> None:
        """Measure what holds how much, if it is time to; at rest it is.

        Before all is told that may have changed what is kept: the ledger is of the same moment.
        """
        looked = self._memory.look(self._compute, self.kept.prefixes, resting=self.idle)
        self._outgoing.note(looked)
        if self._memory.ledger is not None:
            self._admission.learn(self._deciders.scheduling, self._memory.ledger)

    def fail_step(self, error: Exception) -> int:
        """End the rows of a step that broke, drop everything; return how many rows there were."""
        rows = tuple(self._deciders.scheduling.rows)
        self.kept.broke(rows)  # what a broken step leaves behind is not kept
        self._compute.reset()
        self._fail(rows, _cause(error))
        for step in list(self._deciders.scheduling.in_flight):
            self._deciders.schedule(scheduling.CommitStep(step, (), 0.0))
        self._prefill_seconds.clear()
        return len(rows)

    def end(self) -> None:
        """Cancel whoever is left, and drop everything."""
        for request_id in self._outgoing.request_ids:
            self.release(scheduling.Cancel(request_id))
        self.kept.settle()
        self._outgoing.flush()
        self._compute.reset()

    def _find_prefixes(self) -> None:
        """Say of everybody who is about to be admitted what they begin with, or hold them."""
        prefixes, deciders, compute = self.kept.prefixes, self._deciders, self._compute
        note = self._outgoing.note
        if not deciders.scheduling.waiting:
            return
        self._admission.keep(deciders, self._memory.ledger)
        if prefixes is None:
            return
        for request_id in self._free_again():
            deciders.schedule(scheduling.Release(request_id))
        asked, before = set[RequestId](), self._outgoing.num_events
        while new := [r for r in scheduling.next_in(deciders.scheduling) if r not in asked]:
            for request_id in new:
                asked.add(request_id)
                with self._blaming(request_id):
                    self._find_prefix(prefixes, self._specs[request_id])
            self._admission.keep(deciders, self._memory.ledger)  # others may have come forward
        for request_id, row in list(deciders.scheduling.waiting.items()):
            if not row.held and prefixes.may_read_ahead(request_id):
                with self._blaming(request_id):
                    known = self._specs[request_id].known_ids
                    note(prefixes.read_ahead(compute, request_id, known))
                break  # one a turn: hashing a long prompt takes a while
        if self._outgoing.num_events > before:
            self._tell()  # who watches the clock must not count the step that follows

    def _find_prefix(self, prefixes: Prefixes, spec: RequestSpec) -> None:
        """Say what a request begins with, or hold it."""
        request_id, deciders = spec.request_id, self._deciders
        self._outgoing.note(
            prefixes.find(self._compute, request_id, spec.known_ids, spec.session, spec.boundaries)
        )
        _, num_tokens = self.kept.beginning(spec)
        deciders.schedule(scheduling.Reuse(request_id, num_tokens))
        deciders.schedule(scheduling.StopAt(request_id, prefixes.stops(request_id)))
        if prefixes.awaits(request_id):
            deciders.schedule(scheduling.Hold(request_id))

    def _free_again(self) -> list[RequestId]:
        """Return who is held for something that is not on its way any more."""
        prefixes, waiting = self.kept.prefixes, self._deciders.scheduling.waiting
        held = [r for r, row in waiting.items() if row.held and r not in self._admission]
        return [r for r in held if prefixes is None or not prefixes.awaits(r)]

    def _tell(self) -> None:
        self.look_at_memory()
        self._outgoing.flush()

    def _next_plan(self) -> StepPlan | None:
        """Open the rows that are admitted; return the step without those that broke at it."""
        events = self._deciders.schedule(scheduling.PlanStep())
        for event in events:
            if isinstance(event, scheduling.RequestAdmitted):
                with self._blaming(event.request_id):
                    self._open_row(self._specs[event.request_id])
                self._specs.pop(event.request_id, None)
        plan = next((e for e in events if isinstance(e, StepPlan)), None)
        return plan.only(self._deciders.scheduling.rows) if plan is not None else None

    def _open_row(self, spec: RequestSpec) -> None:
        request_id, num_drawn = spec.request_id, len(spec.drawn)
        keys, num_tokens = self.kept.beginning(spec)
        matcher = spec.grammar.matcher(spec.drawn) if spec.grammar is not None else None
        self._compute.open_row(
            request_id, spec.known_ids, spec.params, keys, num_tokens, num_drawn, matcher
        )
        self.kept.begun(request_id, num_tokens)
        if num_tokens:
            self._outgoing.put(request_id, [Reused(min(num_tokens, len(spec.prompt_ids)))])

    def _commit(self) -> None:
        result = self._compute.collect()
        now = self._now()
        elapsed, self._last_read = now - self._last_read, now
        request_ids, token_ids = result.request_ids, result.token_ids
        state = self._deciders.sampling
        drawn = sampling.decide(
            state, sampling.CommitTokens(result.step, request_ids, token_ids, result.complete)
        )
        finished: dict[RequestId, FinishReason] = {
            e.request_id: e.reason for e in drawn if isinstance(e, sampling.SamplingFinished)
        }
        self.kept.drawn(request_ids, token_ids)
        if drawn:
            self._outgoing.put_tokens(state.sessions, request_ids, token_ids, result.logprobs)
        self._deciders.apply(drawn)
        self._deciders.schedule(
            scheduling.CommitStep(
                result.step,
                tuple(finished.items()),
                elapsed,
                self._prefill_seconds.pop(result.step, 0.0),
                result.num_wide,
                result.kv_bytes,
            )
        )
        for request_id, reason in finished.items():
            self.kept.over(request_id, "answered")
            self._compute.close_row(request_id)
            self._outgoing.end(request_id, Ended(reason))
        self._fail_rows([f for f in result.failures if f.request_id not in finished])
        self.kept.committed(request_ids, token_ids, result.logprobs)

    @contextmanager
    def _blaming(self, request_id: RequestId) -> Generator[None]:
        """Let what breaks in the block end one request, whose doing alone it is."""
        try:
            yield
        except Exception as error:
            log.exception("request %s failed before its first step", request_id)
            self._fail((request_id,), _cause(error))

    def _fail_rows(self, failures: Sequence[RowFailure]) -> None:
        for failure in failures:
            log.error("request %s failed: %s", failure.request_id, failure.cause)
            self._fail((failure.request_id,), failure.cause)

    def _fail(self, request_ids: tuple[RequestId, ...], cause: str) -> None:
        self._deciders.schedule(scheduling.Fail(request_ids, cause))
        for request_id in request_ids:
            self._deciders.sample(sampling.CloseSession(request_id))
            self._outgoing.break_off(request_id)
            self._specs.pop(request_id, None)
            self.kept.over(request_id, "failed")
            self._compute.close_row(request_id)


def limits_within(compute: Compute, limits: scheduling.Limits) -> scheduling.Limits:
    """Return `limits`, kept to what the model and its device can do."""
    if compute.max_rows is not None:
        limits = replace(limits, max_rows=min(compute.max_rows, limits.max_rows))
    if not compute.runs_apart:
        limits = replace(limits, lookahead_seconds=HOST_LOOKAHEAD_SECONDS)
    return limits


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
