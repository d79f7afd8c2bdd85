"""Row states in static slots: full attention, one compiled function a decode step.

Rows stand in groups of like length, each with slots, columns and a write column of its own
(`slot_group`); the batch is the slots of all groups, one after another.  A step is one forward
over the batch; attention alone goes group by group.

Shapes change only when a group outgrows its slots or columns, or when the set of groups changes,
so a step is one call of one compiled function.  A join writes one slot; a leave writes nothing.
`slot_plan` has the rules of who stands where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.model_layer import route_attention
from mlxbun.adapters.mlx_compute.prompt_caches import RowsApart
from mlxbun.adapters.mlx_compute.row_states import Batched, Capabilities, UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_group import (
    GroupedSlotCache,
    SlotCache,
    SlotGroup,
    State,
    merged,
)
from mlxbun.adapters.mlx_compute.slot_plan import (
    Prices,
    Shape,
    homes,
    joined,
    opened,
    runs,
    tidied,
    worth_regrouping,
)
from mlxbun.domain.sampling import RequestId

log = logging.getLogger("mlxbun.compute")

# The bytes of one layer that attention reads in the time that a group's operations take.
GROUP_BYTES_CPU, GROUP_BYTES_GPU = 1 << 20, 1 << 24
ONE_GROUP = 1 << 60  # a price that no second group is worth
MOST_TRACES = 64  # each keeps a graph of the model, a tenth of a megabyte a layer


Step = Callable[[mx.array, mx.array, list[mx.array], list[State]], tuple[mx.array, list[State]]]


class SlotRows(RowsApart):
    """Static slots for models whose every layer has a plain KVCache."""

    def __init__(self, model: Any, prices: Prices | None = None) -> None:
        """Raises UnsuitableModel when a layer keeps anything else.

        A model whose attention cannot go group by group has one group, whatever `prices` says.
        """
        self._model = model
        super().__init__(model)
        if not self._apart.only_plain():
            raise UnsuitableModel(f"it keeps {self._apart.kinds()}")
        caches = self._apart.fresh()
        model(mx.array([[0]]), cache=caches)
        self._like = [(cache.keys.shape, cache.values.shape, cache.keys.dtype) for cache in caches]
        self._groups: list[SlotGroup] = []
        self._step: Step = mx.compile(self._traced)
        self.num_traces, self._forgotten = 0, 0
        self._prices = prices or self._usual_prices()
        if not self._suits_groups():
            self._prices = Prices(self._prices.cell, ONE_GROUP)
        self.num_traces = 0  # that was a trial
        self.capabilities = Capabilities(
            name="static slots", batchable=True, trimmable=True, compiled=True, cuts="block"
        )

    @property
    def batch(self) -> Sequence[RequestId | None]:
        return [row for group in self._groups for row in group.rows]

    @property
    def shapes(self) -> list[Shape]:
        """The groups in numbers, in the order of the batch."""
        return [group.shape for group in self._groups]

    def caches(self, row: RequestId) -> list[Any]:
        apart = self._apart.of(row)
        if apart is not None:
            return apart
        group = next(group for group in self._groups if row in group.rows)
        slot = group.rows.index(row)
        length = int(group.lengths[slot])
        _, keys, values = group.packed([slot], length)
        caches = self._apart.fresh()
        for cache, k, v in zip(caches, keys, values, strict=True):
            cache.state = (k[:, :, :length], v[:, :, :length], length)
        return caches

    def forward(
        self,
        stay: Sequence[RequestId],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> Batched:
        moved, wanted = None, set(stay)
        leave = any(
            row is not None and row not in wanted for group in self._groups for row in group.rows
        )
        if leave or join:
            before = self.batch
            if leave:
                self._leave(wanted)
            if join:
                self._join(join)
            moved, tokens = self._follow(before, tokens, join, join_tokens)
        assert tokens is not None
        groups = self._groups
        full = [group for group in groups if group.column == group.columns]
        for group in full:
            group.fit(joined(group.shape, 0, 0))
        if full or moved is not None:
            self._forget_old_shapes()
        lengths = [group.lengths for group in groups]
        offset = mx.array(np.concatenate(lengths) if len(groups) > 1 else lengths[0])
        columns = [mx.array([group.column]) for group in groups]
        logits, states = self._step(tokens, offset, columns, [_lent(group) for group in groups])
        for group, state in zip(groups, states, strict=True):
            group.state = state
            group.lengths += 1
            group.column += 1
        return Batched(logits, moved)

    def keep_none(self) -> None:
        self._groups = []

    def clear(self) -> None:
        self._apart.clear()
        self.keep_none()

    def num_bytes(self) -> int:
        return self._apart.num_bytes() + sum(group.num_bytes() for group in self._groups)

    # -- the step --

    def _traced(
        self, tokens: mx.array, offset: mx.array, columns: list[mx.array], states: list[State]
    ) -> tuple[mx.array, list[State]]:
        self.num_traces += 1  # runs once for each set of shapes, not once a step
        written = [
            valid | (mx.arange(valid.shape[1]) == column)[None]
            for (valid, _, _), column in zip(states, columns, strict=True)
        ]
        masks = [valid[:, None, None, :] for valid in written]
        layers = [
            [
                SlotCache(keys[layer], values[layer], offset, column, mask)
                for mask, column, (_, keys, values) in zip(masks, columns, states, strict=True)
            ]
            for layer in range(len(self._like))
        ]
        caches = [
            of_groups[0] if len(of_groups) == 1 else GroupedSlotCache(of_groups, offset)
            for of_groups in layers
        ]
        logits = self._model(tokens[:, None], cache=caches)[:, -1, :]
        by_group = list(zip(*layers, strict=True))
        return logits, [
            (valid, [cache.keys for cache in of_layers], [cache.values for cache in of_layers])
            for valid, of_layers in zip(written, by_group, strict=True)
        ]

    def _forget_old_shapes(self) -> None:
        """Let old traces go once they are many.  Called when shapes change anyway."""
        if self.num_traces - self._forgotten >= MOST_TRACES:
            self._step, self._forgotten = mx.compile(self._traced), self.num_traces

    def _usual_prices(self) -> Prices:
        cell = max((k[1] * k[3] + v[1] * v[3]) * dtype.size for k, v, dtype in self._like)
        return Prices(cell, GROUP_BYTES_CPU if on_cpu() else GROUP_BYTES_GPU)

    def _suits_groups(self) -> bool:
        """Return whether two rows give the same logits in two groups as in one.

        Groups need the model's attention to go through `attend`, with no mask of its own.
        """
        route_attention(self._model)
        noise = partial(mx.random.normal, key=mx.random.key(0))  # not the process's own stream
        num_columns = 8
        valid = mx.arange(num_columns)[None] < mx.array([[3], [5]])
        one: State = (
            valid,
            [noise((2, k[1], num_columns, k[3]), dtype) for k, _, dtype in self._like],
            [noise((2, v[1], num_columns, v[3]), dtype) for _, v, dtype in self._like],
        )
        two: list[State] = [
            (one[0][i : i + 1], [k[i : i + 1] for k in one[1]], [v[i : i + 1] for v in one[2]])
            for i in (0, 1)
        ]
        tokens, offset, column = mx.array([7, 9]), mx.array([3, 5]), mx.array([5])
        want, _ = self._traced(tokens, offset, [column], [one])
        try:
            got, _ = self._traced(tokens, offset, [column] * 2, two)
        except Exception as error:  # the model's code wants what groups do not have
            log.info("slots stay one group: attention was tried by group", exc_info=error)
            return False
        apart = float(str((mx.abs(got - want).max() / mx.abs(want).max()).item()))
        return apart <= (1e-3 if want.dtype == mx.float32 else 0.1)

    # -- who stands where --

    def _leave(self, stay: Set[RequestId]) -> None:
        """Empty the slots of rows that do not stay, and give back what is no longer needed."""
        for group in self._groups:
            group.rows = [row if row in stay else None for row in group.rows]
        self._groups = [group for group in self._groups if group.taken]
        shapes = [tidied(group.shape) for group in self._groups]
        if self._groups and worth_regrouping(shapes, self._lengths(), self._prices):
            self._regroup([])
            return
        for group, shape in zip(self._groups, shapes, strict=True):
            group.fit(shape)

    def _join(self, join: Sequence[RequestId]) -> None:
        """Copy rows into empty slots of the groups that suit their lengths."""
        new = [(row, self._apart.take(row)) for row in join]
        lengths = [int(caches[0].offset) for _, caches in new]
        shapes = [group.shape for group in self._groups]
        placed, shapes = homes(shapes, lengths, self._prices)
        if worth_regrouping(shapes, self._lengths() + lengths, self._prices):
            self._regroup(new)
            return
        for home, run in placed:
            longest = max(lengths[i] for i in run)
            if home is None:
                group = SlotGroup(opened(len(run), longest), self._like)
                self._groups.append(group)
            else:
                group = self._groups[home]
                group.fit(joined(group.shape, len(run), longest))
            _fill(group, [new[i] for i in run])

    def _regroup(self, new: Sequence[tuple[RequestId, Any]]) -> None:
        """Make the best groups of the rows that are there and those that are new."""
        there = [(number, slot) for number, g in enumerate(self._groups) for slot in g.taken]
        lengths = self._lengths() + [int(caches[0].offset) for _, caches in new]
        groups = list[SlotGroup]()
        for run in runs(lengths, self._prices):
            kept = [there[i] for i in run if i < len(there)]
            shape = opened(len(run), max(lengths[i] for i in run))
            group = merged(self._groups, kept, shape, self._like)
            _fill(group, [new[i - len(there)] for i in run if i >= len(there)])
            groups.append(group)
        self._groups = groups

    def _lengths(self) -> list[int]:
        """Return the tokens of every row, in the order of the batch."""
        return [int(group.lengths[slot]) for group in self._groups for slot in group.taken]

    def _follow(
        self,
        before: Sequence[RequestId | None],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> tuple[list[int], mx.array]:
        """Return where the row of every slot was, -1 for new and empty ones, and its token."""
        was = {row: slot for slot, row in enumerate(before) if row is not None}
        came = {row: len(before) + number for number, row in enumerate(join)}
        slots = self.batch
        moved = [-1 if row is None or row in came else was[row] for row in slots]
        parts = [part for part in (tokens, join_tokens) if part is not None]
        fed = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        source = [  # an empty slot may be fed anything
            came.get(row, was.get(row, 0)) if row is not None else min(slot, len(fed) - 1)
            for slot, row in enumerate(slots)
        ]
        return moved, fed if source == list(range(len(fed))) else fed[mx.array(source)]


def _lent(group: SlotGroup) -> State:
    """Hand over a group's state: the step owns it, and writes in place."""
    assert group.state is not None
    state, group.state = group.state, None
    return state


def _fill(group: SlotGroup, new: Sequence[tuple[RequestId, Sequence[Any]]]) -> None:
    empty = [slot for slot, row in enumerate(group.rows) if row is None]
    for slot, (row, caches) in zip(empty, new, strict=False):
        group.fill(slot, row, caches)
