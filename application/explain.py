"""Explanations: what the prefix cache did for each of the last requests, and why no more.

A fold of events: counts, keys and times.  Nobody's text is kept, and no token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

from mlxbun.domain import residency, sampling, scheduling
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey
from mlxbun.domain.journal import Event, EventBatch
from mlxbun.domain.sampling import RequestId
from mlxbun.domain.steps import StepPlan

KEPT_REQUESTS = 256
LARGE = 64  # tokens: a shorter step's time is mostly not that of its tokens
KEPT_LEAVERS = 1 << 14  # keys of blocks that left, each some hundred bytes

Reason = Literal["hit", "partial", "miss", "too_short", "off", "not_admitted"]
Source = Literal["computing", "restoring"]


class Explanation(Struct, frozen=True):
    """What became of one row's prompt.

    `reason`: "hit" (less than a block was left), "partial" (the beginning was there), "miss"
    (nothing), "too_short" (nothing of a prompt of less than a block), "off" (no cache),
    "not_admitted" (it waits, or ended before its turn).  `num_ssd_tokens` were read from the disk
    after the request came, `num_published_tokens` of the prompt were computed and taken into the
    cache.  `was_evicted` says that what is missing was there and left.  `waited_seconds` is by what
    it waited for, up to the batch that tells of its first step too.
    `saved_seconds` is an estimate by the rate at which prompts were read so far, None before any.
    """

    reason: Reason
    num_prompt_tokens: int
    num_ram_tokens: int
    num_ssd_tokens: int
    num_published_tokens: int
    was_evicted: bool
    waited_seconds: Mapping[Source, float]
    saved_seconds: float | None

    @property
    def num_computed_tokens(self) -> int:
        """Tokens of the prompt that were left to compute; one always is."""
        return self.num_prompt_tokens - self.num_ram_tokens - self.num_ssd_tokens

    @property
    def diverged_at(self) -> int | None:
        """How many tokens from the start equal what is kept, to the block; None where all do."""
        if self.reason in ("miss", "partial"):
            return self.num_ram_tokens + self.num_ssd_tokens
        return None


class _Row(Struct):
    """What is known of a row.  `came` and `since` are a batch's number and a clock's seconds."""

    num_prompt_tokens: int
    came: int
    admitted: bool = False
    asked: bool = False  # the cache, which is off otherwise
    num_reused: int = 0
    num_restored: int = 0
    published_end: int = 0  # tokens from the start, of what was computed and is kept
    was_evicted: bool = False
    source: Source | None = None  # of what it waits for now
    since: float = 0.0
    waited: dict[Source, float] = field(default_factory=dict[Source, float])


class _Rate(Struct):
    """How fast prompts were read."""

    num_tokens: int = 0
    seconds: float = 0.0


class Explanations:
    """Folds batches, on the event loop, into explanations of the last KEPT_REQUESTS requests."""

    def __init__(self) -> None:
        self._requests: dict[str, list[RequestId]] = {}  # oldest first
        self._rows: dict[RequestId, _Row] = {}
        self._restored: dict[BlockKey, tuple[int, int]] = {}  # in RAM: when, and how many tokens
        self._computing: dict[BlockKey, RequestId] = {}
        self._left: dict[BlockKey, None] = {}  # oldest first
        self._large, self._small = _Rate(), _Rate()

    def find(self, answer_id: str) -> list[Explanation] | None:
        """Return what became of each row of the answer `answer_id`; None if it is not known."""
        rows = self._requests.get(answer_id)
        return None if rows is None else [self._explain(self._rows[row]) for row in rows]

    def apply(self, batch: EventBatch, now_seconds: float) -> None:
        """Fold one batch in.  `now_seconds` is a monotonic clock's."""
        for event in batch.events:
            match event:
                case StepPlan() | sampling.TokensCommitted():
                    pass
                case scheduling.StepCommitted(num_prefilled_tokens=num_read):
                    rate = self._large if num_read >= LARGE else self._small
                    rate.num_tokens += num_read
                    rate.seconds += event.prefill_seconds
                case scheduling.RequestQueued(request_id=request_id, num_prompt_tokens=n):
                    self._enter(request_id, _Row(n, batch.sequence))
                case (
                    scheduling.PrefixReused(request_id=request_id)
                    | scheduling.RequestAdmitted(request_id=request_id)
                    | scheduling.RequestCancelled(request_id=request_id)
                    | scheduling.RequestFailed(request_id=request_id)
                    | residency.PrefixLent(request_id=request_id)
                    | residency.PrefixMissed(request_id=request_id)
                    | residency.PrefixAwaited(request_id=request_id)
                    | residency.PrefixComputing(request_id=request_id)
                ):
                    row = self._rows.get(request_id)
                    if row is not None:
                        self._tell(row, event, now_seconds)
                case residency.BlocksPublished(blocks=blocks):
                    self._arrive(blocks)
                    self._publish(blocks)
                case residency.PrefixUserEnded(request_id=request_id):
                    self._computing = {k: r for k, r in self._computing.items() if r != request_id}
                case residency.BlocksRestored(blocks=blocks):
                    self._arrive(blocks)
                    for block in blocks:
                        self._restored[block.key] = (batch.sequence, block.num_tokens)
                case residency.BlocksEvicted(keys=keys) | residency.BlocksForgotten(keys=keys):
                    self._leave(keys)
                case _:
                    pass  # not explained

    def _tell(self, row: _Row, event: Event, now_seconds: float) -> None:
        """Note what happened to a row."""
        match event:
            case residency.PrefixComputing(keys=keys):
                row.was_evicted = keys[0] in self._left
                self._computing |= dict.fromkeys(keys, event.request_id)
                return
            case scheduling.PrefixReused(num_tokens=num_tokens):
                row.num_reused = num_tokens
                return
            case residency.PrefixLent(keys=keys):
                row.asked = True
                restored = [self._restored.get(key, (0, 0)) for key in keys]
                row.num_restored = sum(n for when, n in restored if when >= row.came)
            case residency.PrefixMissed() | residency.PrefixAwaited():
                row.asked = True
            case scheduling.RequestAdmitted():
                row.admitted = True
            case _:
                pass
        if row.source is not None:
            waited = row.waited.get(row.source, 0.0)
            row.waited[row.source] = waited + now_seconds - row.since
        row.source = event.source if isinstance(event, residency.PrefixAwaited) else None
        row.since = now_seconds

    def _enter(self, request_id: RequestId, row: _Row) -> None:
        answer_id = request_id.rpartition("-")[0]
        self._requests.setdefault(answer_id, []).append(request_id)
        self._rows[request_id] = row
        if len(self._requests) > KEPT_REQUESTS:
            oldest = next(iter(self._requests))
            for request_id in self._requests.pop(oldest):
                del self._rows[request_id]

    def _arrive(self, blocks: Iterable[BlockInfo]) -> None:
        for block in blocks:
            self._left.pop(block.key, None)

    def _publish(self, blocks: Iterable[BlockInfo]) -> None:
        for block in blocks:
            row = self._rows.get(self._computing.pop(block.key, RequestId("")))
            if row is not None:
                row.published_end = max(row.published_end, block.start + block.num_tokens)

    def _leave(self, keys: Iterable[BlockKey]) -> None:
        for key in keys:
            self._restored.pop(key, None)
            self._left[key] = None
        while len(self._left) > KEPT_LEAVERS:
            del self._left[next(iter(self._left))]

    def _explain(self, row: _Row) -> Explanation:
        num_ssd = min(row.num_restored, row.num_reused)
        reason = _reason(row)
        rate = self._large if self._large.num_tokens else self._small
        return Explanation(
            reason,
            row.num_prompt_tokens,
            row.num_reused - num_ssd,
            num_ssd,
            max(0, min(row.published_end, row.num_prompt_tokens) - row.num_reused),
            row.was_evicted and reason in ("miss", "partial"),
            dict(row.waited),
            row.num_reused * rate.seconds / rate.num_tokens if rate.num_tokens else None,
        )


def _reason(row: _Row) -> Reason:
    if not row.admitted:
        return "not_admitted"
    if not row.asked:
        return "off"
    if row.num_prompt_tokens - 1 - row.num_reused < BLOCK:  # one token is always computed
        return "hit" if row.num_reused else "too_short"
    return "partial" if row.num_reused else "miss"
