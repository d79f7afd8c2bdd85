"""Drives an engine with its prefix cache in RAM and on a disk, through restarts and faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from doubles.compute import ScriptedCompute
from doubles.files import FaultyFiles
from doubles.journal import ListJournal
from mlxbun.adapters.ssd.opening import open_block_store
from mlxbun.adapters.ssd.store import SsdBlockStore
from mlxbun.application.backoff import Backoff
from mlxbun.application.durability import FlushReport
from mlxbun.application.engine import Engine
from mlxbun.application.persistence import Persistence
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec, Reused
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.domain.blocks import BlockKey, Namespace
from mlxbun.domain.journal import Event
from mlxbun.domain.residency import Budget
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import Limits
from mlxbun.domain.steps import Compute

SPACE = Namespace("ef" * 32)
GREEDY = SamplingParams(temperature=0.0)
SECONDS = 60


class Client:
    """A mailbox that remembers."""

    def __init__(self, request_id: RequestId, prompt: tuple[int, ...], max_tokens: int) -> None:
        self.request_id, self.prompt, self.max_tokens = request_id, prompt, max_tokens
        self.items: list[Item] = []
        self.over = threading.Event()

    def put(self, item: Item) -> None:
        self.items.append(item)
        if isinstance(item, Ended):
            self.over.set()

    @property
    def reused(self) -> int:
        return sum(item.num_tokens for item in self.items if isinstance(item, Reused))

    @property
    def tokens(self) -> list[int]:
        return [int(item.token_id) for item in self.items if isinstance(item, Drawn)]

    @property
    def reason(self) -> str | None:
        last = self.items[-1] if self.items else None
        return last.reason if isinstance(last, Ended) else None


class Process:
    """One life of a server: a model, its engine, its prefix cache, and the disk in `folder`."""

    def __init__(
        self,
        folder: Path | None,
        open_compute: Callable[[], Compute],
        *,
        ram_bytes: int = 1 << 30,
        max_bytes: int | None = None,
        chunk: int = 512,
        again: Backoff | None = None,
        files: FaultyFiles | None = None,
        stop_ids: frozenset[TokenId] = frozenset(),
        leave_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = files or FaultyFiles()
        self.store: SsdBlockStore | None = None
        self.disk: Persistence | None = None
        self.journal = ListJournal()
        self._folder, self._open_model = folder, open_compute
        self._ram_bytes, self._max_bytes = ram_bytes, max_bytes
        self._stop_ids, self._again = stop_ids, again
        self._count = 0
        self.compute: Compute | None = None
        self.prefixes: Prefixes | None = None
        limits = Limits(max_rows=3, max_chunk_tokens=chunk, adaptive_chunks=False)
        self.engine = Engine(
            self._open_compute,
            limits,
            self.journal,
            leave_thread=leave_thread,
            open_prefixes=self._open_prefixes,
        )
        ready, failures = threading.Event(), list[Exception]()

        def on_failed(error: Exception) -> None:
            failures.append(error)
            ready.set()

        self.engine.start(self._tell, ready.set, on_failed)
        assert ready.wait(SECONDS) and not failures, failures

    def submit(
        self, prompt: Sequence[int], max_tokens: int = 8, boundaries: tuple[int, ...] = ()
    ) -> Client:
        self._count += 1
        client = Client(RequestId(f"r{self._count}"), tuple(prompt), max_tokens)
        ids = tuple(map(TokenId, prompt))
        spec = RequestSpec(
            client.request_id, ids, max_tokens, self._stop_ids, GREEDY, boundaries=boundaries
        )
        self.engine.submit(spec, client)
        return client

    def ask(
        self, prompt: Sequence[int], max_tokens: int = 8, boundaries: tuple[int, ...] = ()
    ) -> Client:
        client = self.submit(prompt, max_tokens, boundaries)
        assert client.over.wait(SECONDS), "a request waits for ever"
        assert client.reason in ("stop", "length")
        return client

    def flush(self) -> FlushReport:
        """Have the disk take all that it is to have, as a server does."""
        assert self.disk is not None
        settled = threading.Event()

        def settle(blocks: ResidentBlocks, compute: Compute) -> Sequence[Event]:
            try:
                return blocks.settle(compute)
            finally:
                settled.set()

        self.engine.report(settle)
        assert settled.wait(SECONDS)
        return self.disk.flush(SECONDS)

    def stop(self) -> FlushReport | None:
        """End in an orderly way, check the books, and let go of the disk."""
        self.engine.stop()
        self.check_books()
        return self.disk.close(SECONDS) if self.disk is not None else None

    def check_books(self) -> None:
        """Check what must hold once the engine has stopped."""
        assert self.prefixes is not None
        state = self.prefixes.blocks.state
        assert not state.lent, "nobody is left who borrows"
        assert not state.computing, "nobody is left who computes"
        waiting = self.journal.scheduled().waiting
        assert not waiting, "nobody is left who waits"
        in_ram = {key: block for key, block in state.blocks.items() if block.in_ram}
        assert state.ram_bytes == sum(block.info.num_bytes for block in in_ram.values())
        assert self.kept() == set(in_ram), "the copies are those that are known"

    def kept(self) -> set[BlockKey]:
        if isinstance(self.compute, ScriptedCompute):
            return set(self.compute.kept)
        return set(self.compute._kept._kept)  # type: ignore[union-attr]

    def stored(self) -> list[Path]:
        """Return the files of blocks on the disk."""
        assert self._folder is not None
        return sorted(p for p in (self._folder / "objects").rglob("*") if p.is_file())

    def _open_compute(self) -> Compute:
        self.compute = self._open_model()
        return self.compute

    def _open_prefixes(self) -> Prefixes:
        assert self.compute is not None
        budget = Budget(self._ram_bytes, self._folder is not None)
        if self._folder is None:
            self.prefixes = Prefixes(SPACE, budget)
            return self.prefixes
        self.store = open_block_store(self._folder, verify="always", files=self.files)
        self.disk = Persistence(
            self.store,
            SPACE,
            tensors=self.compute.tensors,
            report=self.engine.report,
            max_bytes=self._max_bytes,
            kept_ids=self.store.kept_ids,
            again=self._again,
        )
        self.disk.start()
        self.prefixes = Prefixes(SPACE, budget, self.disk)
        known = self.store.known(SPACE)
        self.engine.report(lambda blocks, compute: blocks.opened(compute, known))
        return self.prefixes

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)


def damage(path: Path) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
