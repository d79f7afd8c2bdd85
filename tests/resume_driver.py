"""Runs an engine with checkpoints of answers, on any model and any store, and stops it midway."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from doubles.journal import ListJournal
from mlxbun.application.checkpoints import Checkpoints
from mlxbun.application.durability import FlushReport
from mlxbun.application.engine import Engine
from mlxbun.application.generation_disk import GenerationDisk
from mlxbun.application.persistence import Persistence
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Accepted, Drawn, Ended, Item, Outbox, RequestSpec, Reused
from mlxbun.application.resuming import Resuming
from mlxbun.domain.blocks import BlockStore, Namespace
from mlxbun.domain.generation_checkpoint import GenerationStore
from mlxbun.domain.journal import Event
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute, TokenLogprobs

SPACE = Namespace("ab" * 32)
SECONDS = 60


class Client:
    """A mailbox that wakes whoever waits for it."""

    def __init__(self, request_id: RequestId) -> None:
        self.request_id = request_id
        self.items: list[Item] = []
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def wait(self, enough: Callable[[Client], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self), SECONDS), self.items[-3:]

    def end(self) -> Ended:
        self.wait(lambda client: bool(client.items) and isinstance(client.items[-1], Ended))
        last = self.items[-1]
        assert isinstance(last, Ended)
        return last

    @property
    def tokens(self) -> list[int]:
        return [int(item.token_id) for item in self.items if isinstance(item, Drawn)]

    @property
    def told(self) -> list[TokenLogprobs | None]:
        return [item.logprobs for item in self.items if isinstance(item, Drawn)]

    @property
    def num_replayed(self) -> int:
        return sum(item.num_replayed for item in self.items if isinstance(item, Accepted))

    @property
    def num_cached(self) -> int:
        return sum(item.num_tokens for item in self.items if isinstance(item, Reused))


class Resumable:
    """One process's life: an engine, its prefix cache, and checkpoints every `every` tokens.

    `every` 0 is without checkpoints.  With `cut_after`, the disk is waited for after each turn, and
    the engine stands still once so many checkpoints were saved, until `stop`.
    """

    def __init__(
        self,
        open_compute: Callable[[], Compute],
        blocks: BlockStore,
        generations: GenerationStore,
        *,
        every: int = 16,
        cut_after: int | None = None,
        stop_ids: frozenset[TokenId] = frozenset(),
        leave_thread: Callable[[], None] = lambda: None,
        limits: Limits | None = None,
    ) -> None:
        self.journal = ListJournal()
        self._blocks, self._generations, self._every = blocks, generations, every
        self._open_model, self._stop_ids = open_compute, stop_ids
        self._compute: Compute | None = None
        self._count = 0
        self._saved = threading.Condition()
        self._num_saved = 0
        self._cut_after, self._go_on = cut_after, threading.Event()
        self.engine = Engine(
            self._open_compute,
            limits or Limits(max_rows=3, adaptive_chunks=False),
            self.journal,
            leave_thread=leave_thread,
            open_prefixes=self._open_prefixes,
            open_checkpoints=self._open_checkpoints,
        )
        ready, failures = threading.Event(), list[Exception]()

        def on_failed(error: Exception) -> None:
            failures.append(error)
            ready.set()

        self.engine.start(self._tell, ready.set, on_failed)
        assert ready.wait(SECONDS) and not failures, failures
        self.submitter = Resuming(self.engine, self.disk)

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, max_tokens: int = 200
    ) -> Client:
        self._count += 1
        client = Client(RequestId(f"r{self._count}"))
        ids = tuple(map(TokenId, prompt))
        spec = RequestSpec(client.request_id, ids, max_tokens, self._stop_ids, params)
        (self.submitter if self._every else self.engine).submit(spec, client)
        return client

    def ask(self, prompt: Sequence[int], params: SamplingParams, max_tokens: int = 200) -> Client:
        client = self.submit(prompt, params, max_tokens)
        client.end()
        return client

    def wait_saved(self, number: int) -> None:
        """Wait until `number` checkpoints in all were said to be durable."""
        with self._saved:
            assert self._saved.wait_for(lambda: self._num_saved >= number, SECONDS)

    def flush_blocks(self) -> FlushReport:
        """Wait until the prefix cache's disk has all that it was given."""
        return self._persistence.flush(SECONDS)

    def events(self, kind: type) -> list[Event]:
        return [e for batch in self.journal.read() for e in batch.events if isinstance(e, kind)]

    def stop(self) -> None:
        """End in an orderly way; what runs is cancelled."""
        self.engine._stopping = True  # before it goes on
        self._go_on.set()
        self.engine.stop()
        self.disk.close(SECONDS)
        self._persistence.close(SECONDS)

    def _open_compute(self) -> Compute:
        self._compute = self._open_model()
        return self._compute

    def _open_prefixes(self) -> Prefixes:
        assert self._compute is not None
        known = self._blocks.known(SPACE)
        self._persistence = Persistence(
            self._blocks, SPACE, tensors=self._compute.tensors, report=self.engine.report
        )
        self._persistence.start()
        prefixes = Prefixes(SPACE, Budget(1 << 30, True), self._persistence)
        self.engine.report(lambda blocks, compute: blocks.opened(compute, known))
        return prefixes

    def _open_checkpoints(self) -> Checkpoints | None:
        assert self._compute is not None
        self.disk = GenerationDisk(
            self._generations,
            self._blocks,
            SPACE,
            tensors=self._compute.tensors,
            report=self.engine.report,
        )
        self.disk.start()
        return Checkpoints(self._every, self.disk, SPACE) if self._every else None

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)
        events = outbox.batch.events if outbox.batch is not None else ()
        saved = sum(type(event).__name__ == "CheckpointSaved" for event in events)
        if saved:
            with self._saved:
                self._num_saved += saved
                self._saved.notify_all()
        if self._cut_after is None:
            return
        assert self.disk.flush(SECONDS)
        if self._num_saved >= self._cut_after:
            assert self._go_on.wait(SECONDS)
