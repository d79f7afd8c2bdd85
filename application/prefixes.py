"""Prefixes: what requests begin with, and which wait for it; each publishes what it computes.

Every method runs on the engine's thread and returns the events of `residency` that it applied,
for the engine to journal.  Copies of state are the compute port's; which there are, and which
leave, is residency's decision.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from mlxbun.application.publication import BlockPublication, BoundaryPublication, Publication
from mlxbun.application.read_ahead import SHARE, ReadAhead, keys_of, unwanted
from mlxbun.application.resident_blocks import Disk, ResidentBlocks
from mlxbun.application.snapshots import Snapshots
from mlxbun.application.upkeep import Upkeep, session_id
from mlxbun.domain import residency
from mlxbun.domain.blocks import BlockKey, Namespace, chain
from mlxbun.domain.residency import Event, SessionId
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute

log = logging.getLogger("mlxbun.prefixes")

PATIENCE = 4  # how often a read may take what reads lately took, before it is not waited for
LEAST_PATIENCE_SECONDS = 10.0
SLOW_BYTES_PER_SECOND = 50e6  # of a disk that was not measured yet
MAX_RESTORES = 3  # that a request waits for; what they brought may have left RAM again


class Lent(Struct, frozen=True):
    """The request begins with `num_tokens` tokens of state, kept under `keys`."""

    num_tokens: int
    keys: tuple[BlockKey, ...]


class _User(Struct):
    """A request that asked: what it publishes, what it begins with or waits for."""

    publication: Publication
    lent: Lent | None = None
    awaits: BlockKey | None = None
    until: float | None = None  # for how long it waits for the disk
    asks: residency.Find | None = None
    num_restores: int = 0


class Prefixes:
    """The prefix cache of one model, as its requests use it.  One thread calls it all.

    `blocks` is what there is, and hears of the disk; `upkeep` sees to it between requests.
    """

    def __init__(
        self,
        namespace: Namespace,
        budget: residency.Budget,
        disk: Disk | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = ResidentBlocks(budget, disk, now)
        self.upkeep = Upkeep(self.blocks, now)
        self._now = now
        self._heard_before: int | None = None  # reports of the disk, when it was given up
        self._namespace = namespace
        self._users: dict[RequestId, _User] = {}
        self._ahead = ReadAhead(budget.ram_bytes // SHARE)

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
        waited = self._ahead.leave(request_id)
        user = self._users.get(request_id)
        if user is None:
            keys = waited.keys if waited is not None else self._keys(compute, prompt_ids)
            owner = session_id(session) if session else None
            publication = self._publication(
                compute, request_id, prompt_ids, keys, boundaries, owner
            )
            user = self._users[request_id] = _User(publication)
        publication = user.publication
        fits = publication.seek()
        user.asks = residency.Find(
            request_id,
            tuple(publication.keys),
            fits,
            len(prompt_ids) - 1,
            publication.wanted,
            user.num_restores < MAX_RESTORES and not self._disk_hangs(),
            compute.cuts == "block",
        )
        events = self.blocks.decide(compute, user.asks)
        user.lent, user.awaits, user.until = None, None, None
        for event in events:
            if isinstance(event, residency.PrefixLent):
                user.lent = Lent(event.num_tokens, event.keys)
            elif isinstance(event, residency.PrefixAwaited):
                user.awaits = event.key
                if event.source == "restoring":
                    user.num_restores += 1
                    user.until = self._now() + self._patience_seconds()
        if user.awaits is None:
            lent = user.lent or Lent(0, ())
            publication.aim(lent.num_tokens)
            compute_them = residency.Compute(request_id, publication.wanted)
            events += self.blocks.decide(compute, compute_them)
        return events

    def stops(self, request_id: RequestId) -> tuple[int, ...]:
        """Return after how many tokens of its prompt a request's state is to be copied."""
        user = self._users.get(request_id)
        return user.publication.stops if user is not None else ()

    def lent(self, request_id: RequestId) -> Lent | None:
        """Return what `find` lent to a request."""
        user = self._users.get(request_id)
        return user.lent if user is not None else None

    def awaits(self, request_id: RequestId) -> bool:
        """Return whether what a request waits for is still on its way, and is worth waiting for."""
        user = self._users.get(request_id)
        if user is None or user.awaits is None:
            return False
        if not residency.waiting_on(self.blocks.state, user.awaits):
            return False
        if user.until is None or self._now() < user.until:
            return True
        if not self._disk_hangs():
            log.warning("the disk does not answer: prompts are computed until it does")
            self._heard_before = self.blocks.num_heard
        return False

    def patience_seconds(self) -> float | None:
        """Return in how many seconds somebody will have waited enough; None if nobody will."""
        ends = [user.until for user in self._users.values() if user.until is not None]
        return max(0.0, min(ends) - self._now()) if ends else None

    def _patience_seconds(self) -> float:
        """Return for how long the disk is waited for, which reads for others too."""
        state = self.blocks.state
        usual = state.restoring_bytes / (state.restored_bytes_per_second or SLOW_BYTES_PER_SECOND)
        return LEAST_PATIENCE_SECONDS + PATIENCE * usual

    def _disk_hangs(self) -> bool:
        """Return whether the disk gave nothing since somebody waited enough for it."""
        return self._heard_before == self.blocks.num_heard

    # -- who waits behind others --

    def may_read_ahead(self, request_id: RequestId) -> bool:
        """Return whether `read_ahead` has anything to look at for a request that waits."""
        room = self.blocks.has_disk and self._ahead.room > 0 and not self._disk_hangs()
        return room and request_id not in self._ahead and request_id not in self._users

    def read_ahead(
        self, compute: Compute, request_id: RequestId, prompt_ids: tuple[TokenId, ...]
    ) -> list[Event]:
        """Have the disk read what a request begins with that waits behind others."""
        keys = self._keys(compute, prompt_ids)
        publication = self._publication(compute, request_id, prompt_ids, keys)
        find = residency.Find(
            request_id,
            tuple(keys),
            publication.fits(),
            len(prompt_ids) - 1,
            alone=compute.cuts == "block",
        )
        events = self.blocks.decide(compute, residency.Prefetch(find, self._ahead.room))
        self._ahead.begun(self.blocks.state, find, events)
        return events

    def _read_no_more(self, asked: residency.Find) -> None:
        """Cancel what is being read for a request that is over, and for nobody else."""
        wanted = self._ahead.wanted()
        for user in self._users.values():
            if user.awaits is not None and user.asks is not None:
                wanted.update(keys_of(user.asks))
        self.blocks.cancel(unwanted(self.blocks.state, keys_of(asked), wanted))

    # -- rows --

    def begun(self, compute: Compute, request_id: RequestId, num_tokens: int) -> list[Event]:
        """Note that a row began with `num_tokens` tokens of state: it has its own copy now."""
        user = self._users.get(request_id)
        if user is not None:
            user.publication.begin(num_tokens)
        return self.blocks.decide(compute, residency.Return(request_id))

    def drawn(self, request_ids: Sequence[RequestId], token_ids: Sequence[TokenId]) -> None:
        """Note the tokens of a step; those of a completed answer are published with it."""
        for request_id, token_id in zip(request_ids, token_ids, strict=True):
            user = self._users.get(request_id)
            if user is not None:
                user.publication.draw(token_id)

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
            if user is not None:
                part = seconds * count / total
                events += user.publication.read(compute, count, part, awaited)
        return events

    def starting(self, compute: Compute, request_ids: Sequence[RequestId]) -> list[Event]:
        """Publish the prompts of rows that draw their first token with the next step."""
        events: list[Event] = []
        for request_id in request_ids:
            user = self._users.get(request_id)
            if user is None:
                continue
            events += user.publication.start(compute)
            # What could not be kept is not on its way any more.
            events += self.blocks.decide(compute, residency.End(request_id))
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
        if user.awaits is None:
            try:
                events += user.publication.end(compute, answered=answered)
            except Exception:  # it is over all the same, and nobody may wait for it
                log.exception("what %s computed is not kept", request_id)
        return events + self.blocks.decide(compute, residency.End(request_id))

    def broke(self, compute: Compute, request_id: RequestId) -> list[Event]:
        """Let go of a request whose row broke; nothing of it is kept."""
        self._ahead.leave(request_id)
        self._users.pop(request_id, None)
        return self.blocks.decide(compute, residency.End(request_id))

    # -- how state is cut --

    def _keys(self, compute: Compute, prompt_ids: Sequence[TokenId]) -> Sequence[BlockKey]:
        """Return the keys of a prompt's blocks, its last token left out; none where none are."""
        blocks = compute.cuts == "block" or compute.mixed
        return chain(self._namespace, prompt_ids[:-1]) if blocks else ()

    def _publication(
        self,
        compute: Compute,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        keys: Sequence[BlockKey],
        boundaries: Sequence[int] = (),
        session: SessionId | None = None,
    ) -> Publication:
        if compute.cuts == "block":
            return BlockPublication(
                self.blocks, self._namespace, request_id, prompt_ids, keys, session
            )
        chained = keys if compute.mixed else None
        snapshots = Snapshots(self._namespace, prompt_ids, boundaries, chained)
        return BoundaryPublication(self.blocks, request_id, snapshots, keys, session)
