"""Row states in static slots: full attention, one compiled function a decode step.

Every layer has keys and values [slots, heads, columns, dim].  A row owns a slot; its prompt is
copied into the first columns when it joins, and each step writes one column for all rows, the
same one.  So a row's tokens may stand in any columns: attention does not mind their order,
since position is in the keys already, and `valid` [slots, columns] says which are its own.

Shapes change only when the batch outgrows its slots or columns, so a step is one call of one
compiled function.  A join writes one slot; a leave writes nothing.  Columns that hold nobody's
tokens any more are squeezed out when they are more than half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxbun.adapters.mlx_compute.prompt_caches import PromptCaches
from mlxbun.adapters.mlx_compute.row_states import Batched, Capabilities, UnsuitableModel, bucket
from mlxbun.domain.sampling import RequestId


class SlotCache:
    """One layer's keys and values, as model code sees them while a step is traced."""

    def __init__(
        self,
        keys: mx.array,
        values: mx.array,
        offset: mx.array,
        column: mx.array,
        mask: mx.array,
    ) -> None:
        self.keys, self.values = keys, values
        self.offset = offset  # [slots]: each row's position
        self._column = column
        self._mask = mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.keys = mx.slice_update(self.keys, keys, self._column, axes=(2,))
        self.values = mx.slice_update(self.values, values, self._column, axes=(2,))
        self.offset = self.offset + 1
        return self.keys, self.values

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        if N != 1 or window_size is not None:
            raise UnsuitableModel(f"it asks for a mask of {N} tokens and window {window_size}")
        return self._mask


State = tuple[mx.array, list[mx.array], list[mx.array]]  # valid, keys and values by layer
Step = Callable[[mx.array, mx.array, mx.array, State], tuple[mx.array, State]]


