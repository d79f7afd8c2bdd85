"""A model's steps without an engine: what deciding, telling and queueing cost is the difference.

The shortest loop over the port that the engine drives: a step is submitted before the one before
it is read, and nothing else happens.  Called on the thread that opened the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from mlxbun.adapters.bench.engine_steps import WARM_STEPS, Mark, StepCost, StepsFailed, cost, now
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId
from mlxbun.domain.steps import Compute, RowFailure, StepPlan


def measure(
    compute: Compute,
    params: Sequence[SamplingParams],
    prompt_ids: Sequence[TokenId],
    num_steps: int,
) -> StepCost:
    """Decode one row for each of `params` together and return what a step cost.

    Leaves no row behind.  Raises StepsFailed when a row broke.
    """
    rows = tuple(RequestId(f"bare-{i}") for i in range(len(params)))
    steps = count(1)
    try:
        for row, asked in zip(rows, params, strict=True):
            compute.open_row(row, tuple(prompt_ids), asked)
        if len(prompt_ids) > 1:
            whole = tuple((row, len(prompt_ids) - 1) for row in rows)
            _see(compute.dispatch(StepPlan(next(steps), prefill=whole)))
            _see(compute.wait_prefill())
            compute.collect()
        _see(compute.dispatch(StepPlan(next(steps), start=rows)))
        marks = list[Mark]()
        for _ in range(num_steps + 2 * WARM_STEPS):
            _see(compute.dispatch(StepPlan(next(steps), decode=rows)))
            _see(compute.collect().failures)
            marks.append(now())
        compute.collect()
    finally:
        compute.reset()
    return cost(marks, len(rows))


def _see(failures: Sequence[RowFailure]) -> None:
    if failures:
        raise StepsFailed(failures[0].cause)
