"""The engine: the one thread that owns the model, and the queue by which others reach it.

In: commands, which any thread may give.  Out: once a turn, one message to the event loop with
what all rows brought.  The thread hears commands, takes a turn of its rows, then does a piece of
what is done between steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from mlxbun.application.between_steps import BetweenSteps, Piecework
from mlxbun.application.checkpoints import Checkpoints
from mlxbun.application.deciders import Deciders
from mlxbun.application.kept_state import KeptState
from mlxbun.application.outgoing import Outgoing
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Mailbox, Outbox, RequestSpec
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.stepping import Stepping, limits_within
from mlxbun.application.upkeep import Released
from mlxbun.domain import scheduling
from mlxbun.domain.journal import Event, Journal
from mlxbun.domain.sampling import FinishReason, RequestId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.engine")

MAX_VAIN = 8  # turns in a row that break though no row is there to be blamed


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
        self._limits = limits
        self._journal = journal
        self._now = now
        self._leave_thread = leave_thread  # called last on the thread, however it ends
        self._between = BetweenSteps()
        self._inbox: deque[Callable[[Stepping], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
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
        outgoing = Outgoing(tell, self._journal, self._between.take_ended)
        self._thread = threading.Thread(
            target=self._run,
            args=(outgoing, on_ready, on_failed),
            name="mlxbun-engine",
            daemon=True,
        )
        self._thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """Cancel what is left, end the thread, wait for it; return whether it ended in time."""
        self._stopping = True
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        """Offer a request.  `mailbox` gets Accepted or Ended first."""
        self._post(lambda stepping: stepping.submit(spec, mailbox))

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        """End a request whose text is complete.  Its mailbox gets nothing more."""
        self._post(lambda stepping: stepping.release(scheduling.Finish(request_id, reason)))

    def cancel(self, request_id: RequestId) -> None:
        """Drop a request that nobody wants.  Its mailbox gets nothing more."""
        self._post(lambda stepping: stepping.release(scheduling.Cancel(request_id)))

    def run_between_steps(self, work: Piecework) -> None:
        """Do `work` on the engine's thread, a piece a turn, until it is over or breaks."""
        self._post(lambda _: self._between.add(work))

    def report(self, report: Callable[[ResidentBlocks, Compute], Sequence[Event]]) -> None:
        """Let the prefix cache hear of its disk, on the engine's thread."""
        self._post(lambda stepping: stepping.kept.hear(report))

    def close_session(self, name: str, answer: Callable[[Released], None]) -> None:
        """Let go of what a session holds.  `answer` is called on the engine's thread."""
        self._post(lambda stepping: answer(stepping.kept.close_session(name)))

    def drain(self) -> None:
        """Admit nobody new."""
        self._post(lambda stepping: stepping.drain())

    def _post(self, command: Callable[[Stepping], None]) -> None:
        self._inbox.append(command)
        self._wake.set()

    # -- everything below runs on the engine's thread --

    def _run(
        self,
        outgoing: Outgoing,
        on_ready: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        try:
            self._open_and_serve(outgoing, on_ready, on_failed)
        finally:
            self._leave_thread()

    def _open_and_serve(
        self,
        outgoing: Outgoing,
        on_ready: Callable[[], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        try:
            compute = self._open_compute()
            prefixes, checkpoints = self._open_prefixes(), self._open_checkpoints()
        except Exception as error:  # the thread's edge: whoever waits must hear of it
            on_failed(error)
            return
        deciders = Deciders(limits_within(compute, self._limits), outgoing.note)
        kept = KeptState(compute, prefixes, checkpoints, outgoing.note)
        stepping = Stepping(compute, deciders, kept, outgoing, self._now)
        on_ready()
        try:
            self._serve(stepping, outgoing)
        except Exception as error:  # not even dropping everything helped
            log.critical("the engine cannot go on", exc_info=error)
            on_failed(error)
            self._turn_away(stepping, outgoing)

    def _serve(self, stepping: Stepping, outgoing: Outgoing) -> None:
        num_vain = 0
        while not self._stopping:
            try:
                self._hear(stepping, outgoing)
                if stepping.read_first():
                    self._hear(stepping, outgoing)
                stepping.turn()
                num_vain = 0
            except Exception as error:  # a step broke: its rows end, the engine goes on
                log.exception("a step failed; its rows are ended")
                num_vain = 0 if stepping.fail_step(error) else num_vain + 1
                if num_vain == MAX_VAIN:
                    raise  # it would go on like this for ever
            outgoing.flush()  # what was drawn goes out before the piece that follows
            if self._between:
                outgoing.note(self._between.advance(alone=stepping.idle))
                outgoing.flush()
        self._between.end(RuntimeError("the engine stopped"))
        stepping.end()

    def _turn_away(self, stepping: Stepping, outgoing: Outgoing) -> None:
        """End every request there is, and whoever still comes."""
        self._between.end(RuntimeError("the engine stopped"))
        while not self._stopping:
            for request_id in outgoing.request_ids:
                outgoing.break_off(request_id)
            outgoing.flush()
            self._wake.wait()
            self._wake.clear()
            while self._inbox:
                with suppress(Exception):  # the model is broken, and was reported
                    self._inbox.popleft()(stepping)
            self._between.end(RuntimeError("the engine stopped"))

    def _hear(self, stepping: Stepping, outgoing: Outgoing) -> None:
        if stepping.idle and not self._inbox and not self._between:
            self._rest(stepping, outgoing)
        self._wake.clear()
        while self._inbox:
            self._inbox.popleft()(stepping)

    def _rest(self, stepping: Stepping, outgoing: Outgoing) -> None:
        """Wait for a command, or until it is time for something that needs none."""
        stepping.look_at_memory()
        outgoing.flush()
        self._wake.wait(stepping.kept.idle_seconds())
        stepping.kept.pass_time()
