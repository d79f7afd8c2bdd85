"""The step executor: plans in, tokens out.  Implements `domain.scheduling.Compute` on MLX.

Everything here runs on the engine's thread.  A step is built and submitted without reading
anything; reading a step enqueues nothing, so it never waits behind the one after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx
import numpy as np
from msgspec import Struct

from mlxbun.adapters.mlx_compute.row_states import RowStates
from mlxbun.adapters.mlx_compute.sampler import Drawn, Sampler, SamplingRow, read_logprobs
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import RowFailure, StepPlan, StepResult

CLEAR_CACHE_EVERY = 256  # steps

_submit: Callable[..., None] = mx.async_eval


class _Prompt(Struct):
    """A row that has not started: its prompt, and how much of it was prefilled."""

    ids: mx.array  # [1, n]
    row: SamplingRow
    position: int = 0


class _InFlight(Struct, frozen=True):
    step: int
    rows: tuple[SamplingRow, ...]
    drawn: Drawn | None


class MlxCompute:
    """The model with its rows.  See `domain.scheduling.Compute` for the contract."""

    def __init__(self, states: RowStates, sampler: Sampler) -> None:
        self._states = states
        self._sampler = sampler
        self._prompts: dict[RequestId, _Prompt] = {}
        self._batch: list[SamplingRow] = []  # in the order of `_states.batch`
        self._closed: set[RequestId] = set()
        self._tokens: mx.array | None = None  # [rows], drawn last, perhaps not computed yet
        self._in_flight: deque[_InFlight] = deque()
        self._prefilling: list[tuple[RequestId, list[mx.array]]] = []
        self._stale = False  # the sampler must hear of a change in a row
        self._kv_bytes = 0

    @property
    def max_rows(self) -> int | None:
        return None if self._states.capabilities.batchable else 1

    def open_row(
        self, request_id: RequestId, prompt_ids: tuple[TokenId, ...], params: SamplingParams
    ) -> None:
        ids = mx.array(np.array(prompt_ids, dtype=np.int32)[None])
        self._prompts[request_id] = _Prompt(ids, SamplingRow(request_id, params, prompt_ids))
        self._states.open(request_id)

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        drawn = None
        if plan.decode or plan.start:
            drawn = self._forward(plan)
            _submit(*drawn.arrays.values())
        elif self._batch:
            self._leave(())
        self._in_flight.append(_InFlight(plan.step, tuple(self._batch), drawn))
        if plan.start or plan.prefill or plan.step % 64 == 0:
            self._kv_bytes = self._states.num_bytes()
        if plan.step % CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()
        return self._prefill(plan.prefill)

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        failures = []
        for request_id, arrays in self._prefilling:
            try:
                mx.eval(arrays)
            except Exception as error:  # the row's own: its neighbours go on
                failures.append(self._failed(request_id, error))
        self._prefilling.clear()
        return tuple(failures)

    def collect(self) -> StepResult:
        done = self._in_flight.popleft()
        drawn = done.drawn
        if drawn is None:
            return StepResult(done.step, (), (), kv_bytes=self._kv_bytes)
        tokens = cast(list[TokenId], drawn.tokens.tolist())
        num_wide = 0
        if drawn.wide is not None:
            flags = cast(list[bool], drawn.wide.tolist())
            for row, wide in zip(done.rows, flags, strict=True):
                if wide:
                    num_wide += 1
                    row.wide = self._stale = True
        return StepResult(
            done.step,
            tuple(row.request_id for row in done.rows),
            tuple(tokens),
            read_logprobs(drawn, [row.params for row in done.rows]),
            num_wide,
            self._kv_bytes,
        )

    def close_row(self, request_id: RequestId) -> None:
        if self._prompts.pop(request_id, None) is not None:
            self._states.drop(request_id)
            return
        if all(row.request_id != request_id for row in self._batch):
            return
        self._closed.add(request_id)
        if all(row.request_id in self._closed for row in self._batch):
            self._leave(())

    def reset(self) -> None:
        self._states.clear()
        self._prompts.clear()
        self._batch, self._tokens = [], None
        self._closed.clear()
        self._in_flight.clear()
        self._prefilling.clear()
        self._kv_bytes = 0
        mx.clear_cache()

    # -- one step --

    def _forward(self, plan: StepPlan) -> Drawn:
        kept = self._leave(plan.decode)
        logits: list[mx.array] = []
        if self._batch:
            assert self._tokens is not None
            logits.append(self._states.decode(self._tokens))
        if plan.start:
            prompts = [self._prompts.pop(request_id) for request_id in plan.start]
            last = mx.concatenate([prompt.ids[0, -1:] for prompt in prompts])
            logits.append(self._states.start(plan.start, last))
            self._batch = [*self._batch, *(prompt.row for prompt in prompts)]
        if plan.start or self._stale or kept is not None:
            num_old = len(self._batch) - len(plan.start)
            self._sampler.compose(self._batch, kept if kept is not None else range(num_old))
            self._stale = False
        drawn = self._sampler.draw(logits[0] if len(logits) == 1 else mx.concatenate(logits))
        self._tokens = drawn.tokens
        return drawn

    def _leave(self, decode: Sequence[RequestId]) -> list[int] | None:
        """Let rows go that decode no more; return the places of those that stay, or None if all."""
        if len(decode) == len(self._batch):
            return None
        stay = set(decode)
        kept = [i for i, row in enumerate(self._batch) if row.request_id in stay]
        self._closed.difference_update(row.request_id for row in self._batch)
        self._states.keep(kept)
        self._batch = [self._batch[i] for i in kept]
        if self._tokens is not None:
            self._tokens = self._tokens[mx.array(kept)] if kept else None
        self._kv_bytes = self._states.num_bytes()
        return kept

    def _prefill(self, chunks: Sequence[tuple[RequestId, int]]) -> tuple[RowFailure, ...]:
        failures = []
        for request_id, num_tokens in chunks:
            prompt = self._prompts[request_id]
            end = prompt.position + num_tokens
            try:
                arrays = self._states.extend(request_id, prompt.ids[:, prompt.position : end])
                _submit(*arrays)
            except Exception as error:  # the row's own: its neighbours go on
                failures.append(self._failed(request_id, error))
                continue
            prompt.position = end
            self._prefilling.append((request_id, arrays))
        return tuple(failures)

    def _failed(self, request_id: RequestId, error: Exception) -> RowFailure:
        self.close_row(request_id)
        return RowFailure(request_id, f"{type(error).__name__}: {error}")
