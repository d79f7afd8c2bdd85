"""Prompts: the rows that have not started, and the reading of their prompts, chunk by chunk.

Chunks of several prompts may share a forward.  One that breaks is read again row by row, so that
only who is to blame fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np
from msgspec import Struct

from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.prompt_groups import group_prompts
from mlxbun.adapters.mlx_compute.row_states import RowStates
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.domain.sampling import RequestId
from mlxbun.domain.steps import RowFailure

log = logging.getLogger("mlxbun.compute")

# Up to how many tokens a prompt shares a forward; docs/benchmarks has what that brings.
LONGEST_SHARED_ON_CPU = 128
LONGEST_SHARED = 512

_submit: Callable[..., None] = mx.async_eval


class Prompt(Struct):
    """A row that has not started: its prompt, and how much of it was prefilled."""

    ids: mx.array  # [1, n]
    row: SamplingRow
    position: int = 0


class _Chunk(Struct, frozen=True):
    """Tokens of one prompt, from `start` to before `end`."""

    request_id: RequestId
    start: int
    end: int


class Prompts:
    """Reads prompts into their rows of `states`."""

    def __init__(self, states: RowStates) -> None:
        self._states = states
        # Tokens of the longest prompt that shares a forward; 0: each is read alone.
        self.longest_shared = 0
        if states.shares_prompts():
            self.longest_shared = LONGEST_SHARED_ON_CPU if on_cpu() else LONGEST_SHARED
        self._prompts: dict[RequestId, Prompt] = {}
        self._reading: deque[tuple[list[_Chunk], list[mx.array]]] = deque()

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._prompts

    def open(self, row: SamplingRow, num_cached: int) -> None:
        """Take a row whose first `num_cached` tokens need not be read."""
        ids = mx.array(np.array(row.prompt_ids, dtype=np.int32)[None])
        self._prompts[row.request_id] = Prompt(ids, row, num_cached)

    def take(self, request_id: RequestId) -> Prompt:
        """Give up a row that starts."""
        return self._prompts.pop(request_id)

    def position(self, request_id: RequestId) -> int | None:
        """Return how many tokens of a prompt were read; None if it is not here."""
        prompt = self._prompts.get(request_id)
        return prompt.position if prompt is not None else None

    def drop(self, request_id: RequestId) -> bool:
        """Let go of a row that will not start; return whether it was here."""
        if self._prompts.pop(request_id, None) is None:
            return False
        self._states.drop(request_id)
        return True

    def clear(self) -> None:
        self._prompts.clear()
        self._reading.clear()

    def dispatch(self, plan: Sequence[tuple[RequestId, int]]) -> tuple[RowFailure, ...]:
        """Submit chunks of so many tokens, waiting for nothing; return the rows that broke."""
        chunks: list[_Chunk] = []
        for request_id, num_tokens in plan:
            prompt = self._prompts[request_id]
            chunks.append(_Chunk(request_id, prompt.position, prompt.position + num_tokens))
            prompt.position += num_tokens
        groups = group_prompts([(c.start, c.end - c.start) for c in chunks], self.longest_shared)
        failures: list[RowFailure] = []
        for group in groups:
            failures += self._read([chunks[place] for place in group])
        return tuple(failures)

    def wait(self) -> tuple[RowFailure, ...]:
        """Wait until what was submitted is read; return the rows that broke."""
        failures: list[RowFailure] = []
        while self._reading:
            chunks, arrays = self._reading.popleft()
            try:
                mx.eval(arrays)
            except Exception as error:  # these rows' own: their neighbours go on
                failures += self._broken(chunks, error)
        return tuple(failures)

    def _read(self, chunks: list[_Chunk]) -> list[RowFailure]:
        """Submit one forward over `chunks`; return the rows that broke."""
        try:
            arrays = self._extend(chunks)
            _submit(*arrays)
        except Exception as error:  # these rows' own: their neighbours go on
            return self._broken(chunks, error)
        self._reading.append((chunks, arrays))
        return []

    def _extend(self, chunks: Sequence[_Chunk]) -> list[mx.array]:
        if len(chunks) == 1:
            chunk = chunks[0]
            ids = self._prompts[chunk.request_id].ids[:, chunk.start : chunk.end]
            return self._states.extend(chunk.request_id, ids)
        lengths = [chunk.end for chunk in chunks]
        padded = np.zeros((len(chunks), max(lengths)), dtype=np.int32)
        for line, chunk in zip(padded, chunks, strict=True):
            line[: chunk.end] = self._prompts[chunk.request_id].row.prompt_ids[: chunk.end]
        rows = [chunk.request_id for chunk in chunks]
        return self._states.extend_together(rows, mx.array(padded), lengths)

    def _broken(self, chunks: Sequence[_Chunk], error: Exception) -> list[RowFailure]:
        """Read rows of a broken forward one by one, so that only who is to blame fails."""
        if len(chunks) == 1:
            return [self._failed(chunks[0].request_id, error)]
        log.warning(
            "a forward over %d prompts broke; each is read alone", len(chunks), exc_info=error
        )
        failures: list[RowFailure] = []
        for chunk in chunks:
            if chunk.request_id in self._prompts:
                self._states.open(chunk.request_id)  # empty, as it was
                failures += self._read([chunk])
        return failures

    def _failed(self, request_id: RequestId, error: Exception) -> RowFailure:
        self.drop(request_id)
        return RowFailure(request_id, f"{type(error).__name__}: {error}")
