"""What /stats and /health say is a fold of events."""

from __future__ import annotations

import pytest

from mlxbun.application.stats import (
    STALL_SECONDS,
    EngineStats,
    PromptCacheStats,
    StatsProjection,
    health,
)
from mlxbun.domain import residency, sampling
from mlxbun.domain.blocks import BLOCK, BlockInfo, BlockKey
from mlxbun.domain.journal import Event, EventBatch
from mlxbun.domain.memory import MemoryMeasured, MemoryUse, measured
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.scheduling import (
    DrainStarted,
    PrefixReused,
    RequestAdmitted,
    RequestCancelled,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRejected,
    StepCommitted,
)

A, B, C, D = (RequestId(name) for name in "ABCD")


def projected(*events: Event) -> StatsProjection:
    projection = StatsProjection()
    for sequence, event in enumerate(events, start=1):
        projection.apply(EventBatch(sequence, (event,)), now_seconds=float(sequence))
    return projection


def test_counts_are_those_of_the_events() -> None:
    stats = projected(
        *(RequestQueued(request_id, 10, 5) for request_id in (A, B, C, D)),
        RequestRejected(RequestId("E"), "queue_full"),
        *(RequestAdmitted(request_id) for request_id in (A, B, C)),
        StepCommitted(1, 0, 0, 27, 0.5, 0.4),
        StepCommitted(2, 0, 3, 0, 0.1, 0.0, num_wide=1, kv_bytes=4096),
        sampling.TokensCommitted(2, (A, B, C), (TokenId(1), TokenId(2), TokenId(3))),
        RequestFinished(A, "stop"),
        RequestCancelled(B),
        DrainStarted(),
    ).stats
    assert stats == EngineStats(
        active_rows=1,
        waiting_rows=1,
        submitted=4,
        rejected=1,
        finished=1,
        cancelled=1,
        steps=2,
        prompt_tokens=40,
        prefilled_tokens=27,
        generated_tokens=3,
        prefill_seconds=0.4,
        wide_nucleus_rows=1,
        kv_bytes=4096,
        draining=True,
        last_sequence=14,
    )


def test_counts_of_the_prefix_cache_are_those_of_its_events() -> None:
    keys = tuple(BlockKey(f"{number:064x}") for number in range(3))
    one, two, three = (
        BlockInfo(k, None, "block", i * BLOCK, BLOCK, 100) for i, k in enumerate(keys)
    )
    stats = projected(
        residency.PrefixMissed(A),
        residency.BlocksPublished((one, two), 1.0),
        residency.PrefixAwaited(B, keys[0], "computing"),
        residency.PrefixLent(B, keys[:2], 2 * BLOCK),
        PrefixReused(B, 2 * BLOCK),
        residency.WriteQueued(keys[:2]),
        residency.BlocksWritten(keys[:1]),
        residency.BlocksNotWritten(keys[1:2], "the disk is full"),
        residency.BlocksEvicted(keys[:2], 1),
        residency.BlocksRestored((one, three)),
    ).stats
    assert stats.prompt_cache == PromptCacheStats(
        hits=1,
        misses=1,
        reused_tokens=2 * BLOCK,
        awaited=1,
        entries=2,
        bytes=200,
        published=2,
        evicted=2,
        lost=1,
        restored=2,
        written=1,
        write_failures=1,
    )


def test_blocks_that_came_too_large_and_left_at_once_leave_nothing() -> None:
    block = BlockInfo(BlockKey("1" * 64), None, "boundary", 0, 300, 10**9)
    published = residency.BlocksPublished((block,), 1.0)
    cache = projected(published, residency.BlocksEvicted((block.key,), 1)).stats.prompt_cache
    assert (cache.entries, cache.bytes, cache.evicted, cache.lost) == (0, 0, 1, 1)


def test_what_left_memory_is_counted_by_its_cause_and_sessions_as_they_live() -> None:
    keys = tuple(BlockKey(f"{number:064x}") for number in range(4))
    blocks = tuple(BlockInfo(key, None, "block", 0, BLOCK, 100) for key in keys)
    mine, yours = residency.SessionId("1"), residency.SessionId("2")
    cache = projected(
        residency.SessionHeld(mine, 0, keys, 10.0),
        residency.SessionHeld(yours, 0, keys[:1], 11.0),
        residency.SessionHeld(mine, 4, (), 12.0),
        residency.BlocksPublished(blocks, 1.0),
        residency.BlocksEvicted(keys[:1], 0, "idle"),
        residency.PressureRelieved(150, 200),
        residency.BlocksEvicted(keys[1:3], 2, "pressure"),
        residency.BlocksEvicted(keys[3:], 1),
        residency.SessionReleased(yours, "expired"),
    ).stats.prompt_cache
    assert (cache.evicted, cache.demoted_idle, cache.demoted_pressure, cache.lost) == (4, 1, 2, 3)
    assert (cache.sessions, cache.entries, cache.bytes) == (1, 0, 0)


def test_memory_is_what_was_measured_last() -> None:
    first = measured(MemoryUse(1000, weights_bytes=600), prefix_cache_bytes=100)
    last = measured(MemoryUse(900, weights_bytes=600), prefix_cache_bytes=50)
    stats = projected(first, last).stats
    assert stats.memory["active_bytes"] == 900 and stats.memory["other_bytes"] == 250
    assert set(stats.memory) == set(MemoryMeasured.__struct_fields__)


def test_without_rows_there_is_no_kv_state() -> None:
    queued, admitted = RequestQueued(A, 10, 5), RequestAdmitted(A)
    step = StepCommitted(1, 1, 0, 0, 0.1, 0.0, kv_bytes=4096)
    assert projected(queued, admitted, step).stats.kv_bytes == 4096
    assert projected(queued, admitted, step, RequestFailed(A, "broken")).stats.kv_bytes == 0


@pytest.mark.parametrize(
    ("ready", "failed", "seconds_later", "says"),
    [
        (False, False, 0, "loading"),
        (False, True, 0, "failed"),
        (True, False, 1, "ok"),
        (True, False, STALL_SECONDS + 1, "stalled"),
    ],
)
def test_health_is_honest_while_there_is_work(
    ready: bool, failed: bool, seconds_later: float, says: str
) -> None:
    busy = projected(RequestQueued(A, 10, 5))
    assert health(busy, ready=ready, failed=failed, now_seconds=1 + seconds_later) == says


def test_an_idle_server_is_well_however_long_nothing_happened() -> None:
    idle = projected(RequestQueued(A, 10, 5), RequestCancelled(A))
    assert health(idle, ready=True, failed=False, now_seconds=1e6) == "ok"
