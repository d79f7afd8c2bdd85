"""Which row layout a model gets, and why: tried at load, never guessed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.fused_decode import kernels as fused_kernels
from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.mlx_lm_rows import MlxLmRows
from mlxbun.adapters.mlx_compute.paged_rows import FUSED, PagedRows
from mlxbun.adapters.mlx_compute.row_states import RowStates, UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_rows import SHORT, SlotRows
from mlxbun.domain.sampling import RequestId

log = logging.getLogger("mlxbun.compute")


_LAYOUTS: tuple[tuple[str, Callable[[Any], PagedRows | SlotRows], tuple[int, ...]], ...] = (
    (FUSED, partial(PagedRows, fused=fused_kernels), (9, 300)),
    ("pages", PagedRows, (9, 300)),
    (SHORT, partial(SlotRows, short=True), (9,)),
    ("static slots", SlotRows, (9,)),
)


def choose(model: Any, *, l1: bool, compiled: bool) -> tuple[RowStates, str]:
    """Return the fastest layout that suits `model`, and why it is that one.

    A layout suits when two rows that ran through it gave what mlx-lm's caches give.  Pages need
    a GPU and a plain KVCache in every layer, as slots do on a GPU; mlx-lm's caches always suit.
    """
    plain = MlxLmRows(model, batch_caches_always=l1)
    if l1:
        return plain, "parity with mlx-lm was asked for (--l1)"
    if not compiled:
        return plain, "there is no compiler for static slots"
    chosen, why = _fastest(model, plain)
    if on_cpu():
        chosen.quicken()
    if isinstance(chosen, PagedRows):
        chosen.warm()
    return chosen, why


def _fastest(model: Any, plain: MlxLmRows) -> tuple[MlxLmRows | PagedRows | SlotRows, str]:
    against = []
    for name, layout, lengths in _LAYOUTS:
        if "pages" in name and on_cpu():
            continue  # it is kernels for a GPU
        try:
            tried = layout(model)
            difference = _difference(tried, plain, lengths)
        except UnsuitableModel as error:
            against.append(f"{name} do not suit this model: {error}")
        except Exception as error:  # the model's code wants what the layout does not have
            log.info("%s were tried and broke", name, exc_info=error)
            against.append(f"{name} do not suit this model ({type(error).__name__}: {error})")
        else:
            if difference is None:
                against.insert(0, f"it keeps {tried.kinds()}")
                return tried, "; ".join(against)
            against.append(f"{name} gave other logits than mlx-lm's caches ({difference})")
    return plain, "; ".join(against)


def _difference(tried: RowStates, trusted: RowStates, lengths: Sequence[int]) -> str | None:
    """Run unequal rows through both; return how their logits differ, None if they agree.

    `lengths` are prompts that take every kernel of the layout, so that none is compiled later.
    """
    for length in lengths:
        ours, theirs = (_trial(states, length) for states in (tried, trusted))
        scale = mx.abs(theirs).max()
        apart = float(str((mx.abs(ours - theirs).max() / scale).item()))
        # Rounding: half precision keeps 8 to 11 bits, and sums run in another order.
        # A GPU multiplies float32 in a shorter form of its own.
        exact = theirs.dtype == mx.float32
        allowed = (1e-3 if on_cpu() else 0.02) if exact else 0.1
        if not apart <= allowed:
            return f"{apart:.2g} of the largest"
    return None


def _trial(states: RowStates, length: int) -> mx.array:
    """Prefill two rows, start them one after the other, decode both once: [2, vocab]."""
    first, second = RequestId("trial-1"), RequestId("trial-2")
    for row, prompt in ((first, [3 + i % 60 for i in range(length)]), (second, [5, 6, 7])):
        states.open(row)
        mx.eval(states.extend(row, mx.array([prompt])))
    one, two = mx.array([7]), mx.array([9])
    mx.eval(states.forward((), None, (first,), one).logits)
    fed = _by_slot(states, {first: one})
    mx.eval(states.forward((first,), fed, (second,), two).logits)
    fed = _by_slot(states, {first: two, second: one})
    logits = states.forward((first, second), fed, (), None).logits
    rows: Sequence[RequestId | None] = states.batch
    logits = logits[mx.array([rows.index(first), rows.index(second)])]
    mx.eval(logits)
    states.clear()
    return logits


def _by_slot(states: RowStates, tokens: dict[RequestId, mx.array]) -> mx.array:
    empty = mx.array([0])
    return mx.concatenate([tokens[row] if row is not None else empty for row in states.batch])
