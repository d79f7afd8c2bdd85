#!/usr/bin/env python3
"""Measures what the SSD tier costs and brings, in this process, on the engine without HTTP.

    .venv/bin/python scripts/bench/disk.py --model demo --tokens 4000 --json out.json

- `writing`: decode steps of an answer during which a turn's blocks are written, beside one without;
  the two take turns, `ratio` is the median of the rounds' own (1.0 costs nothing).  More than 1
  as the share of decoding that wrote asks for more steps.
- `restart`: time to the first token of a prompt that an earlier engine left on the disk, with the
  page cache dropped and with it warm, beside computing it.
- `verification`: reading all its blocks with each, some or no hashes checked.
- `lookup`: the longest prefix among 10,000 blocks: deciding, and finding a block's file.
- `turns`: bytes written by each turn of a chat over the bytes of its new blocks, in both layouts.
- `slow_disk`: after a restart, a disk that reads slower than the model computes, which must not be
  asked: the script fails if it is.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

from mlxbun.adapters.bench import cpu  # noqa: E402
from mlxbun.adapters.bench.models import find_model  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.journal import RingJournal  # noqa: E402
from mlxbun.adapters.ssd.objects import Verify  # noqa: E402
from mlxbun.adapters.ssd.opening import open_block_store  # noqa: E402
from mlxbun.adapters.ssd.store import Layout  # noqa: E402
from mlxbun.application.engine import Engine  # noqa: E402
from mlxbun.application.persistence import SAMPLE_BYTES, Persistence  # noqa: E402
from mlxbun.application.prefixes import Prefixes  # noqa: E402
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec  # noqa: E402
from mlxbun.domain import residency  # noqa: E402
from mlxbun.domain.blocks import (  # noqa: E402
    BLOCK,
    BlockInfo,
    BlockKey,
    BlockStore,
    Namespace,
    Tensor,
    chain,
)
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId  # noqa: E402
from mlxbun.domain.scheduling import Limits  # noqa: E402
from mlxbun.domain.steps import Compute  # noqa: E402

SPACE = Namespace("bd" * 32)
GREEDY = SamplingParams(temperature=0.0)
RAM_BYTES = 64 << 30  # so that nothing leaves by itself
SECONDS = 600.0
TURNS, ANSWER = 4, 32  # of the chat; tokens
SLOWER = 4.0  # than computing, is the slow disk


class Wrong(RuntimeError):
    """Something was measured that must not be."""


class Asked:
    """A request's mailbox: when each token came."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.at: list[float] = []
        self.tokens: list[int] = []
        self.decoding = threading.Event()
        self.over = threading.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, Drawn):
            self.at.append(time.perf_counter())
            self.tokens.append(int(item.token_id))
            self.decoding.set()
        elif isinstance(item, Ended):
            self.decoding.set()
            self.over.set()

    def wait(self) -> Asked:
        if not self.over.wait(SECONDS) or not self.at:
            raise Wrong("a request did not end, or had no token")
        return self

    @property
    def ttft_ms(self) -> float:
        return 1000 * (self.at[0] - self.began)

    @property
    def step_ms(self) -> float:
        """The mean time of a decode step."""
        return 1000 * (self.at[-1] - self.at[0]) / (len(self.at) - 1)


class Slow:
    """A block store that takes `seconds` longer to read a block."""

    def __init__(self, store: BlockStore, seconds: float) -> None:
        self._store, self._seconds = store, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, namespace: Namespace, key: BlockKey) -> Sequence[Tensor]:
        time.sleep(self._seconds)
        return self._store.read(namespace, key)


