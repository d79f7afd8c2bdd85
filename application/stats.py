"""Projections of the event stream: what /stats and /health say.

Every number here is a fold of events; nothing else counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec
from msgspec import Struct, field

from mlxbun.domain import (
    embedding,
    generation_checkpoint,
    memory,
    residency,
    sampling,
    scheduling,
)
from mlxbun.domain.blocks import BlockInfo, BlockKey
from mlxbun.domain.journal import Event, EventBatch


class PromptCacheStats(Struct):
    """The prefix cache.  Hits and misses are of requests; sizes are of now, tokens are totals.

    `evicted` counts all that left RAM, `demoted_...` and `lost` some of it.
    """

    hits: int = 0
    misses: int = 0
    reused_tokens: int = 0
    awaited: int = 0
    entries: int = 0
    bytes: int = 0
    published: int = 0
    evicted: int = 0
    lost: int = 0
    restored: int = 0
    demoted_idle: int = 0
    demoted_pressure: int = 0
    sessions: int = 0
    written: int = 0
    write_failures: int = 0


class GenerationCheckpointStats(Struct):
    """Checkpoints of answers, and the answers that went on from one with how many tokens."""

    saved: int = 0
    not_saved: int = 0
    resumed: int = 0
    replayed_tokens: int = 0
    bytes_written: int = 0


class EmbeddingStats(Struct):
    """Texts that became vectors, the tokens read for them, and the seconds that took."""

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0


class EngineStats(Struct):
    """Counts since start.  Rows and waiters are of now; tokens and requests are totals."""

    active_rows: int = 0
    waiting_rows: int = 0
    submitted: int = 0
    rejected: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    wide_nucleus_rows: int = 0
    kv_bytes: int = 0
    draining: bool = False
    last_sequence: int = 0
    prompt_cache: PromptCacheStats = field(default_factory=PromptCacheStats)
    generation_checkpoints: GenerationCheckpointStats = field(
        default_factory=GenerationCheckpointStats
    )
    embeddings: EmbeddingStats = field(default_factory=EmbeddingStats)
    memory: dict[str, int] = field(default_factory=dict[str, int])


class StatsProjection:
    """Folds batches into `EngineStats`; called on the event loop, once a step."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self.last_progress_seconds = 0.0
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._sessions: set[residency.SessionId] = set()
        self._sizes: dict[BlockKey, int] = {}  # of the blocks in RAM

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._active)

    def apply(self, batch: EventBatch, now_seconds: float) -> None:
        """Fold one batch in.  `now_seconds` is a monotonic clock's."""
        stats = self.stats
        for event in batch.events:
            match event:
                case sampling.TokensCommitted(request_ids=request_ids):
                    stats.generated_tokens += len(request_ids)
                case scheduling.StepCommitted():
                    stats.steps += 1
                    stats.prefilled_tokens += event.num_prefilled_tokens
                    stats.prefill_seconds += event.prefill_seconds
                    stats.wide_nucleus_rows += event.num_wide
                    stats.kv_bytes = event.kv_bytes
                case scheduling.RequestQueued(request_id=request_id, num_prompt_tokens=n):
                    stats.submitted += 1
                    stats.prompt_tokens += n
                    self._waiting.add(request_id)
                case scheduling.RequestAdmitted(request_id=request_id):
                    self._waiting.discard(request_id)
                    self._active.add(request_id)
                case scheduling.RequestFinished(request_id=request_id):
                    stats.finished += 1
                    self._leave(request_id)
                case scheduling.RequestCancelled(request_id=request_id):
                    stats.cancelled += 1
                    self._leave(request_id)
                case scheduling.RequestFailed(request_id=request_id):
                    stats.failed += 1
                    self._leave(request_id)
                case scheduling.RequestRejected():
                    stats.rejected += 1
                case scheduling.DrainStarted():
                    stats.draining = True
                case memory.MemoryMeasured():
                    stats.memory = msgspec.structs.asdict(event)
                case embedding.TextsEmbedded():
                    stats.embeddings.texts += event.num_texts
                    stats.embeddings.tokens += event.num_tokens
                    stats.embeddings.seconds += event.seconds
                case scheduling.PrefixReused(num_tokens=num_tokens):
                    stats.prompt_cache.reused_tokens += num_tokens
                case (
                    generation_checkpoint.CheckpointSaved()
                    | generation_checkpoint.CheckpointNotSaved()
                    | generation_checkpoint.GenerationResumed()
                ):
                    self._apply_to_checkpoints(event)
                case _:
                    self._apply_to_cache(event)
        stats.active_rows, stats.waiting_rows = len(self._active), len(self._waiting)
        if not self._active:
            stats.kv_bytes = 0  # rows hold it, and there are none
        stats.last_sequence = batch.sequence
        self.last_progress_seconds = now_seconds

    def _apply_to_checkpoints(self, event: generation_checkpoint.Event) -> None:
        counts = self.stats.generation_checkpoints
        match event:
            case generation_checkpoint.CheckpointSaved(num_bytes=num_bytes):
                counts.saved += 1
                counts.bytes_written += num_bytes
            case generation_checkpoint.CheckpointNotSaved():
                counts.not_saved += 1
            case generation_checkpoint.GenerationResumed(num_tokens=num_tokens):
                counts.resumed += 1
                counts.replayed_tokens += num_tokens
            case _:
                assert_never(event)

    def _apply_to_cache(self, event: Event) -> None:
        cache = self.stats.prompt_cache
        match event:
            case residency.PrefixLent():
                cache.hits += 1
            case residency.PrefixMissed():
                cache.misses += 1
            case residency.PrefixAwaited():
                cache.awaited += 1
            case residency.BlocksPublished(blocks=blocks):
                cache.published += len(blocks)
                self._enter(blocks)
            case residency.BlocksRestored(blocks=blocks):
                cache.restored += len(blocks)
                self._enter(blocks)
            case residency.SessionHeld(session=session):
                self._sessions.add(session)
            case residency.SessionReleased(session=session):
                self._sessions.discard(session)
            case residency.BlocksEvicted(keys=keys, num_lost=num_lost, cause=cause):
                cache.evicted += len(keys)
                cache.demoted_idle += len(keys) if cause == "idle" else 0
                cache.demoted_pressure += len(keys) if cause == "pressure" else 0
                cache.lost += num_lost
                for key in keys:
                    cache.bytes -= self._sizes.pop(key)
            case residency.BlocksWritten(keys=keys):
                cache.written += len(keys)
            case residency.BlocksNotWritten(keys=keys):
                cache.write_failures += len(keys)
            case _:
                pass  # not counted
        cache.entries, cache.sessions = len(self._sizes), len(self._sessions)

    def _enter(self, blocks: Sequence[BlockInfo]) -> None:
        for block in blocks:
            self._sizes[block.key] = block.num_bytes
            self.stats.prompt_cache.bytes += block.num_bytes

    def _leave(self, request_id: str) -> None:
        self._waiting.discard(request_id)
        self._active.discard(request_id)


Health = Literal["loading", "ok", "stalled", "failed"]
STALL_SECONDS = 60.0


def health(projection: StatsProjection, *, ready: bool, failed: bool, now_seconds: float) -> Health:
    """Return what /health says: ok only if the model is loaded and, with work, moves."""
    if failed:
        return "failed"
    if not ready:
        return "loading"
    idle_seconds = now_seconds - projection.last_progress_seconds
    return "stalled" if projection.busy and idle_seconds > STALL_SECONDS else "ok"
