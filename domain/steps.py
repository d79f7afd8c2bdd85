"""A step: one forward pass over a batch.  What to run, what came out, and the port that runs it.

Plans and results are data, ids and counts; arrays stay behind the port.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from mlxbun.domain.blocks import BlockInfo, BlockKey, Cuts, Tensor
from mlxbun.domain.constraint import Matcher
from mlxbun.domain.memory import MemoryUse
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId


class StepPlan(Struct, frozen=True, gc=False, tag="step_planned"):
    """Event and order at once: what step `step` computes.

    `decode` rows feed back their last token, `start` rows feed their last prompt token, and
    `prefill` is (row, number of prompt tokens) in the order of arrival.
    """

    step: int
    decode: tuple[RequestId, ...] = ()
    start: tuple[RequestId, ...] = ()
    prefill: tuple[tuple[RequestId, int], ...] = ()

    def only(self, request_ids: Container[RequestId]) -> StepPlan:
        """Return the step without what it has of others than `request_ids`."""
        return StepPlan(
            self.step,
            tuple(r for r in self.decode if r in request_ids),
            tuple(r for r in self.start if r in request_ids),
            tuple(chunk for chunk in self.prefill if chunk[0] in request_ids),
        )


class TokenLogprobs(Struct, frozen=True, gc=False):
    """The chosen token's log-probability (nats), and the most likely tokens, best first."""

    logprob: float
    top: tuple[tuple[TokenId, float], ...] = ()


class RowFailure(Struct, frozen=True):
    """One row broke; the others of its step are sound."""

    request_id: RequestId
    cause: str


class StepResult(Struct, frozen=True):
    """What one step drew: one token a row of `start` and `decode`, in any order.

    `logprobs[i]` is None where row i did not ask.  `num_wide` counts rows whose nucleus was
    wider than the candidates that were looked at (see docs/architecture.md, sampling).  Of rows
    with a matcher, `complete` lists those whose text nothing may follow, and `failures` those
    that can neither go on nor end.
    """

    step: int
    request_ids: tuple[RequestId, ...]
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprobs | None, ...] = ()
    num_wide: int = 0
    kv_bytes: int = 0
    complete: tuple[RequestId, ...] = ()
    failures: tuple[RowFailure, ...] = ()


class Compute(Protocol):
    """Port: the model, the rows' KV state, and the sampler.  One thread calls it all.

    Rows are opened before their first plan and closed after their last; closing an unknown
    row does nothing.  A row keeps its state in plans that do not mention it, but one that has
    started is over when a later plan decodes without it.

    `max_rows` is how many rows may share a forward, None for any number.  `runs_apart` says
    whether the device computes while the host builds the next step, as a GPU does.

    Copies of rows' state are kept under keys, for other rows to begin with: in blocks where
    every layer can be cut (`cuts` is "block"), the last of them perhaps a tail, else whole, at one
    token count ("boundary").  Where some layers can be cut and others not (`mixed`), those are
    kept in blocks, and a boundary has of them what follows the last whole block before it, where
    it starts.  A boundary that starts at 0 has everything.  A copy never changes; rows that began
    with it and the row that it is of go their own ways.
    """

    @property
    def max_rows(self) -> int | None: ...

    @property
    def runs_apart(self) -> bool: ...

    @property
    def cuts(self) -> Cuts: ...

    @property
    def mixed(self) -> bool: ...

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
        """Take a row in.  `prompt_ids` has at least one token.  Computes no forward.

        The row begins with the state kept under `prefix`, the first `num_cached` tokens of its
        prompt, which is not the whole of it; plans prefill what follows.  A boundary or a tail is
        last in `prefix`, after all blocks before its start.  The last `num_drawn` tokens of the
        prompt were drawn for this row earlier: the next draw is number `num_drawn`.
        With a `matcher`, which stands where the row does, it draws what that allows, and moves it.
        """
        ...

    def keep(self, request_id: RequestId, blocks: Sequence[BlockInfo]) -> tuple[BlockInfo, ...]:
        """Copy parts of a row's state, which it has processed; return them with their bytes.

        `blocks` follow one another; where state is whole the last of them is a boundary, and the
        only one unless layers are `mixed`.  The row may be prefilling, running, or just finished
        and not closed.  What cannot be kept any more is left out, such as a boundary that the row
        has not reached or has passed, with the blocks before it.
        """
        ...

    def snapshot(
        self, request_id: RequestId, start: int, keys: Iterator[BlockKey]
    ) -> tuple[BlockInfo, ...] | None:
        """Copy what a running row's state has from token `start` on, each part under the next key.

        Parts are `spans` of what was read.  Where some layers cannot be cut, a boundary at its
        end is last and has those; where none can, it has everything and begins at 0.  Returns
        what the copies cover, nothing where nothing follows `start`; None for a row that is not
        running.  Rows begin with them as with blocks, after all blocks before `start`.
        """
        ...

    def forget(self, keys: Sequence[BlockKey]) -> None:
        """Drop copies.  Unknown keys are ignored."""
        ...

    def tensors(self, key: BlockKey) -> Sequence[Tensor]:
        """Return a copy as bytes, for a disk.  Any thread may call it.  Raises BlockLost."""
        ...

    def adopt(self, block: BlockInfo, tensors: Sequence[Tensor]) -> BlockInfo:
        """Keep a copy that came from a disk; return it with its bytes.  Raises BlockLost."""
        ...

    def dispatch(self, plan: StepPlan) -> tuple[RowFailure, ...]:
        """Submit the plan's forward passes and return without waiting for tokens.

        Returns the rows whose own prefill broke; they are closed, and the rest of the plan
        is submitted.  At most two steps are dispatched and not collected.  Raises when the
        step as a whole broke; then only `reset` helps.
        """
        ...

    def wait_prefill(self) -> tuple[RowFailure, ...]:
        """Wait until the prefill of the last dispatched plan is computed; bounds memory.

        Returns the rows that broke, as `dispatch` does.
        """
        ...

    def collect(self) -> StepResult:
        """Wait for the oldest step that was dispatched and not collected; return its tokens."""
        ...

    def close_row(self, request_id: RequestId) -> None:
        """Release the row's state.  Its slot in a dispatched step is computed and ignored."""
        ...

    def memory(self) -> MemoryUse:
        """Return what the device's memory holds now.  Cheap enough for once a second."""
        ...

    def reset(self) -> None:
        """Drop every row and every step: the way back from a step that broke."""
        ...