class Life:
    """One life of a server: an engine, its prefix cache, and a disk if it has a folder."""

    def __init__(
        self, model: Path, folder: Path | None, layout: Layout = "blocks", slow: float = 0.0
    ) -> None:
        self._model, self._folder, self._slow = model, folder, slow
        self._layout: Layout = layout
        self._count = 0
        self.journal = RingJournal(1 << 16)
        self.disk: Persistence | None = None
        self.compute: Compute | None = None
        opening: Any = importlib.import_module("mlxbun.adapters.mlx_compute.opening")
        self._opening = opening
        self.engine = Engine(
            self._open_compute,
            Limits(max_rows=4),
            self.journal,
            leave_thread=opening.leave_thread,
            open_prefixes=self._open_prefixes,
        )
        ready, failures = threading.Event(), list[Exception]()

        def on_failed(error: Exception) -> None:
            failures.append(error)
            ready.set()

        self.engine.start(self._tell, ready.set, on_failed)
        if not ready.wait(SECONDS) or failures:
            raise failures[0] if failures else Wrong("the model does not open")

    def ask(self, ids: Sequence[int], max_tokens: int = 2) -> Asked:
        self._count += 1
        asked = Asked()
        prompt = tuple(map(TokenId, ids))
        name = RequestId(f"r{self._count}")
        self.engine.submit(RequestSpec(name, prompt, max_tokens, frozenset(), GREEDY), asked)
        return asked

    def said(self, kind: type) -> int:
        """Return how many events of a kind there were."""
        return sum(isinstance(e, kind) for batch in self.journal.read() for e in batch.events)

    def await_said(self, kind: type) -> None:
        """Wait for an event of a kind."""
        deadline = time.monotonic() + SECONDS
        while not self.said(kind):
            if time.monotonic() > deadline:
                raise Wrong(f"there is no {kind.__name__}")
            time.sleep(0.05)

    def stop(self) -> None:
        self.engine.stop()
        if self.disk is not None:
            self.disk.close(SECONDS)

    def _tell(self, outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    def _open_compute(self) -> Compute:
        config = json.loads((self._model / "config.json").read_text())
        vocab_size = config.get("vocab_size") or config["text_config"]["vocab_size"]
        opened = self._opening.open_mlx_compute(
            self._model, dtype="auto", l1=False, vocab_size=vocab_size, xtc_exempt=()
        )
        self.compute = cast(Compute, opened.compute)
        return self.compute

    def _open_prefixes(self) -> Prefixes:
        assert self.compute is not None
        budget = residency.Budget(RAM_BYTES, self._folder is not None)
        if self._folder is None:
            return Prefixes(SPACE, budget)
        store: Any = open_block_store(self._folder, layout=self._layout)
        known = store.known(SPACE)
        if self._slow:
            store = Slow(store, self._slow)
        self.disk = Persistence(
            store, SPACE, tensors=self.compute.tensors, report=self.engine.report, known=known
        )
        self.disk.start()
        rate = store.prefill_rate(SPACE)
        self.engine.report(lambda blocks, compute: blocks.opened(compute, known, rate))
        return Prefixes(SPACE, budget, self.disk)


@contextmanager
def living(*args: Any, **options: Any) -> Iterator[Life]:
    life = Life(*args, **options)
    try:
        yield life
    finally:
        life.stop()


def prompt(tokens: int, seed: int) -> list[int]:
    return [5 + (seed * 7919 + i * i * 31 + i) % 190 for i in range(tokens)]


def drop_page_cache(folder: Path) -> str:
    """Take a folder's files out of the page cache; return how, or that it cannot be done."""
    if not hasattr(os, "posix_fadvise"):
        return "not possible here"
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    return "posix_fadvise"


def writing(model: Path, home: Path, tokens: int, steps: int, rounds: int) -> dict[str, Any]:
    """Decode alone, and while blocks of `tokens` tokens are written, in turns."""
    with living(model, None) as life, tempfile.TemporaryDirectory(dir=home) as scratch:
        assert life.compute is not None
        life.ask(prompt(64, 1), steps).wait()
        size = block_bytes(life, tokens)
        store = open_block_store(Path(scratch) / "store")
        source: dict[BlockKey, Sequence[Tensor]] = {}
        disk = Persistence(store, SPACE, tensors=source.__getitem__, report=lambda _: None)
        disk.start()
        quiet, busy, shares = list[float](), list[float](), list[float]()
        seconds = 0.0
        for number in range(rounds):
            for arm in ("quiet", "busy") if number % 2 else ("busy", "quiet"):
                asked = life.ask(prompt(64, 1), steps)
                if arm == "busy":
                    made = random_blocks(number, max(1, tokens // BLOCK), size)
                    source.update(made)
                    asked.decoding.wait(SECONDS)
                    began = time.perf_counter()
                    disk.write([BlockInfo(key, None, "block", 0, BLOCK, size) for key in made])
                    disk.flush(SECONDS)
                    seconds = time.perf_counter() - began
                asked.wait()
                (busy if arm == "busy" else quiet).append(asked.step_ms)
                if arm == "busy":
                    shares.append(seconds / (asked.at[-1] - asked.at[0]))
        report = disk.close(SECONDS)
    ratios = [b / q for b, q in zip(busy, quiet, strict=True)]
    return {
        "quiet_step_ms": median(quiet),
        "busy_step_ms": median(busy),
        "ratio": median(ratios),
        "ratios": ratios,
        "share_of_decoding_that_wrote": median(shares),
        "bytes_written": report.bytes_written,
    }


def block_bytes(life: Life, tokens: int) -> int:
    """Return what a block of the model's state takes, or a whole state where it is not cut."""
    life.ask(prompt(min(tokens, BLOCK + 1), 3)).wait()
    sizes = [
        block.num_bytes
        for batch in life.journal.read()
        for event in batch.events
        if isinstance(event, residency.BlocksPublished)
        for block in event.blocks
    ]
    if not sizes:
        raise Wrong(f"a prompt of {tokens} tokens left nothing: it takes more than {BLOCK}")
    return max(sizes)


def random_blocks(seed: int, count: int, size: int) -> dict[BlockKey, Sequence[Tensor]]:
    """Return blocks that no other has."""
    made: dict[BlockKey, Sequence[Tensor]] = {}
    for number in range(count):
        data = os.urandom(16) + bytes(max(0, size - 16))
        key = BlockKey(f"{seed:032x}{number:032x}")
        made[key] = [Tensor("state", "U8", (len(data),), data)]
    return made


def restart(model: Path, home: Path, tokens: int, rounds: int) -> dict[str, Any]:
    ids = prompt(tokens, 11)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch) / "store"
        colds, dropped, warm, reused, how = list[float](), list[float](), list[float](), 0, ""
        with living(model, folder) as life:
            life.ask(prompt(64, 1)).wait()
            first = life.ask(ids).wait()
            assert life.disk is not None
            if not life.disk.flush(SECONDS).durable:
                raise Wrong("what was computed is not durable")
        for _ in range(rounds):
            with living(model, None) as life:
                life.ask(prompt(64, 1)).wait()
                colds.append(life.ask(ids).wait().ttft_ms)
            for times in (dropped, warm):
                if times is dropped:
                    how = drop_page_cache(folder)
                with living(model, folder) as life:
                    life.ask(prompt(64, 1)).wait()
                    again = life.ask(ids).wait()
                    times.append(again.ttft_ms)
                    reused = life.said(residency.BlocksRestored)
                    if again.tokens != first.tokens:
                        raise Wrong("what was restored gives another answer")
        verification = verify_cost(folder, rounds)
    return {
        "cold_ttft_ms": median(colds),
        "dropped_ttft_ms": median(dropped),
        "warm_ttft_ms": median(warm),
        "cold_over_dropped": median([c / d for c, d in zip(colds, dropped, strict=True)]),
        "cold_over_warm": median([c / w for c, w in zip(colds, warm, strict=True)]),
        "page_cache": how,
        "was_restored": reused > 0,
        "verification": verification,
    }


def verify_cost(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the time to read all blocks, twice, with each way of verifying."""
    found: dict[Verify, list[float]] = {"never": [], "sample": [], "always": []}
    num_bytes = 0
    for number in range(max(2, rounds) + 1):
        for way, times in found.items():
            store = open_block_store(folder, verify=way)
            keys = [info.key for info in store.known(SPACE)]
            started = time.perf_counter()
            for _ in range(2):
                num_bytes = sum(
                    memoryview(tensor.data).nbytes
                    for key in keys
                    for tensor in store.read(SPACE, key)
                )
            if number:  # the first round warms up
                times.append(1000 * (time.perf_counter() - started))
            store.close()
    never = median(found["never"])
    return {
        "bytes": num_bytes,
        **{f"{way}_ms": median(times) for way, times in found.items()},
        "sample_over_never": median(found["sample"]) / never,
        "always_over_never": median(found["always"]) / never,
    }


def lookup(home: Path, num_blocks: int = 10_000) -> dict[str, float]:
    """Return what one lookup of a 100-block prompt takes among blocks on the disk."""
    state = residency.Residency(residency.Budget(1 << 40, True))
    every: list[BlockInfo] = []
    for number in range(num_blocks // 100):
        keys = chain(SPACE, [TokenId(number)] * (100 * BLOCK))
        every += [
            BlockInfo(key, keys[i - 1] if i else None, "block", i * BLOCK, BLOCK, 1)
            for i, key in enumerate(keys)
        ]
    for event in residency.decide(state, residency.Opened(tuple(every))):
        residency.evolve(state, event)
    ids = [TokenId(3)] * (100 * BLOCK + 1)
    deciding = list[float]()
    for _ in range(20):
        started = time.perf_counter()
        keys = chain(SPACE, ids)
        find = residency.Find(RequestId("r"), tuple(keys), (), len(ids) - 1, tuple(keys))
        events = residency.decide(state, find)
        deciding.append(1000 * (time.perf_counter() - started))
        if not isinstance(events[0], residency.RestoreStarted):
            raise Wrong("what is on the disk was not found")
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        store = open_block_store(Path(scratch) / "store")
        same = [Tensor("state", "U8", (8,), bytes(8))]  # one file for all: rows are what counts
        store.commit(SPACE, [(info, same) for info in every])
        started = time.perf_counter()
        known = store.known(SPACE)
        opening_ms = 1000 * (time.perf_counter() - started)
        finding = list[float]()
        for info in known[:: num_blocks // 50]:
            started = time.perf_counter()
            store.read(SPACE, info.key)
            finding.append(1000 * (time.perf_counter() - started))
        store.close()
    return {
        "blocks": num_blocks,
        "decide_ms": median(deciding),
        "find_and_read_ms": median(finding),
        "known_at_start_ms": opening_ms,
    }


def turns(model: Path, home: Path, tokens: int, layout: Layout) -> dict[str, Any]:
    """Hold a chat, and compare what each turn wrote with the state of its new blocks."""
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        written, new = list[int](), list[int]()
        with living(model, Path(scratch) / "store", layout) as life:
            ids: list[int] = []
            done, seen = 0, set[BlockKey]()
            for turn in range(TURNS):
                ids += prompt(max(BLOCK + 1, tokens // TURNS), 100 + turn)
                ids += life.ask(ids, ANSWER).wait().tokens
                assert life.disk is not None
                report = life.disk.flush(SECONDS)
                written.append(report.bytes_written - done)
                done = report.bytes_written
                blocks = {
                    block.key: block.num_bytes
                    for batch in life.journal.read()
                    for event in batch.events
                    if isinstance(event, residency.BlocksPublished)
                    for block in event.blocks
                    if block.kind != "tail"  # the next turn has a block of its tokens
                }
                new.append(sum(size for key, size in blocks.items() if key not in seen))
                seen |= set(blocks)
    return {
        "bytes_written": written,
        "bytes_of_new_blocks": new,
        "ratio": sum(written) / max(1, sum(new)),
        "last_turn_ratio": written[-1] / max(1, new[-1]),
    }


def slow_disk(model: Path, home: Path, tokens: int) -> dict[str, Any]:
    """Have a disk read slower than the model computes.  Raises Wrong if a request waits for it.

    How fast both are is known of the life before, and of a block that is read at start; where
    blocks are too small for that, of a first request.
    """
    prompts = [prompt(tokens, seed) for seed in (21, 22, 23)]
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        folder = Path(scratch) / "store"
        with living(model, folder) as life:
            life.ask(prompt(64, 1)).wait()
            computed = [life.ask(ids).wait().ttft_ms for ids in prompts]
            assert life.disk is not None
            is_measured = block_bytes(life, tokens) >= SAMPLE_BYTES
            num_blocks = max(1, life.disk.flush(SECONDS).entries // len(prompts))
        seconds = SLOWER * min(computed) / 1000 / num_blocks
        with living(model, folder, slow=seconds) as life:
            if is_measured:
                life.await_said(residency.SsdMeasured)
            else:
                life.ask(prompts[0]).wait()
            before = life.said(residency.BlocksRestored)
            found = [life.ask(ids).wait().ttft_ms for ids in prompts[1:]]
            declined = life.said(residency.RestoreDeclined)
            restored = life.said(residency.BlocksRestored) - before
    if restored or declined < len(found):
        raise Wrong("a disk that is slower than computing was asked")
    return {
        "seconds_a_block": seconds,
        "computed_ttft_ms": median(computed),
        "declined_ttft_ms": median(found),
        "declined_over_computed": median(found) / median(computed),
        "declined": declined,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="as for engine.py (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=int, default=4000, help="of the long prompt (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=100, help="of decoding (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path.cwd(), help="on the disk to measure (default: here)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    args = parser.parse_args()
    model, home, tokens = find_model(args.model), args.folder, max(args.tokens, 2 * BLOCK)
    found: dict[str, Any] = {
        "model": model.name,
        "tokens": tokens,
        "machine": cpu.machine(),
        "load_average": cpu.load_average(),
        "blas": BLAS.kind,
    }
    found["lookup"] = lookup(home)
    found["writing"] = writing(model, home, tokens, args.steps, args.rounds)
    found["restart"] = restart(model, home, tokens, args.rounds)
    found["verification"] = found["restart"].pop("verification")
    found["turns"] = {
        layout: turns(model, home, tokens, layout)
        for layout in (cast(Layout, "blocks"), cast(Layout, "whole"))
    }
    found["slow_disk"] = slow_disk(model, home, tokens)
    print(json.dumps(found, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
