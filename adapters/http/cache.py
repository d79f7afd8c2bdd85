"""The prefix cache's endpoints: what is durable, and why a request was as fast as it was."""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qs

import anyio.to_thread
from msgspec import Struct, field
from msgspec.structs import asdict, astuple

from mlxbun.adapters.http.answers import Answer, json_answer
from mlxbun.adapters.http.request import Request
from mlxbun.application.durability import FlushReport
from mlxbun.application.explain import KEPT_REQUESTS, Explanation, Reason
from mlxbun.application.outlines import Comparison
from mlxbun.application.service import Service
from mlxbun.domain.divergence import Field, How
from mlxbun.domain.refusal import Refused

FLUSH_SECONDS = 60.0

SsdTier = Literal["on", "off", "unusable"]


class FlushAnswer(FlushReport, frozen=True, kw_only=True):
    """Counts are since start.  Without an SSD tier all are 0, and nothing is missing.

    `ssd_tier` "unusable" is one that was asked for and is not in use, of which nothing can be
    durable; `last_error` says why.  The names in camelCase are mlx-bun's own for the same counts.
    """

    ssd_tier: SsdTier
    flushed: int = field(name="flushedSnapshots")
    missing: int = field(name="missingSnapshots")
    pending: int = field(name="pendingSnapshots")
    pending_spills: int = field(name="pendingSpills")
    pending_spill_bytes: int = field(name="pendingSpillBytes")
    dropped: int = field(name="droppedSpills")
    failed: int = field(name="failedSpills")
    elapsed: float = field(name="elapsedMs")


class ByTier(Struct, frozen=True):
    """Tokens that were not computed, by where their state was."""

    ram: int
    ssd: int


class Waited(Struct, frozen=True):
    """Milliseconds for which a row waited: for another's computation, and for the disk."""

    computing: float
    restoring: float


class Parted(Struct, frozen=True):
    """Where a prompt first parts from an earlier one: numbers and names, nobody's text.

    `index` counts messages, tools for the field "tools".  The difference is `offset` characters
    into the field, or up to `within` later; null where the field is no text.
    """

    equal_tokens: int
    field: Field
    how: How
    index: int | None
    offset: int | None
    within: int | None


class RowReport(Struct, frozen=True):
    """What became of one row's prompt; a request has several with n or several prompts.

    `diverged_at` is how many tokens from the start equal what is kept, to the block; null where
    nothing that could be reused was missing.  `evicted` says that what is missing was kept once.
    `compared_with` is the answer of the nearest earlier request, and `first_divergence` where
    this prompt parts from that one's; null where it does not.  `published_tokens` of those
    computed are kept now.
    `saved_ms_estimate` goes by the rate at which prompts were read so far; null before any was.
    """

    reason: Reason
    prompt_tokens: int
    reused_tokens: ByTier
    computed_tokens: int
    published_tokens: int
    diverged_at: int | None
    compared_with: str | None
    first_divergence: Parted | None
    evicted: bool
    waited_ms: Waited
    saved_ms_estimate: float | None


class CacheReport(Struct, frozen=True):
    """`request` is the answer's id."""

    request: str
    rows: list[RowReport]


class Cache:
    """Answers for the prefix cache of `service`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def flush(self, request: Request) -> Answer:
        """Wait until the SSD has what it is to have: 200 if it has all of it, else 503."""
        report = await anyio.to_thread.run_sync(self._service.flush, FLUSH_SECONDS)
        answer = _flushed(report, self._missing_tier() if report is None else None)
        return json_answer(answer, status=200 if answer.durable else 503)

    def _missing_tier(self) -> str | None:
        """Return why there is no SSD tier although there is to be one; None if there is not."""
        settings = {line.name: line for line in self._service.settings()}
        asked = settings.get("ssd_cache")
        if asked is None or asked.value is None:
            return None
        tier = settings.get("ssd_tier")
        return tier.note if tier is not None else "the model is not loaded yet"

    async def explain(self, request: Request) -> Answer:
        """Say what was reused for one of the last requests.  404 for an id that is not known."""
        wanted = parse_qs(request.head.query).get("request", [""])[0]
        if not wanted:
            message = "request is missing: /v1/cache/explain?request=ID, the id of an answer"
            raise Refused("invalid_value", message, "request")
        found = self._service.explanations.find(wanted)
        if found is None:
            message = f"no request {wanted} is known; the last {KEPT_REQUESTS} are"
            raise Refused("not_found", message, "request")
        compare = self._service.outlines.compare
        rows = [_report(one, compare(wanted, i, len(found))) for i, one in enumerate(found)]
        return json_answer(CacheReport(wanted, rows))


def _flushed(report: FlushReport | None, why_missing: str | None) -> FlushAnswer:
    tier: SsdTier = "on"
    if report is None:
        report = FlushReport(durable=why_missing is None, last_error=why_missing)
        tier = "off" if why_missing is None else "unusable"
    return FlushAnswer(
        **asdict(report),
        ssd_tier=tier,
        flushed=report.flushed_blocks,
        missing=report.missing_blocks,
        pending=report.pending_blocks,
        pending_spills=report.pending_blocks,
        pending_spill_bytes=report.pending_bytes,
        dropped=report.dropped_blocks,
        failed=report.failed_blocks - report.dropped_blocks,
        elapsed=report.elapsed_ms,
    )


def _report(one: Explanation, compared: Comparison | None) -> RowReport:
    saved, parted = one.saved_seconds, compared.divergence if compared is not None else None
    return RowReport(
        one.reason,
        one.num_prompt_tokens,
        ByTier(one.num_ram_tokens, one.num_ssd_tokens),
        one.num_computed_tokens,
        one.num_published_tokens,
        one.diverged_at,
        compared.answer_id if compared is not None else None,
        Parted(*astuple(parted)) if parted is not None else None,
        one.was_evicted,
        Waited(*(_ms(one.waited_seconds.get(of, 0.0)) for of in ("computing", "restoring"))),
        None if saved is None else _ms(saved),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
