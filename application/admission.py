"""Admission: who waits because memory is short.

What a prompt's state will take is known by what states took so far.  Whoever does not fit beside
those who run waits until they leave; others may pass, but not for ever.  A request that nothing
runs beside is never held.  All on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from mlxbun.application.deciders import Deciders
from mlxbun.domain import scheduling
from mlxbun.domain.memory import MemoryMeasured, fits
from mlxbun.domain.sampling import RequestId

PATIENCE_SECONDS = 20.0  # for which others may pass who waits for memory
LEAST_TOKENS = 256  # fewer say little of what a token takes


class Admission:
    """Holds requests for want of memory.  `now` is a monotonic clock's seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._bytes_per_token = 0.0  # the least that was seen; 0 is not known
        self._heard: MemoryMeasured | None = None
        self._since: dict[RequestId, float] = {}  # who is held, and since when

    def holds_any(self, state: scheduling.Scheduling) -> bool:
        """Return whether somebody who still waits is held."""
        return any(request_id in state.waiting for request_id in self._since)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._since

    def learn(self, state: scheduling.Scheduling, ledger: MemoryMeasured) -> None:
        """Learn from what the rows that run hold, as `ledger` has just said."""
        if ledger is self._heard:
            return
        self._heard = ledger
        num_tokens = sum(row.num_prefilled + row.num_drawn for row in state.rows.values())
        if num_tokens >= LEAST_TOKENS and ledger.live_kv_bytes:
            ratio = ledger.live_kv_bytes / num_tokens
            self._bytes_per_token = min(self._bytes_per_token or ratio, ratio)

    def keep(self, deciders: Deciders, ledger: MemoryMeasured | None) -> None:
        """Let go of whoever fits now, and hold those who would run next and do not fit."""
        if ledger is None or not self._bytes_per_token:
            return
        state, now = deciders.scheduling, self._now()
        self._since = {r: since for r, since in self._since.items() if r in state.waiting}
        num_free = state.limits.max_rows - len(state.rows)
        promised = sum(row.num_unfilled for row in state.rows.values())
        alone, late = not state.rows, False
        for request_id, row in list(state.waiting.items()):
            mine = request_id in self._since
            if row.held and not mine:
                continue  # it waits for something else
            if num_free <= 0:
                break
            if alone or (not late and self._fits(ledger, row.num_prompt_tokens, promised)):
                if mine:
                    del self._since[request_id]
                    deciders.schedule(scheduling.Release(request_id))
                alone, num_free = False, num_free - 1
                promised += row.num_prompt_tokens
                continue
            if not mine:
                self._since[request_id] = now
                deciders.schedule(scheduling.Hold(request_id))
            late = late or now - self._since[request_id] > PATIENCE_SECONDS

    def _fits(self, ledger: MemoryMeasured, num_tokens: int, num_promised: int) -> bool:
        per_token = self._bytes_per_token
        return fits(ledger, int(per_token * num_tokens), int(per_token * num_promised))
