"""The step executor: plans in, tokens out.  Implements `domain.steps.Compute` on MLX.

Everything here runs on the engine's thread.  A step is built and submitted without reading
anything; reading a step enqueues nothing, so it never waits behind the one after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx
import msgspec
from msgspec import Struct

from mlxbun.adapters.mlx_compute.cut_layers import cut_layers
from mlxbun.adapters.mlx_compute.drawn import Drawn, read_logprobs
from mlxbun.adapters.mlx_compute.kept_prefixes import KeptPrefixes
from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.masked_rows import advance, any_masked
from mlxbun.adapters.mlx_compute.memory import working_set_bytes
from mlxbun.adapters.mlx_compute.prompts import Prompts
from mlxbun.adapters.mlx_compute.row_masks import RowMask
from mlxbun.adapters.mlx_compute.row_states import RowStates
from mlxbun.adapters.mlx_compute.sampler import Sampler
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow
from mlxbun.domain.blocks import BlockInfo, BlockKey, Cuts, Tensor, spans
from mlxbun.domain.constraint import Matcher
from mlxbun.domain.memory import MemoryUse
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import RowFailure, StepPlan, StepResult

CLEAR_CACHE_EVERY = 256  # steps

_submit: Callable[..., None] = mx.async_eval


class _InFlight(Struct):
    """A step.  Where rows have masks, `logits` wait for the tokens of the step before it."""

    step: int
    slots: tuple[SamplingRow | None, ...]
    drawn: Drawn | None = None
    logits: mx.array | None = None


class MlxCompute:
    """The model with its rows.  See `domain.steps.Compute` for the contract."""

    def __init__(self, states: RowStates, sampler: Sampler, weights_bytes: int = 0) -> None:
        self._states = states
        self._weights_bytes = weights_bytes
        self._working_set_bytes = working_set_bytes()
        self._sampler = sampler
        self._kept = KeptPrefixes()
        self.prompts = Prompts(states)
        self._batch: list[SamplingRow | None] = []  # by slot, as `_states.batch`
        self._closed: set[RequestId] = set()
        self._tokens: mx.array | None = None  # [rows], drawn last, perhaps not computed yet
        self._in_flight: deque[_InFlight] = deque()
        self._stale = False  # the sampler must hear of a change in a row
        self._kv_bytes = 0

    @property
    def max_rows(self) -> int | None:
        return None if self._states.capabilities.batchable else 1

    @property
    def runs_apart(self) -> bool:
        return not on_cpu()

    @property
    def path(self) -> str:
        """What a step runs, for reports: the layout, and compiled or plain."""
        capabilities = self._states.capabilities
        return f"{capabilities.name}, {'compiled' if capabilities.compiled else 'plain'}"

    @property
    def cuts(self) -> Cuts:
        return self._states.capabilities.cuts

    @property
    def mixed(self) -> bool:
        return self._states.capabilities.mixed

    def open_row(
        self,
        request_id: RequestId,
        prompt_ids: tuple[TokenId, ...],
        params: SamplingParams,
        prefix: tuple[BlockKey, ...] = (),
        num_cached: int = 0,
        num_drawn: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        row = SamplingRow(request_id, params, prompt_ids, num_drawn, num_drawn)
        if matcher is not None:
            row.mask = RowMask(matcher, self._sampler.vocab_size)
        self.prompts.open(row, num_cached)
        self._states.open(request_id)
        if not prefix:
            return
        fresh = self._states.caches(request_id)
        if self.cuts == "block":
            self._kept.lend_blocks(prefix, fresh)
        else:
            self._states.open(request_id, self._kept.lend_boundary(prefix, fresh, num_cached))

    def keep(self, request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        here = request_id in self.prompts or request_id in self._states.batch
        if not blocks or not here:
            return ()
        if self.cuts == "boundary":
            return self._keep_boundary(request_id, blocks)
        caches = self._states.caches(request_id)
        done = int(caches[0].offset)
        there = [block for block in blocks if block.start + block.num_tokens <= done]
        if not there:
            return ()
        whole = [(block.key, block.start) for block in there if block.kind == "block"]
        num_bytes = self._kept.keep_blocks(caches, whole) if whole else 0
        kept = [msgspec.structs.replace(b, num_bytes=num_bytes) for b in there[: len(whole)]]
        for tail in there[len(whole) :]:
            size = self._kept.keep_part(caches, tail.key, tail.start, tail.num_tokens)
            kept.append(msgspec.structs.replace(tail, num_bytes=size))
        return tuple(kept)

    def _keep_boundary(
        self, request_id: RequestId, blocks: Sequence[BlockInfo]
    ) -> tuple[BlockInfo, ...]:
        *before, last = blocks
        end = last.start + last.num_tokens
        if self._num_processed(request_id) != end:
            return ()  # this state is past it, and cannot be taken back
        caches = self._states.caches(request_id)
        parts = [(block.key, block.start) for block in before]
        sizes = self._kept.keep_boundary(caches, last.key, last.start, end, parts)
        return tuple(
            msgspec.structs.replace(block, num_bytes=num_bytes)
            for block, num_bytes in zip(blocks, sizes, strict=True)
        )

    def snapshot(
        self, request_id: RequestId, start: int, keys: Iterator[BlockKey]
    ) -> tuple[BlockInfo, ...] | None:
        processed = self._num_processed(request_id)
        if processed is None or request_id in self.prompts:
            return None
        caches, whole = self._states.caches(request_id), self.cuts == "boundary"
        cut = cut_layers(caches, processed) if whole else caches
        made: list[BlockInfo] = []
        try:
            for first, end in spans(start, processed) if self.mixed or not whole else ():
                key = next(keys)
                num_bytes = self._kept.keep_part(cut, key, first, end - first)
                made.append(BlockInfo(key, None, "block", first, end - first, num_bytes))
            if whole:
                key, first = next(keys), processed if self.mixed else 0
                [num_bytes] = self._kept.keep_boundary(caches, key, first, processed)
                made.append(BlockInfo(key, None, "boundary", first, processed - first, num_bytes))
        except BaseException:
            self._kept.forget([part.key for part in made])
            raise
        return tuple(made)

    def _num_processed(self, request_id: RequestId) -> int | None:
        """Return how many tokens a row's state is of; None if it is not here."""
        position = self.prompts.position(request_id)
        if position is not None:
            return position
        running = (row for row in self._batch if row is not None and row.request_id == request_id)
        row = next(running, None)
        # What was drawn last was not fed back.
        return row.num_seen - 1 if row is not None and request_id not in self._closed else None

    def forget(self, keys: Sequence[BlockKey]) -> None:
        self._kept.forget(keys)

    def tensors(self, key: BlockKey) -> Sequence[Tensor]:
        return self._kept.tensors(key)

    def adopt(self, block: BlockInfo, tensors: Sequence[Tensor]) -> BlockInfo:
        return msgspec.structs.replace(block, num_bytes=self._kept.adopt(block.key, tensors))

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        step = _InFlight(plan.step, ())
        if plan.decode or plan.start:
            logits = self._forward(plan)
            step.slots = tuple(self._batch)
            if self._waits_for_tokens(plan):
                _submit(logits)
                step.logits = logits  # drawn from when the tokens before it are read
            else:
                self._draw(step, logits)
        self._in_flight.append(step)
        if plan.start or plan.prefill or plan.step % 64 == 0:
            self._kv_bytes = self._states.num_bytes()
        if plan.step % CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()
        return self.prompts.dispatch(plan.prefill)

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        return self.prompts.wait()

    def collect(self) -> StepResult:
        done = self._in_flight.popleft()
        drawn = done.drawn
        if drawn is None:
            return StepResult(done.step, (), (), kv_bytes=self._kv_bytes)
        tokens = cast(list[TokenId], drawn.tokens.tolist())
        complete, failures = advance(done.slots, tokens, self._closed)
        for step in self._in_flight:
            if step.logits is not None:
                self._draw(step, step.logits)
        num_wide = 0
        if drawn.wide is not None:
            num_wide = self._widen(done.slots, cast(list[bool], drawn.wide.tolist()))
        logprobs = read_logprobs(drawn, done.slots)
        taken = [i for i, row in enumerate(done.slots) if row is not None]
        return StepResult(
            done.step,
            tuple(row.request_id for row in done.slots if row is not None),
            tuple([tokens[i] for i in taken]),
            tuple([logprobs[i] for i in taken]) if logprobs else (),
            num_wide,
            self._kv_bytes,
            complete,
            failures,
        )

    def close_row(self, request_id: RequestId) -> None:
        if self.prompts.drop(request_id):
            return
        rows = [row.request_id for row in self._batch if row is not None]
        if request_id in rows:
            self._closed.add(request_id)
            if self._closed.issuperset(rows):
                self._release_batch()

    def memory(self) -> MemoryUse:
        return MemoryUse(
            active_bytes=mx.get_active_memory(),
            cached_bytes=mx.get_cache_memory(),
            peak_bytes=mx.get_peak_memory(),
            working_set_bytes=self._working_set_bytes,
            weights_bytes=self._weights_bytes,
            live_kv_bytes=self._states.num_bytes(),
        )

    def reset(self) -> None:
        self._states.clear()
        self.prompts.clear()
        self._batch, self._tokens = [], None
        self._closed.clear()
        self._in_flight.clear()
        self._kv_bytes = 0
        mx.clear_cache()

    # -- one step --

    def _forward(self, plan: StepPlan) -> mx.array:
        """Submit nothing yet; return the logits of the batch, whose slots are arranged."""
        prompts = [self.prompts.take(request_id) for request_id in plan.start]
        last = mx.concatenate([p.ids[0, -1:] for p in prompts]) if prompts else None
        batched = self._states.forward(plan.decode, self._tokens, plan.start, last)
        if batched.moved is not None:
            self._arrange(batched.moved, {p.row.request_id: p.row for p in prompts})
        elif self._stale:
            self._sampler.compose(self._batch, range(len(self._batch)))
        self._stale = False
        self._begin([prompt.row for prompt in prompts], batched.logits)
        return batched.logits

    def _draw(self, step: _InFlight, logits: mx.array) -> None:
        step.drawn, step.logits = self._sampler.draw(logits), None
        self._tokens = step.drawn.tokens
        _submit(*step.drawn.arrays.values())

    # -- rows that keep to a grammar: the host fills masks while the device computes logits --

    def _begin(self, started: Sequence[SamplingRow], logits: mx.array) -> None:
        masks = [row.mask for row in started if row.mask is not None]
        if masks:
            _submit(logits)
        for mask in masks:
            mask.begin()

    def _waits_for_tokens(self, plan: StepPlan) -> bool:
        """Whether a row's mask depends on a token that is not read yet."""
        unread = any(step.drawn is not None for step in self._in_flight)
        return unread and any_masked(self._batch, set(plan.decode))

    def _arrange(self, moved: Sequence[int], started: dict[RequestId, SamplingRow]) -> None:
        """Follow the slots: rows left, came, or changed places."""
        rows = started | {row.request_id: row for row in self._batch if row is not None}
        self._batch = [
            rows[request_id] if request_id is not None else None
            for request_id in self._states.batch
        ]
        self._closed.intersection_update(self._states.batch)
        self._sampler.compose(self._batch, moved)

    def _release_batch(self) -> None:
        self._states.keep_none()
        self._batch, self._tokens = [], None
        self._closed.clear()
        self._kv_bytes = self._states.num_bytes()

    def _widen(self, slots: Sequence[SamplingRow | None], wide: Sequence[bool]) -> int:
        """Note which rows need more candidates from now on; return how many."""
        found = [row for row, flag in zip(slots, wide, strict=True) if flag and row is not None]
        for row in found:
            row.num_wide += 1
            self._stale = True
        return len(found)
