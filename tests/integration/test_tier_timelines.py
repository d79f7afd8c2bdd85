"""Any timeline through RAM, disk, restarts and faults, on a model that checks what it is lent."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from doubles.compute import Row, ScriptedCompute
from doubles.tokenizer import EOS
from mlxbun.domain.blocks import BLOCK, Cuts
from mlxbun.domain.boundaries import chosen
from mlxbun.domain.sampling import TokenId
from tier_driver import GREEDY, SECONDS, Client, Process, damage

SIZE = 4 * BLOCK  # bytes of a block of the scripted model
CUTS: list[tuple[Cuts, bool]] = [("block", False), ("boundary", False), ("boundary", True)]
FULL = OSError(errno.ENOSPC, "No space left on device")
short = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
long = st.sampled_from([BLOCK + 1, 2 * BLOCK, 3 * BLOCK, 3 * BLOCK + 40, 5 * BLOCK + 1])
places = st.integers(0, 99)


def expected(client: Client) -> list[int]:
    """Return what a model that has no cache says."""
    row = Row(tuple(map(TokenId, client.prompt)), GREEDY)
    tokens: list[int] = []
    while len(tokens) < client.max_tokens and EOS not in tokens:
        tokens.append(int(row.draw()))
    return tokens


class Timeline(RuleBasedStateMachine):
    """Requests come, go and fail to wait, while the disk below them does what disks do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tiers-"))
        self.clients: list[Client] = []
        self.asked: list[list[int]] = []  # in this process and those before it
        self.process: Process | None = None

    @initialize(
        blocks=st.sampled_from([0, 1, 3, 6, 12, 1000, 1000]),
        cuts=st.sampled_from(CUTS),
        cap=st.sampled_from([None, None, 6]),
        has_disk=st.sampled_from([True, True, True, False]),
    )
    def begin(self, blocks: int, cuts: tuple[Cuts, bool], cap: int | None, has_disk: bool) -> None:
        self.ram_bytes, self.has_disk = blocks * SIZE, has_disk
        self.cuts = cuts
        self.max_bytes = None if cap is None else cap * (SIZE + 300)
        self.start()

    def start(self) -> None:
        cuts, mixed = self.cuts
        self.process = Process(
            self.folder / "ssd" if self.has_disk else None,
            lambda: ScriptedCompute(cuts=cuts, mixed=mixed),
            ram_bytes=self.ram_bytes,
            max_bytes=self.max_bytes,
            chunk=192,
            stop_ids=frozenset({EOS}),
        )

    @property
    def running(self) -> Process:
        assert self.process is not None
        return self.process

    @rule(
        letter=st.sampled_from("xy"),
        length=long,
        rest=short,
        said=st.sampled_from(["", "[say:one]", "[forever]"]),
        max_tokens=st.integers(1, 9),
    )
    def submit(self, letter: str, length: int, rest: int, said: str, max_tokens: int) -> None:
        prompt = [*(letter * length + "z" * rest + said).encode(), 33]
        self.asked.append(prompt)
        part = chosen((length, len(prompt) - 40))
        self.clients.append(self.running.submit(prompt, max_tokens, part))

    @rule(rest=short)
    def submit_short(self, rest: int) -> None:
        self.clients.append(self.running.submit([33] * (rest + 1)))

    @rule(place=places)
    def repeat(self, place: int) -> None:
        """Somebody asks what was asked before, perhaps while it is answered."""
        if self.asked:
            prompt = self.asked[place % len(self.asked)]
            self.clients += [self.running.submit(prompt, 4) for _ in range(2)]

    @rule(place=places, rest=short)
    def go_on(self, place: int, rest: int) -> None:
        """The next turn of a chat whose last one is over."""
        over = [client for client in self.clients if client.over.is_set()]
        if over:
            last = over[place % len(over)]
            prompt = [*last.prompt, *(t for t in last.tokens if t != EOS), *b"z" * rest, 33]
            if len(prompt) < 12 * BLOCK:
                self.clients.append(self.running.submit(prompt, 5))

    @rule(place=places)
    def cancel(self, place: int) -> None:
        """A client hangs up; whether its request was read, held, or over by now is chance."""
        if self.clients:
            client = self.clients.pop(place % len(self.clients))
            self.running.engine.cancel(client.request_id)

    @rule()
    def wait(self) -> None:
        self.settle()

    @rule()
    def flush(self) -> None:
        if self.has_disk:
            self.running.flush()

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        """Every disk works when a server starts; whether it did when one ended is chance."""
        if orderly:
            self.settle()
        self.running.stop()
        self.clients.clear()
        self.start()

    @rule(places=st.lists(places, min_size=1, max_size=4), harmed=st.none() | places)
    def come_back(self, places: list[int], harmed: int | None) -> None:
        """All that could be written is; the next process is asked the same again, at once."""
        self.running.files.heal()
        self.restart(True)
        if harmed is not None:
            self.harm(harmed, True)
        for place in places:
            self.repeat(place)

    @rule(place=places, gone=st.booleans())
    def harm(self, place: int, gone: bool) -> None:
        """A file of the disk is damaged or deleted behind our back."""
        if self.has_disk:
            self.running.flush()
        files = self.running.stored() if self.has_disk else []
        if files:
            path = files[place % len(files)]
            with contextlib.suppress(FileNotFoundError):  # it was pruned meanwhile
                path.unlink() if gone else damage(path)

    @rule(
        what=st.sampled_from(["write", "fsync", "rename", "committing", "read", "unlink"]),
        after=st.integers(0, 5),
        times=st.sampled_from([1, 2, 40]),
    )
    def fail(self, what: str, after: int, times: int) -> None:
        self.running.files.fail(what, FULL, after=after, times=times)

    @rule()
    def heal(self) -> None:
        self.running.files.heal()

    def settle(self) -> None:
        for client in self.clients:
            assert client.over.wait(SECONDS), "a request waits for ever"
            assert client.reason in ("stop", "length"), "no request fails"
            assert client.tokens == expected(client)

    def teardown(self) -> None:
        if self.process is not None:
            self.settle()
            self.process.files.heal()
            self.process.stop()
        shutil.rmtree(self.folder)


TestTimeline = Timeline.TestCase
TestTimeline.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
