"""A decode step over slots: one forward for the slots of all groups, attention by group.

One compiled function, traced anew only for shapes that it has not seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.fused_decode.short_step import ShortStep
from mlxbun.adapters.mlx_compute.model_layer import route_attention
from mlxbun.adapters.mlx_compute.slot_cache import GroupedSlotCache
from mlxbun.adapters.mlx_compute.slot_group import State
from mlxbun.adapters.mlx_compute.slot_layers import Place, SlotLayer

log = logging.getLogger("mlxbun.compute")

MOST_TRACES = 64  # each keeps a graph of the model, a tenth of a megabyte a layer

Places = list[list[mx.array]]  # by group: the column to write, and that of the ring if there is one
Stepped = tuple[mx.array, list[State]]
Step = Callable[[mx.array, list[mx.array], Places, list[State]], Stepped]


class SlotStep:
    """The step of one model.  `num_traces` counts the sets of shapes that it was traced for."""

    def __init__(
        self, model: Any, layers: Sequence[SlotLayer], window: int | None, short: ShortStep | None
    ) -> None:
        """`layers` are of `slot_layers`, of which those with a window have `window` tokens.

        `short` computes in place of the model's own code.
        """
        self._model, self._layers = model, layers
        self._window, self._short = window, short
        self._compiled: Step = mx.compile(self.traced)
        self.num_traces, self._forgotten = 0, 0

    def __call__(
        self, tokens: mx.array, starts: list[mx.array], places: Places, states: list[State]
    ) -> Stepped:
        """Return logits [slots, vocab] for `tokens` [slots], and the states, written in place.

        `starts`, by group, are the columns of each row's first token.
        """
        return self._compiled(tokens, starts, places, states)

    def traced(
        self, tokens: mx.array, starts: list[mx.array], places: Places, states: list[State]
    ) -> Stepped:
        """Return the same, uncompiled: what is traced."""
        self.num_traces += 1  # once for each set of shapes, not once a step
        offsets = [at[0] - start for at, start in zip(places, starts, strict=True)]
        offset = offsets[0] if len(offsets) == 1 else mx.concatenate(offsets)
        written, where = [], []
        for (valid, _), of_group, at in zip(states, offsets, places, strict=True):
            written.append(valid | (_numbers(valid.shape[1]) == at[0]))
            where.append(self._place(of_group, at, written[-1]))
        layers = [
            [
                layer.seen(of_layers[number], place)
                for (_, of_layers), place in zip(states, where, strict=True)
            ]
            for number, layer in enumerate(self._layers)
        ]
        caches = [
            of_groups[0] if len(of_groups) == 1 else GroupedSlotCache(of_groups, offset)
            for of_groups in layers
        ]
        if self._short is not None:
            columns = max(valid.shape[1] for valid in written)
            logits = self._short(tokens, offset, caches, columns)
        else:
            logits = self._model(tokens[:, None], cache=caches)[:, -1, :]
        by_group = list(zip(*layers, strict=True))
        return logits, [
            (
                valid,
                [layer.kept(seen) for layer, seen in zip(self._layers, of_layers, strict=True)],
            )
            for valid, of_layers in zip(written, by_group, strict=True)
        ]

    def _place(self, offset: mx.array, at: list[mx.array], valid: mx.array) -> Place:
        mask = valid[:, None, None, :]
        if self._window is None:
            return Place(offset, at[0], mask)
        size = min(self._window, valid.shape[1])
        ages = (at[1] + size - _numbers(size)) % size
        return Place(offset, at[0], mask, at[1], (ages[None] <= offset[:, None])[:, None, None, :])

    def forget_old_shapes(self) -> None:
        """Let old traces go once they are many.  Called when shapes change anyway."""
        if self.num_traces - self._forgotten >= MOST_TRACES:
            self._compiled, self._forgotten = mx.compile(self.traced), self.num_traces

    def suits_groups(self) -> bool:
        """Return whether two rows give the same logits in two groups as in one.

        Groups need the model's attention to go through `attend`, with no mask of its own.
        """
        route_attention(self._model)
        if not all(layer.attends for layer in self._layers):
            return False
        noise = partial(mx.random.normal, key=mx.random.key(0))  # not the process's own stream
        num_columns = 8
        valid = mx.arange(num_columns)[None] < mx.array([[3], [5]])
        arrays = [
            [noise(array.shape, array.dtype) for array in layer.empty(2, num_columns)]
            for layer in self._layers
        ]
        two: list[State] = [
            (valid[i : i + 1], [[array[i : i + 1] for array in of] for of in arrays])
            for i in (0, 1)
        ]
        tokens, starts, at = mx.array([7, 9]), mx.array([2, 0]), [mx.array([5]), mx.array([5])]
        want, _ = self.traced(tokens, [starts], [at], [(valid, arrays)])
        try:
            got, _ = self.traced(tokens, list(mx.split(starts, 2)), [at] * 2, two)
        except Exception as error:  # the model's code wants what groups do not have
            log.info("slots stay one group: attention was tried by group", exc_info=error)
            return False
        apart = float(str((mx.abs(got - want).max() / mx.abs(want).max()).item()))
        return apart <= (1e-3 if want.dtype == mx.float32 else 0.1)


def _numbers(count: int) -> mx.array:
    """Return 0, 1, ... as a constant: in the trace of a step it would be made anew each time."""
    numbers = mx.arange(count)
    mx.eval(numbers)
    return numbers
