"""Kept state: what rows begin with, and what is kept of them, by whoever keeps anything.

Two do: the prefix cache, for whoever begins with the same tokens, and the checkpoints of answers,
for whoever asks for the same answer again.  A server may have either, both or neither.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from mlxbun.application.checkpoints import Checkpoints
from mlxbun.application.prefixes import Prefixes
from mlxbun.application.requests import RequestSpec
from mlxbun.application.resident_blocks import ResidentBlocks
from mlxbun.application.upkeep import Released
from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.journal import Event
from mlxbun.domain.sampling import RequestId, TokenId
from mlxbun.domain.steps import Compute, TokenLogprobs

log = logging.getLogger("mlxbun.engine")

End = Literal["answered", "cut", "left", "failed"]


class KeptState:
    """Asks both, on the engine's thread; `note` takes the events that they applied."""

    def __init__(
        self,
        compute: Compute,
        prefixes: Prefixes | None,
        checkpoints: Checkpoints | None,
        note: Callable[[Sequence[Event]], None],
    ) -> None:
        self.prefixes = prefixes
        self._compute = compute
        self._checkpoints = checkpoints
        self._note = note

    def accepted(self, spec: RequestSpec) -> None:
        """Note that a request waits or runs."""
        if self._checkpoints is not None:
            self._note(self._checkpoints.accepted(spec))

    def beginning(self, spec: RequestSpec) -> tuple[tuple[BlockKey, ...], int]:
        """Return the copies that a row begins with, and how many tokens they cover."""
        lent = self.prefixes.lent(spec.request_id) if self.prefixes is not None else None
        keys, num_tokens = (lent.keys, lent.num_tokens) if lent is not None else ((), 0)
        if self._checkpoints is None:
            return keys, num_tokens
        return self._checkpoints.beginning(self._compute, spec, keys, num_tokens)

    def begun(self, request_id: RequestId, num_tokens: int) -> None:
        """Note that a row began with `num_tokens` tokens, and has copies of its own now."""
        if self.prefixes is not None:
            self._note(self.prefixes.begun(self._compute, request_id, num_tokens))
        if self._checkpoints is not None:
            self._checkpoints.begun(self._compute, request_id)

    def starting(self, request_ids: Sequence[RequestId]) -> None:
        """Keep the state of prompts whose last token is read next."""
        if self.prefixes is not None and request_ids:
            self._note(self.prefixes.starting(self._compute, request_ids))

    def read(self, rows: Sequence[tuple[RequestId, int]], seconds: float) -> None:
        """Keep what somebody waits for of prompts that were read further."""
        if self.prefixes is not None:
            self._note(self.prefixes.read(self._compute, rows, seconds))

    def drawn(self, request_ids: Sequence[RequestId], token_ids: Sequence[TokenId]) -> None:
        """Learn a step's tokens, before anybody whose last they are has ended."""
        if self.prefixes is not None:
            self.prefixes.drawn(request_ids, token_ids)

    def committed(
        self,
        request_ids: Sequence[RequestId],
        token_ids: Sequence[TokenId],
        logprobs: Sequence[TokenLogprobs | None] = (),
    ) -> None:
        """Keep answers of a step that go on, where it is time to."""
        if self._checkpoints is not None and self.prefixes is not None:
            self._checkpoints.drawn(self._compute, self.prefixes, request_ids, token_ids, logprobs)

    def over(self, request_id: RequestId, end: End) -> None:
        """Keep what a request computed.  Called before its row is closed.

        It was `answered` by itself, `cut` where its text was complete, `left` by its client, or
        `failed`.
        """
        if self.prefixes is not None:
            answered = end == "answered"
            self._note(self.prefixes.over(self._compute, request_id, answered=answered))
        if self._checkpoints is None:
            return
        match end:
            case "answered" | "cut":
                self._checkpoints.finished(self._compute, request_id)
            case "left":
                self._checkpoints.left(self._compute, request_id)
            case "failed":
                self._checkpoints.failed(self._compute, request_id)

    def broke(self, request_ids: Sequence[RequestId]) -> None:
        """Keep nothing of rows whose step broke: it may be wrong."""
        if self.prefixes is not None:
            for request_id in request_ids:
                self._note(self.prefixes.broke(self._compute, request_id))

    def hear(self, report: Callable[[ResidentBlocks, Compute], Sequence[Event]]) -> None:
        """Let the prefix cache hear of its disk."""
        if self.prefixes is None:
            return
        try:
            self._note(report(self.prefixes.blocks, self._compute))
        except Exception as error:  # what a disk says must not end what runs
            log.error("the prefix cache could not take a report", exc_info=error)

    def close_session(self, name: str) -> Released:
        """Let go of what a session holds."""
        if self.prefixes is None:
            return Released()
        released, events = self.prefixes.upkeep.close_session(self._compute, name)
        self._note(events)
        return released

    def idle_seconds(self) -> float | None:
        """Return for how long nothing need be done, None for ever."""
        if self.prefixes is None:
            return None
        waits = self.prefixes.upkeep.idle_seconds(), self.prefixes.patience_seconds()
        return min((seconds for seconds in waits if seconds is not None), default=None)

    def settle(self) -> None:
        """Have the SSD take what it was to have later: the engine stops."""
        if self.prefixes is not None:
            self._note(self.prefixes.upkeep.settle(self._compute))

    def pass_time(self) -> None:
        """Give up what was idle for long enough."""
        if self.prefixes is not None:
            self._note(self.prefixes.upkeep.pass_time(self._compute))