class SlotRows:
    """Static slots for models whose every layer has a plain KVCache."""

    def __init__(self, model: Any) -> None:
        """Raises UnsuitableModel when a layer keeps anything else."""
        self._model = model
        self._apart = PromptCaches(model)
        if not self._apart.only_plain():
            raise UnsuitableModel(f"it keeps {self._apart.kinds()}")
        self._slots: list[RequestId | None] = []
        self._lengths = np.zeros(0, dtype=np.int32)  # by slot: tokens that the row holds
        self._column = 0  # where the next step writes
        self._state: State | None = None
        self._step: Step = mx.compile(self._traced)
        self.num_traces = 0
        self.capabilities = Capabilities(
            name="static slots", batchable=True, trimmable=True, compiled=True
        )

    @property
    def batch(self) -> Sequence[RequestId | None]:
        return self._slots

    def open(self, row: RequestId) -> None:
        self._apart.open(row)

    def extend(self, row: RequestId, token_ids: mx.array) -> list[mx.array]:
        return self._apart.extend(row, token_ids)

    def shares_prompts(self) -> bool:
        return self._apart.shares_prompts()

    def extend_together(
        self, rows: Sequence[RequestId], token_ids: mx.array, lengths: Sequence[int]
    ) -> list[mx.array]:
        return self._apart.extend_together(rows, token_ids, lengths)

    def forward(
        self,
        stay: Sequence[RequestId],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> Batched:
        moved = self._leave(stay)
        if join:
            moved, tokens = self._join(join, tokens, join_tokens, moved)
        elif moved is not None and tokens is not None and len(moved) != len(tokens):
            tokens = tokens[mx.array(moved)]
        self._make_room(1)
        assert tokens is not None and self._state is not None
        offset, column = mx.array(self._lengths), mx.array([self._column])
        state, self._state = self._state, None  # the step owns it, and writes in place
        logits, self._state = self._step(tokens, offset, column, state)
        self._lengths += 1
        self._column += 1
        return Batched(logits, moved)

    def keep_none(self) -> None:
        self._slots, self._state, self._column = [], None, 0
        self._lengths = np.zeros(0, dtype=np.int32)

    def drop(self, row: RequestId) -> None:
        self._apart.drop(row)

    def clear(self) -> None:
        self._apart.clear()
        self.keep_none()

    def num_bytes(self) -> int:
        apart = self._apart.num_bytes()
        if self._state is None:
            return apart
        valid, keys, values = self._state
        return apart + valid.nbytes + sum(a.nbytes for a in (*keys, *values))

    # -- the step --

    def _traced(
        self, tokens: mx.array, offset: mx.array, column: mx.array, state: State
    ) -> tuple[mx.array, State]:
        self.num_traces += 1  # runs once for each shape, not once a step
        valid, keys, values = state
        valid = valid | (mx.arange(valid.shape[1]) == column)[None]
        mask = valid[:, None, None, :]
        caches = [SlotCache(k, v, offset, column, mask) for k, v in zip(keys, values, strict=True)]
        logits = self._model(tokens[:, None], cache=caches)[:, -1, :]
        return logits, (valid, [c.keys for c in caches], [c.values for c in caches])

    # -- slots --

    def _leave(self, stay: Sequence[RequestId]) -> list[int] | None:
        """Empty the slots of rows that do not stay; return where rows were, None if all stay."""
        wanted = set(stay)
        if all(row is None or row in wanted for row in self._slots):
            return None
        self._slots = [row if row in wanted else None for row in self._slots]
        taken = [i for i, row in enumerate(self._slots) if row is not None]
        if not taken:
            self.keep_none()
            return []
        moved = [i if row is not None else -1 for i, row in enumerate(self._slots)]
        if 2 * bucket(len(taken)) <= len(self._slots):
            moved = self._resize(bucket(len(taken)), taken)
        self._squeeze()
        return moved

    def _join(
        self,
        join: Sequence[RequestId],
        tokens: mx.array | None,
        join_tokens: mx.array | None,
        moved: list[int] | None,
    ) -> tuple[list[int], mx.array]:
        """Copy rows into empty slots; return where rows were, and the tokens to feed."""
        assert join_tokens is not None
        before = moved if moved is not None else list(range(len(self._slots)))
        rows = [(row, self._apart.take(row)) for row in join]
        taken = [i for i, row in enumerate(self._slots) if row is not None]
        if len(taken) + len(join) > len(self._slots):
            places = self._resize(bucket(len(taken) + len(join)), taken)
            before = [before[i] if i >= 0 else -1 for i in places]
        empty = [i for i, row in enumerate(self._slots) if row is None][: len(join)]
        self._column = max(self._column, *(caches[0].offset for _, caches in rows))
        self._make_room(1, like=rows[0][1])
        source = [i if i >= 0 else 0 for i in before]
        for number, (slot, (row, caches)) in enumerate(zip(empty, rows, strict=True)):
            self._fill(slot, row, caches)
            before[slot], source[slot] = -1, (0 if tokens is None else len(tokens)) + number
        pool = join_tokens if tokens is None else mx.concatenate([tokens, join_tokens])
        return before, pool[mx.array(source)]

    def _fill(self, slot: int, row: RequestId, caches: Sequence[Any]) -> None:
        assert self._state is not None
        valid, keys, values = self._state
        length = int(caches[0].offset)
        self._slots[slot], self._lengths[slot] = row, length
        own = (mx.arange(valid.shape[1]) < length)[None]
        valid = mx.slice_update(valid, own, mx.array([slot]), axes=(0,))
        if length:
            start = mx.array([slot, 0])
            for layer, cache in enumerate(caches):
                new = cache.keys[:, :, :length], cache.values[:, :, :length]
                keys[layer] = mx.slice_update(keys[layer], new[0], start, axes=(0, 2))
                values[layer] = mx.slice_update(values[layer], new[1], start, axes=(0, 2))
        self._state = valid, keys, values

    def _resize(self, num_slots: int, taken: Sequence[int]) -> list[int]:
        """Take `num_slots` slots, the taken ones first; return where each row was, or -1."""
        moved = [*taken, *[-1] * (num_slots - len(taken))]
        self._slots = [self._slots[i] if i >= 0 else None for i in moved]
        self._lengths = np.array([self._lengths[i] if i >= 0 else 0 for i in moved], dtype=np.int32)
        if self._state is not None:
            places = mx.array([max(i, 0) for i in moved])
            valid, keys, values = self._state
            self._state = valid[places], [k[places] for k in keys], [v[places] for v in values]
        return moved

    # -- columns --

    def _make_room(self, num_columns: int, like: Sequence[Any] | None = None) -> None:
        """Grow until `num_columns` more fit.  `like` has the shapes where there is no state."""
        needed = self._column + num_columns
        have = self._state[0].shape[1] if self._state is not None else 0
        if needed <= have:
            return
        more, num_slots = _columns(needed) - have, len(self._slots)
        if self._state is None:
            assert like is not None
            self._state = (
                mx.zeros((num_slots, more), mx.bool_),
                [_zeros_like(num_slots, more, k) for k, _ in self._shapes(like)],
                [_zeros_like(num_slots, more, v) for _, v in self._shapes(like)],
            )
            return
        valid, keys, values = self._state
        self._state = (
            mx.concatenate([valid, mx.zeros((num_slots, more), mx.bool_)], axis=1),
            [mx.concatenate([k, _zeros_like(num_slots, more, k)], axis=2) for k in keys],
            [mx.concatenate([v, _zeros_like(num_slots, more, v)], axis=2) for v in values],
        )

    def _shapes(self, like: Sequence[Any]) -> list[tuple[mx.array, mx.array]]:
        """Return a key and a value of each layer; a prompt of one token has none yet."""
        if like[0].keys is None:
            like = self._apart.fresh()
            self._model(mx.array([[0]]), cache=like)
        return [(cache.keys, cache.values) for cache in like]

    def _squeeze(self) -> None:
        """Move every row's tokens to the front where less than half of the columns hold any."""
        longest = max(
            (int(n) for n, row in zip(self._lengths, self._slots, strict=True) if row is not None),
            default=0,
        )
        if self._state is None or self._column <= 2 * longest + 256:
            return
        valid, keys, values = self._state
        width = _columns(longest + 1)
        order = mx.argsort(mx.logical_not(valid), axis=1)[:, :width]  # own columns first
        slots = mx.arange(len(self._slots))[:, None]

        def gathered(array: mx.array) -> mx.array:
            return mx.contiguous(array.swapaxes(1, 2)[slots, order].swapaxes(1, 2))

        lengths = mx.array(self._lengths)[:, None]
        self._state = (
            mx.arange(width)[None] < lengths,
            [gathered(k) for k in keys],
            [gathered(v) for v in values],
        )
        self._column = longest


def _columns(needed: int) -> int:
    """Return a capacity: an eighth of slack at most, and at least 64 columns."""
    step = max(64, 1 << max(needed.bit_length() - 3, 0))
    return -(-needed // step) * step


def _zeros_like(num_slots: int, num_columns: int, array: mx.array) -> mx.array:
    _, heads, _, dim = array.shape
    return mx.zeros((num_slots, heads, num_columns, dim), array.dtype)
