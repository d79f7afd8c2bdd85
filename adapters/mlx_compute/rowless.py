"""The compute of a server whose model only embeds: there are no rows, and nobody asks for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import mlx.core as mx

from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.memory import working_set_bytes
from mlxbun.domain.blocks import BlockInfo, BlockKey, BlockLost, Cuts, Tensor
from mlxbun.domain.constraint import Matcher
from mlxbun.domain.memory import MemoryUse
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import RowFailure, StepPlan, StepResult


class RowlessCompute:
    """See `domain.steps.Compute`.  Opening a row is a defect of whoever let the request pass."""

    max_rows: int | None = 1
    cuts: Cuts = "boundary"
    mixed = False

    def __init__(self, weights_bytes: int) -> None:
        self._weights_bytes = weights_bytes

    @property
    def runs_apart(self) -> bool:
        return not on_cpu()

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
        self._refuse()

    def keep(self, request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        return ()

    def snapshot(
        self, request_id: RequestId, start: int, keys: Iterator[BlockKey]
    ) -> tuple[BlockInfo, ...] | None:
        return None

    def forget(self, keys: Sequence[BlockKey]) -> None: ...

    def tensors(self, key: BlockKey) -> Sequence[Tensor]:
        raise BlockLost("nothing is kept")

    def adopt(self, block: BlockInfo, tensors: Sequence[Tensor]) -> BlockInfo:
        raise BlockLost("nothing is kept")

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        self._refuse()

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        return ()

    def collect(self) -> StepResult:
        self._refuse()

    def close_row(self, request_id: RequestId) -> None: ...

    def memory(self) -> MemoryUse:
        return MemoryUse(
            active_bytes=mx.get_active_memory(),
            cached_bytes=mx.get_cache_memory(),
            peak_bytes=mx.get_peak_memory(),
            working_set_bytes=working_set_bytes(),
            weights_bytes=self._weights_bytes,
        )

    def reset(self) -> None:
        mx.clear_cache()

    def _refuse(self) -> NoReturn:
        raise RuntimeError("an embedding model has no rows")
