"""Idempotency: a request that is sent twice under one key is answered once.

Who comes second is attached to the answer that runs, from its first token on, or gets one that
is complete again.  All followers read the same items, each with a text side of its own, so
whole and streamed answers and every protocol are alike.  An answer that everybody left goes on for
a while, so that a client that lost its connection finds it when it tries again.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from mlxbun.application.requests import Drawn, Ended, Item, Mailbox, RequestSpec, Submitter
from mlxbun.domain.refusal import Refused
from mlxbun.domain.sampling import FinishReason, RequestId

HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 255
GRACE_SECONDS = 10.0  # official clients try again within 8
KEPT_SECONDS = 600.0
MAX_KEPT = 256
MAX_KEPT_BYTES = 32 << 20
_ITEM_BYTES = 96  # of memory, about; alternatives of log-probabilities come on top
_ALTERNATIVE_BYTES = 120


def check_key(key: str | None) -> str | None:
    """Return a key that a client sent, None for none.  Raises Refused, naming the header."""
    if key is None or not key:
        return None
    if len(key) > MAX_KEY_CHARS or not key.isprintable():
        message = f"{HEADER} must be 1 to {MAX_KEY_CHARS} printable characters"
        raise Refused("invalid_value", message, HEADER)
    return key


class Attempt(Struct, frozen=True):
    """One sending of a request under a key.  `asked` is a hash of all that was sent."""

    key: str
    asked: bytes

    @property
    def seed(self) -> int:
        """The seed of a request that names none: the same for each attempt."""
        return int.from_bytes(hashlib.sha256(b"seed" + self.key.encode()).digest()[:8]) >> 1


class _Row:
    """One row's items, for everybody who follows it.  A mailbox."""

    def __init__(self, answer: _Answer, spec: RequestSpec) -> None:
        self._answer = answer
        self.spec = spec
        self.items: list[Item] = []
        self.followers: list[Mailbox] = []
        self.over = False

    def put(self, item: Item) -> None:
        if self.over:
            return
        self.items.append(item)
        if isinstance(item, Ended):
            self.over = True
        for follower in list(self.followers):
            follower.put(item)
        if isinstance(item, Ended):
            self._answer.row_over(item)


class _Answer:
    """One answer under a key, and who follows it."""

    def __init__(
        self,
        submitter: Submitter,
        specs: Sequence[RequestSpec],
        asked: bytes,
        over: Callable[[_Answer], None],
    ) -> None:
        self.asked = asked
        self.num_followers = 0
        self.broken = False
        self.grace: asyncio.TimerHandle | None = None
        self.completed_at = 0.0
        self._submitter = submitter
        self._over = over
        self.rows = [_Row(self, spec) for spec in specs]

    def start(self) -> None:
        for row in self.rows:
            self._submitter.submit(row.spec, row)

    @property
    def complete(self) -> bool:
        return all(row.over for row in self.rows)

    @property
    def num_bytes(self) -> int:
        total = 0
        for row in self.rows:
            total += _ITEM_BYTES * len(row.items)
            for item in row.items:
                if isinstance(item, Drawn) and item.logprobs is not None:
                    total += _ALTERNATIVE_BYTES * (1 + len(item.logprobs.top))
        return total

    def follow(self, index: int, mailbox: Mailbox) -> None:
        row = self.rows[index]
        for item in row.items:
            mailbox.put(item)
        row.followers.append(mailbox)

    def unfollow(self, index: int, mailbox: Mailbox) -> None:
        self.rows[index].followers.remove(mailbox)

    def finish(self, index: int, reason: FinishReason) -> None:
        """End a row whose text is complete, as its first follower to see it says."""
        row = self.rows[index]
        if not row.over:
            self._submitter.finish(row.spec.request_id, reason)
            row.put(Ended(reason))  # whoever does not see it by itself is told

    def row_over(self, end: Ended) -> None:
        if end.refusal is not None:
            self.broken = True
            self.cancel()
        if self.complete:
            self._over(self)

    def cancel(self) -> None:
        """Drop the rows that still run."""
        for row in self.rows:
            if not row.over:
                row.over = True
                self._submitter.cancel(row.spec.request_id)


