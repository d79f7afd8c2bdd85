"""Prefixes: what requests begin with, what of their state is kept, and what becomes of it.

Every method runs on the engine's thread and returns the events of `residency` that it applied,
for the engine to journal.  Copies of state are the compute port's; which there are, and which
leave, is residency's decision.  A copy that cannot be made costs speed, never a request.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.application.read_ahead import SHARE, ReadAhead, keys_of, unwanted
from mlxbun.application.snapshots import Copy, Snapshots
from mlxbun.domain import residency
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    Namespace,
    Tensor,
    chain,
    linked,
)
from mlxbun.domain.residency import Event, SessionId
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.prefixes")


MAX_RESTORES = 3  # that a request waits for; what they brought may have left RAM again


class Disk(Protocol):
    """Where blocks go that should outlive RAM and this process.  All calls return at once.

    What is read `ahead` of need gives way to all else.  Each block that was asked for is told of
    once: `restored`, `not_restored`, or `not_read` where `cancel` came in time.
    """

    def write(self, blocks: Sequence[BlockInfo]) -> None: ...

    def read(self, blocks: Sequence[BlockInfo], ahead: bool = False) -> None: ...

    def cancel(self, keys: Sequence[BlockKey]) -> None: ...

    def holding(self) -> Sequence[BlockInfo]:
        """Return the blocks whose bytes are being written, wherever else they are."""
        ...


class Lent(Struct, frozen=True):
    """The request begins with `num_tokens` tokens of state, kept under `keys`."""

    num_tokens: int
    keys: tuple[BlockKey, ...]


class Released(Struct, frozen=True):
    """What no session holds any more: blocks in RAM, and their bytes.  They stay where they are."""

    num_blocks: int = 0
    num_bytes: int = 0


class _User(Struct):
    """A request whose prompt is in the chain: its ids, its keys, what it began with."""

    prompt_ids: tuple[TokenId, ...]
    keys: list[BlockKey]
    lent: Lent | None = None
    awaits: BlockKey | None = None
    asks: residency.Find | None = None
    num_restores: int = 0
    num_published: int = 0  # blocks, those it began with included
    seconds: float = 0.0
    drawn: list[TokenId] = []
    snapshots: Snapshots | None = None  # where state cannot be cut
    copied: list[BlockKey] = []
    session: SessionId | None = None


class Prefixes:
    """The prefix cache of one model.  One thread calls it all."""

    def __init__(
        self,
        namespace: Namespace,
        budget: residency.Budget,
        disk: Disk | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._namespace = namespace
        self._now = now
        self._disk = disk
        self._state = residency.Residency(budget)
        self._users: dict[RequestId, _User] = {}
        self._ahead = ReadAhead(budget.ram_bytes // SHARE)

    @property
    def state(self) -> residency.Residency:
        return self._state

    @property
    def writing_bytes(self) -> int:
        """What left RAM, but that the disk still writes it."""
        if self._disk is None:
            return 0
        return sum(b.num_bytes for b in self._disk.holding() if not self._in_ram(b.key))

    def find(
        self,
        compute: Compute,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        session: str | None = None,
        boundaries: Sequence[int] = (),
    ) -> list[Event]:
        """Look for the longest prefix of a request that is about to be admitted.

        `lent` and `awaits` say afterwards what it begins with, or that it must wait.  `session`
        is what its client calls the conversation; `boundaries` are as in `RequestSpec`.
        """
        user = self._users.get(request_id)
        waited = self._ahead.leave(request_id)
        if user is None:
            keys = list(waited.keys) if waited is not None else []
            user = _User(prompt_ids, keys or chain(self._namespace, prompt_ids[:-1]))
            user.session = session_id(session) if session else None
            if compute.cuts == "boundary":
                blocks = user.keys if compute.mixed else None
                user.snapshots = Snapshots(self._namespace, prompt_ids, boundaries, blocks)
            self._users[request_id] = user
        alone = compute.cuts == "block"
        fits = self._aim(user)
        user.asks = residency.Find(
            request_id,
            tuple(user.keys) if alone or compute.mixed else (),
            fits,
            len(prompt_ids) - 1,
            _wanted(user),
            user.num_restores < MAX_RESTORES,
            alone,
        )
        events = self._decide(compute, user.asks)
        user.lent, user.awaits = None, None
        for event in events:
            if isinstance(event, residency.PrefixLent):
                user.lent = Lent(event.num_tokens, event.keys)
            elif isinstance(event, residency.PrefixAwaited):
                user.awaits = event.key
                user.num_restores += event.source == "restoring"
        if user.awaits is None:
            user.num_published = len(user.lent.keys) if user.lent and alone else 0
            if user.snapshots is not None:
                user.snapshots.aim(user.lent.num_tokens if user.lent is not None else 0)
            events += self._decide(compute, residency.Compute(request_id, _wanted(user)))
        return events

    def stops(self, request_id: RequestId) -> tuple[int, ...]:
        """Return after how many tokens of its prompt a request's state is to be copied."""
        user = self._users.get(request_id)
        return user.snapshots.stops if user is not None and user.snapshots is not None else ()

    def may_read_ahead(self, request_id: RequestId) -> bool:
        """Return whether `read_ahead` has anything to look at for a request that waits."""
        room = self._disk is not None and self._ahead.room > 0
        return room and request_id not in self._ahead and request_id not in self._users

    def read_ahead(
        self, compute: Compute, request_id: RequestId, prompt_ids: tuple[TokenId, ...]
    ) -> list[Event]:
        """Have the disk read what a request begins with that waits behind others."""
        alone = compute.cuts == "block"
        keys = chain(self._namespace, prompt_ids[:-1]) if alone or compute.mixed else []
        blocks = keys if compute.mixed else None
        find = residency.Find(
            request_id,
            tuple(keys),
            () if alone else self._fits(Snapshots(self._namespace, prompt_ids, (), blocks)),
            len(prompt_ids) - 1,
            alone=alone,
        )
        events = self._decide(compute, residency.Prefetch(find, self._ahead.room))
        self._ahead.begun(self._state, find, events)
        return events

    def lent(self, request_id: RequestId) -> Lent | None:
        """Return what `find` lent to a request."""
        user = self._users.get(request_id)
        return user.lent if user is not None else None

    def awaits(self, request_id: RequestId) -> bool:
        """Return whether what a request waits for is still on its way."""
        user = self._users.get(request_id)
        return (
            user is not None
            and user.awaits is not None
            and residency.waiting_on(self._state, user.awaits)
        )

    def begun(self, compute: Compute, request_id: RequestId, num_tokens: int) -> list[Event]:
        """Note that a row began with `num_tokens` tokens of state: it has its own copy now."""
        user = self._users.get(request_id)
        if user is not None and user.snapshots is not None:
            user.snapshots.begin(num_tokens)
        return self._decide(compute, residency.Return(request_id))

    def drawn(self, request_ids: Sequence[RequestId], token_ids: Sequence[TokenId]) -> None:
        """Note the tokens of a step; those of a completed answer are published with it."""
        for request_id, token_id in zip(request_ids, token_ids, strict=True):
            user = self._users.get(request_id)
            if user is not None:
                user.drawn.append(token_id)

    def read(
        self, compute: Compute, rows: Sequence[tuple[RequestId, int]], seconds: float
    ) -> list[Event]:
        """Note that prompt tokens of `rows` were computed in `seconds`, shared by their count.

        Blocks that somebody waits for are published at once, and whole states where they are due.
        """
        total = sum(count for _, count in rows) or 1
        awaited = {user.awaits for user in self._users.values() if user.awaits is not None}
        events: list[Event] = []
        for request_id, count in rows:
            user = self._users.get(request_id)
            if user is None:
                continue
            user.seconds += seconds * count / total
            if user.snapshots is not None:
                user.snapshots.read(count, seconds * count / total)
                due = user.snapshots.due()
                events += self._copy(compute, request_id, user, [due] if due is not None else [])
            elif awaited.intersection(user.keys):
                events += self._publish(compute, request_id, user.keys)
        return events

    def starting(self, compute: Compute, request_ids: Sequence[RequestId]) -> list[Event]:
        """Publish the prompts of rows that draw their first token with the next step."""
        events: list[Event] = []
        for request_id in request_ids:
            user = self._users.get(request_id)
            if user is None:
                continue
            if user.snapshots is None:
                events += self._publish(compute, request_id, user.keys)
            # What could not be kept is not on its way any more.
            events += self._decide(compute, residency.End(request_id))
        return events

    def over(
        self, compute: Compute, request_id: RequestId, *, answered: bool = False
    ) -> list[Event]:
        """Publish what a request computed, which ends, however it ends, and let go of it.

        `answered` says that its last token was drawn.  Called before the row is closed.
        """
        waited = self._ahead.leave(request_id)
        user = self._users.pop(request_id, None)
        asked = waited or (user.asks if user is not None and user.awaits is not None else None)
        if asked is not None:
            self._read_no_more(asked)
        if user is None:
            return []
        events: list[Event] = []
        if compute.cuts == "block" and user.awaits is None:
            self._users[request_id] = user
            events += self._publish(compute, request_id, self._keys_so_far(user))
            del self._users[request_id]
        if user.snapshots is not None and user.awaits is None:
            left = user.snapshots.left() if not user.drawn else None
            found = user.snapshots.answered(user.drawn) if answered else [left] if left else []
            events += self._copy(compute, request_id, user, found)
        return events + self._decide(compute, residency.End(request_id))

    def reached(self, compute: Compute, request_id: RequestId) -> list[Event]:
        """Publish what a running row has computed so far."""
        user = self._users.get(request_id)
        if user is None or compute.cuts != "block":
            return []
        return self._publish(compute, request_id, self._keys_so_far(user))

    def broke(self, compute: Compute, request_id: RequestId) -> list[Event]:
        """Let go of a request whose row broke; nothing of it is kept."""
        self._ahead.leave(request_id)
        self._users.pop(request_id, None)
        return self._decide(compute, residency.End(request_id))

    # -- time, room and sessions --

    def close_session(self, compute: Compute, name: str) -> tuple[Released, list[Event]]:
        """Let a session's state leave RAM as any other does; say how much of it is there."""
        session = self._state.sessions.get(session_id(name))
        events = self._decide(compute, residency.CloseSession(session_id(name)))
        if session is None:
            return Released(), events
        held = self._state.held
        free = [self._state.blocks.get(key) for key in session.keys if key not in held]
        sizes = [block.info.num_bytes for block in free if block is not None and block.in_ram]
        return Released(len(sizes), sum(sizes)), events

    def idle_seconds(self) -> float | None:
        """Return in how many seconds something may be idle enough to leave RAM; None: never."""
        due = residency.next_demotion(self._state)
        if due is None:
            return None
        # A second more, so that what becomes idle soon after leaves with it.
        return max(0.0, due - self._now()) + residency.STEP_SECONDS

    def pass_time(self, compute: Compute) -> list[Event]:
        """Do what the time that has passed brings."""
        return self._apply(compute, residency.Tick(self._now()))

    def relieve(self, compute: Compute, num_bytes: int) -> list[Event]:
        """Give back `num_bytes` of memory, as far as they are there."""
        return self._apply(compute, residency.Relieve(num_bytes))

    # -- the disk's answers --

    def opened(self, compute: Compute, blocks: Sequence[BlockInfo]) -> list[Event]:
        """Note what the disk has from earlier."""
        return self._decide(compute, residency.Opened(tuple(blocks)))

    def restored(
        self,
        compute: Compute,
        blocks: Sequence[tuple[BlockInfo, Sequence[Tensor]]],
        seconds: float = 0.0,
    ) -> list[Event]:
        """Take in blocks that were read from the disk in `seconds`; 0 is not known."""
        started = time.perf_counter()
        there: list[BlockInfo] = []
        lost: list[BlockKey] = []
        for block, tensors in blocks:
            try:
                there.append(compute.adopt(block, tensors))
            except Exception as error:  # BlockLost, or memory: it is computed again
                log.warning("block %s cannot be used: %s", block.key[:12], error)
                lost.append(block.key)
        if seconds:
            seconds += time.perf_counter() - started
        events = self._decide(compute, residency.Restored(tuple(there), seconds))
        if lost:
            events += self.not_restored(compute, lost, "it cannot be used")
        return events

    def not_restored(self, compute: Compute, keys: Sequence[BlockKey], cause: str) -> list[Event]:
        """Note that blocks could not be read."""
        return self._decide(compute, residency.RestoreFailed(tuple(keys), cause))

    def not_read(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that blocks were not read, as they were cancelled."""
        return self._decide(compute, residency.StopRestores(tuple(keys)))

    def written(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that blocks are durable."""
        return self._decide(compute, residency.Written(tuple(keys)))

    def not_written(self, compute: Compute, keys: Sequence[BlockKey], cause: str) -> list[Event]:
        """Note that blocks could not be written."""
        return self._decide(compute, residency.WriteFailed(tuple(keys), cause))

    def pruned(self, compute: Compute, keys: Sequence[BlockKey]) -> list[Event]:
        """Note that the disk forgot blocks."""
        return self._decide(compute, residency.Pruned(tuple(keys)))

    def _read_no_more(self, asked: residency.Find) -> None:
        """Cancel what is being read for a request that is over, and for nobody else."""
        wanted = self._ahead.wanted()
        for user in self._users.values():
            if user.awaits is not None and user.asks is not None:
                wanted.update(keys_of(user.asks))
        gone = unwanted(self._state, keys_of(asked), wanted)
        if gone and self._disk is not None:
            self._disk.cancel(gone)

    # -- publication --

    def _keys_so_far(self, user: _User) -> Sequence[BlockKey]:
        """Return the keys of what a row has read: all but the token that it drew last."""
        if not user.drawn:
            return user.keys
        return chain(self._namespace, [*user.prompt_ids, *user.drawn[:-1]])

    def _publish(
        self, compute: Compute, request_id: RequestId, keys: Sequence[BlockKey]
    ) -> list[Event]:
        """Keep the blocks of `keys` that a row has computed and that are not kept yet."""
        user = self._users[request_id]
        wanted = linked(keys)[user.num_published :]
        while wanted and self._in_ram(wanted[0].key):
            user.num_published += 1
            del wanted[0]
        kept = self._kept(compute, request_id, wanted)
        user.num_published += len(kept)
        events = self._hold(compute, user, keys[: user.num_published])
        events += self._decide(compute, residency.Publish(request_id, kept, user.seconds))
        user.seconds = 0.0 if kept else user.seconds
        return events

    def _copy(
        self, compute: Compute, request_id: RequestId, user: _User, found: Sequence[Copy]
    ) -> list[Event]:
        """Keep the first of `found`, whole states, that a row is in."""
        events: list[Event] = []
        for copy in found:
            missing = self._missing(copy)
            kept = self._kept(compute, request_id, missing)
            if len(kept) < len(missing):
                continue
            assert user.snapshots is not None
            user.snapshots.kept(copy)
            *blocks, boundary = (block.key for block in copy)
            user.copied.append(boundary)
            # The next turn begins with the end of the answer, or of the prompt before it.
            events += self._hold(compute, user, (*blocks, *user.copied[-2:]))
            num_tokens = sum(block.num_tokens for block in kept)
            seconds = user.snapshots.seconds(num_tokens, self._state.prefill_tokens_per_second)
            events += self._decide(compute, residency.Publish(request_id, kept, seconds))
            break
        return events

    def _missing(self, copy: Copy) -> Sequence[BlockInfo]:
        """Return what is to be kept of a state: from the first block on that is not kept.

        Blocks that only the disk has are not brought back: who needs them reads them there.
        """
        for place, block in enumerate(copy):
            resident = self._state.blocks.get(block.key)
            on_ssd = resident is not None and resident.on_ssd and block.kind == "block"
            if not on_ssd and not self._in_ram(block.key):
                return copy[place:]
        return ()

    def _aim(self, user: _User) -> tuple[tuple[int, BlockKey], ...]:
        """Return the keys of whole states that a prompt could begin with, the longest first.

        What is shorter than the longest of them in RAM is nothing to wait for, or to copy.
        """
        if user.snapshots is None:
            return ()
        fits = self._fits(user.snapshots)
        whole = (length for length, key in fits if residency.all_in_ram(self._state, key))
        user.snapshots.aim(next(whole, 0))
        return fits

    def _hold(self, compute: Compute, user: _User, keys: Sequence[BlockKey]) -> list[Event]:
        """Keep what a session's latest request left for longer than what nobody asks for."""
        if user.session is None:
            return []
        return self._decide(compute, residency.Hold(user.session, tuple(keys), self._now()))

    def _kept(
        self, compute: Compute, request_id: RequestId, wanted: Sequence[BlockInfo]
    ) -> tuple[BlockInfo, ...]:
        if not wanted:
            return ()
        try:
            return compute.keep(request_id, wanted)
        except Exception as error:  # memory, say: the request itself is well
            log.warning("the state of %s was not kept", request_id, exc_info=error)
            return ()

    def _fits(self, snapshots: Snapshots) -> tuple[tuple[int, BlockKey], ...]:
        return snapshots.known(self._state.boundary_lengths)

    def _in_ram(self, key: BlockKey) -> bool:
        resident = self._state.blocks.get(key)
        return resident is not None and resident.in_ram

    def _decide(self, compute: Compute, command: residency.Command) -> list[Event]:
        """Decide, apply, and do what was decided, at the time that it is; then see that it fits."""
        events: list[Event] = []
        now = self._now()
        if now - self._state.now >= residency.STEP_SECONDS:
            events += self._apply(compute, residency.Tick(now))
        events += self._apply(compute, command)
        if self._state.ram_bytes > self._state.budget.ram_bytes:
            restored = command.blocks if isinstance(command, residency.Restored) else ()
            last = frozenset(block.key for block in restored)  # somebody waits for them
            events += self._apply(compute, residency.Fit(last))
        return events

    def _apply(self, compute: Compute, command: residency.Command) -> list[Event]:
        events = residency.decide(self._state, command)
        for event in events:
            self._state = residency.evolve(self._state, event)
            match event:
                case residency.BlocksEvicted(keys=keys):
                    compute.forget(keys)
                case residency.WriteQueued(keys=keys) if self._disk is not None:
                    self._disk.write([self._state.blocks[key].info for key in keys])
                case residency.RestoreStarted(keys=keys, ahead=ahead) if self._disk is not None:
                    self._disk.read([self._state.blocks[key].info for key in keys], ahead)
                case _:
                    pass
        return events


def _wanted(user: _User) -> tuple[BlockKey, ...]:
    """Return the keys that a request publishes as its prompt is computed."""
    return user.snapshots.keys if user.snapshots is not None else tuple(user.keys)


def session_id(name: str) -> SessionId:
    """Return what stands for a client's name of a session, of which nothing is kept."""
    return SessionId(hashlib.sha256(name.encode()).hexdigest()[:32])
