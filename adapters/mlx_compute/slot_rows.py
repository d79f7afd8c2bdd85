"""Row states in static slots: one compiled function a decode step (`slot_step`).

Rows stand in groups of like length, each with slots, columns and a write column of its own
(`slot_group`); the batch is the slots of all groups, one after another.  A step is one forward
over the batch; attention alone goes group by group.

Shapes change only when a group outgrows its slots or columns, or when the set of groups changes,
so a step is one call of one compiled function.  A join writes one slot; a leave writes nothing.
`slot_plan` has the rules of who stands where.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.fused_decode.decoder import decoder_of
from mlxbun.adapters.mlx_compute.fused_decode.short_step import ShortStep
from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.prompt_caches import RowsApart
from mlxbun.adapters.mlx_compute.row_states import Batched, Capabilities, UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_group import SlotGroup, State, merged, tokens_of
from mlxbun.adapters.mlx_compute.slot_layers import layer_of
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
from mlxbun.adapters.mlx_compute.slot_step import SlotStep
from mlxbun.domain.sampling import RequestId

# The bytes of one layer that attention reads in the time that a group's operations take.
GROUP_BYTES_CPU, GROUP_BYTES_GPU = 1 << 20, 1 << 24
ONE_GROUP = 1 << 60  # a price that no second group is worth

SHORT = "static slots, few operations"


class SlotRows(RowsApart):
    """Static slots for models whose every layer has a plain KVCache.

    On a CPU, layers may have windows and arrays too: see `slot_layers`.
    """

    def __init__(self, model: Any, prices: Prices | None = None, *, short: bool = False) -> None:
        """Raises UnsuitableModel when a layer keeps anything else.

        A model whose attention cannot go group by group has one group, whatever `prices` says.
        `short` asks for steps of few operations, and raises for a model that cannot have them.
        """
        self._model = model
        short_step = ShortStep(decoder_of(model)) if short else None
        super().__init__(model)
        if not (self._apart.only_plain() or on_cpu()):  # a GPU was not seen to write in place
            raise UnsuitableModel(f"it keeps {self._apart.kinds()}")
        caches = self._apart.fresh()
        model(mx.array([[0]]), cache=caches)
        self._layers = [layer_of(cache) for cache in caches]
        if len(windows := {layer.window for layer in self._layers if layer.window}) > 1:
            raise UnsuitableModel(f"it has windows of {windows} tokens")
        self._window = next(iter(windows), None)
        self._counts = any(layer.cell for layer in self._layers)  # tokens take columns
        self._groups: list[SlotGroup] = []
        self._step = SlotStep(model, self._layers, self._window, short_step)
        self._prices = prices or self._usual_prices()
        if not self._step.suits_groups():
            self._prices = Prices(self._prices.cell, ONE_GROUP)
        self._step.num_traces = 0  # that was a trial
        self.capabilities = Capabilities(
            name=SHORT if short else "static slots",
            batchable=True,
            trimmable=self._apart.trimmable(),
            compiled=True,
            cuts="block" if self._apart.only_plain() else "boundary",
            mixed=self._apart.partly_plain(),
        )

    @property
    def num_traces(self) -> int:
        """How many sets of shapes the step was traced for."""
        return self._step.num_traces

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
        length = group.length(slot)
        _, of_layers = group.packed([slot], max(length, 1), 0)
        caches = self._apart.fresh()
        for layer, arrays, cache in zip(self._layers, of_layers, caches, strict=True):
            layer.restore(arrays, length, cache)
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
            self._step.forget_old_shapes()
        places = [
            [mx.array([at]) for at in (group.column, group.ring)[: 2 if self._window else 1]]
            for group in groups
        ]
        starts = [group.starts for group in groups]
        logits, states = self._step(tokens, starts, places, [_lent(group) for group in groups])
        for group, state in zip(groups, states, strict=True):
            group.state = state
            if self._counts:
                group.step()
        return Batched(logits, moved)

    def keep_none(self) -> None:
        self._groups = []

    def clear(self) -> None:
        self._apart.clear()
        self.keep_none()

    def num_bytes(self) -> int:
        return self._apart.num_bytes() + sum(group.num_bytes() for group in self._groups)

    def _usual_prices(self) -> Prices:
        cell = max(layer.cell for layer in self._layers)
        return Prices(max(cell, 1), GROUP_BYTES_CPU if on_cpu() else GROUP_BYTES_GPU)

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
        lengths = [tokens_of(caches) for _, caches in new]
        shapes = [group.shape for group in self._groups]
        placed, shapes = homes(shapes, lengths, self._prices)
        if worth_regrouping(shapes, self._lengths() + lengths, self._prices):
            self._regroup(new)
            return
        for home, run in placed:
            longest = max(lengths[i] for i in run)
            if home is None:
                group = SlotGroup(opened(len(run), longest), self._layers)
                self._groups.append(group)
            else:
                group = self._groups[home]
                group.fit(joined(group.shape, len(run), longest))
            _fill(group, [new[i] for i in run])

    def _regroup(self, new: Sequence[tuple[RequestId, Any]]) -> None:
        """Make the best groups of the rows that are there and those that are new."""
        there = [(number, slot) for number, g in enumerate(self._groups) for slot in g.taken]
        lengths = self._lengths() + [tokens_of(caches) for _, caches in new]
        groups = list[SlotGroup]()
        for run in runs(lengths, self._prices):
            kept = [there[i] for i in run if i < len(there)]
            shape = opened(len(run), max(lengths[i] for i in run))
            group = merged(self._groups, kept, shape, self._layers)
            _fill(group, [new[i - len(there)] for i in run if i >= len(there)])
            groups.append(group)
        self._groups = groups

    def _lengths(self) -> list[int]:
        """Return the tokens of every row, in the order of the batch."""
        return [group.length(slot) for group in self._groups for slot in group.taken]

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