class Attachment:
    """One client's hold on an answer.  A Submitter: its rows are the answer's, in order."""

    def __init__(self, answer: _Answer) -> None:
        self.answer = answer
        self._rows: dict[RequestId, int] = {}
        self._mailboxes: list[Mailbox] = []

    def submit(self, spec: RequestSpec, mailbox: Mailbox) -> None:
        index = self._rows[spec.request_id] = len(self._rows)
        self._mailboxes.append(mailbox)
        self.answer.follow(index, mailbox)

    def finish(self, request_id: RequestId, reason: FinishReason) -> None:
        self.answer.finish(self._rows[request_id], reason)

    def cancel(self, request_id: RequestId) -> None:
        """Do nothing yet: others may follow the row, or come; `Answers.leave` decides."""

    def let_go(self) -> None:
        for index, mailbox in enumerate(self._mailboxes):
            self.answer.unfollow(index, mailbox)


class Answers:
    """The answers under keys that run or were complete lately."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        grace_seconds: float = GRACE_SECONDS,
        kept_seconds: float = KEPT_SECONDS,
        max_kept: int = MAX_KEPT,
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self._now = now
        self._grace_seconds = grace_seconds
        self._kept_seconds = kept_seconds
        self._max_kept, self._max_kept_bytes = max_kept, max_kept_bytes
        self._answers: dict[str, _Answer] = {}
        self._kept: dict[str, int] = {}  # complete ones, the oldest first: their bytes

    def attach(
        self, attempt: Attempt, specs: Sequence[RequestSpec], submitter: Submitter
    ) -> Attachment:
        """Return a hold on the answer of an attempt's key, which begins if there is none.

        Raises Refused when the key was used for something else.
        """
        self._expire()
        key = attempt.key
        answer = self._answers.get(key)
        if answer is None:
            answer = _Answer(submitter, specs, attempt.asked, lambda over: self._over(key, over))
            self._answers[key] = answer
            answer.start()
        elif answer.asked != attempt.asked or len(answer.rows) != len(specs):
            raise Refused(
                "invalid_value",
                f"{HEADER} {key!r} was used for a request that asks for something else; "
                "a new request needs a new key",
                HEADER,
            )
        answer.num_followers += 1
        if answer.grace is not None:
            answer.grace.cancel()
            answer.grace = None
        return Attachment(answer)

    @contextmanager
    def held(
        self, attempt: Attempt | None, specs: Sequence[RequestSpec], submitter: Submitter
    ) -> Generator[Submitter]:
        """Yield where rows are to be submitted; without an attempt that is `submitter` itself."""
        if attempt is None:
            yield submitter
            return
        attachment = self.attach(attempt, specs, submitter)
        try:
            yield attachment
        finally:
            self.leave(attempt.key, attachment)

    def leave(self, key: str, attachment: Attachment) -> None:
        """Let go.  An answer that nobody holds and that is not complete gets its grace."""
        answer = attachment.answer
        attachment.let_go()
        answer.num_followers -= 1
        if answer.num_followers or answer.complete:
            return
        loop = asyncio.get_running_loop()
        answer.grace = loop.call_later(self._grace_seconds, self._give_up, key, answer)

    def _give_up(self, key: str, answer: _Answer) -> None:
        if self._answers.get(key) is answer:
            del self._answers[key]
        answer.cancel()

    def _over(self, key: str, answer: _Answer) -> None:
        """Keep what is complete for a while; what broke is not kept, so that a retry is new."""
        if self._answers.get(key) is not answer:
            return
        if answer.grace is not None:
            answer.grace.cancel()
            answer.grace = None
        if answer.broken:
            del self._answers[key]
            return
        answer.completed_at = self._now()
        self._kept[key] = answer.num_bytes
        self._expire()

    def _expire(self) -> None:
        oldest = self._now() - self._kept_seconds
        while self._kept:
            key = next(iter(self._kept))
            full = len(self._kept) > self._max_kept
            full = full or sum(self._kept.values()) > self._max_kept_bytes
            if not full and self._answers[key].completed_at >= oldest:
                return
            del self._kept[key], self._answers[key]
