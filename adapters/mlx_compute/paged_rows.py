"""Row states in pages: full attention on a GPU, one compiled function a decode step.

Every layer has a pool of pages, [pages, heads, PAGE, dim] for keys and for values.  A row owns
pages, as many as its tokens need; `table` [slots, pages a row] says which, in order.  The
attention kernel reads live tokens only and writes the new one in place, so a step copies no
state, a join copies one prompt, and a leave does nothing but free pages.

Shapes change when slots, pages a row or the pool outgrow their bucket; between that, a step is
one call of one compiled function.  Page 0 belongs to slots without a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from mlxbun.adapters.mlx_compute import paged_attention
from mlxbun.adapters.mlx_compute.few_rows_blocking import MAX_ROWS, ROWS_A_GROUP
from mlxbun.adapters.mlx_compute.fused_decode.decoder import decoder_of
from mlxbun.adapters.mlx_compute.fused_decode.step import FusedKernels, FusedStep
from mlxbun.adapters.mlx_compute.model_layer import route_attention
from mlxbun.adapters.mlx_compute.paged_attention import PAGE
from mlxbun.adapters.mlx_compute.paged_cache import Kernels, PagedCache
from mlxbun.adapters.mlx_compute.prompt_caches import RowsApart
from mlxbun.adapters.mlx_compute.row_states import Batched, Capabilities, UnsuitableModel
from mlxbun.domain.sampling import RequestId

FUSED = "fused pages"  # the layout's name where steps are fused
_FEWEST = 32  # pages of a pool
FEWEST_PAGES = 4  # that the table has for a row
GROUPS = (1, 2, 4, 8)  # of rows, of which a product takes several at a time: slots are such
MUCH = 4  # times as many pages as are needed are given back
MOST_TRACES = 64  # each keeps a graph of the model, a tenth of a megabyte a layer


Pool = tuple[list[mx.array], list[mx.array]]  # keys and values, by layer
Step = Callable[[mx.array, mx.array, mx.array, Pool], mx.array]


class PagedRows(RowsApart):
    """Pages for models whose every layer has a plain KVCache, on a device with our kernels."""

    def __init__(
        self,
        model: Any,
        kernels: Kernels = paged_attention,
        fused: FusedKernels | None = None,
    ) -> None:
        """`fused`: steps of up to MAX_ROWS rows are fused, by these kernels.

        Raises UnsuitableModel when a layer keeps anything else, or the kernels do not fit.
        """
        self._model = model
        self._kernels = kernels
        super().__init__(model)
        if not self._apart.only_plain():
            raise UnsuitableModel(f"it keeps {self._apart.kinds()}")
        caches = self._apart.fresh()
        model(mx.array([[0]]), cache=caches)
        self._like = [(cache.keys.shape, cache.values.shape, cache.keys.dtype) for cache in caches]
        for keys, values, dtype in self._like:
            why = kernels.unsupported(keys[3], dtype)
            if why or keys != values:
                raise UnsuitableModel(why or "its keys and values differ in shape")
        self._fused = _fused_step(model, fused) if fused is not None else None
        route_attention(model)
        self._slots: list[RequestId | None] = []
        self._lengths = np.zeros(0, dtype=np.int32)  # by slot: tokens that the row holds
        self._pages: list[list[int]] = []  # by slot
        self._free: list[int] = []
        self._pool: Pool | None = None
        # [slots, 1 + pages a row]: a row's length, for fused steps, and its pages; None when they
        # changed.
        self._table: np.ndarray[Any, np.dtype[np.int32]] | None = None
        self._pages_there: mx.array | None = None  # the pages of `_table`, for other steps
        self._width = 0  # pages a row that the table has
        self._step: Step = mx.compile(self._traced)
        self.num_traces, self._forgotten = 0, 0
        self.capabilities = Capabilities(
            name="pages" if fused is None else FUSED,
            batchable=True,
            trimmable=True,
            compiled=True,
            cuts="block",
        )

    @property
    def batch(self) -> Sequence[RequestId | None]:
        return self._slots

    def caches(self, row: RequestId) -> list[Any]:
        apart = self._apart.of(row)
        if apart is not None:
            return apart
        assert self._pool is not None
        slot = self._slots.index(row)
        length = int(self._lengths[slot])
        pages = mx.array(self._pages[slot][: -(-length // PAGE)])
        caches = self._apart.fresh()
        for cache, keys, values in zip(caches, *self._pool, strict=True):
            cache.state = (_unpaged(keys[pages], length), _unpaged(values[pages], length), length)
        return caches

    def forward(
        self,
        stay: Sequence[RequestId],
        tokens: mx.array | None,
        join: Sequence[RequestId],
        join_tokens: mx.array | None,
    ) -> Batched:
        before = tokens
        moved = self._leave(stay)
        if moved:
            self._give_back(before)
        if moved is not None and tokens is not None and len(moved) != len(tokens):
            tokens = tokens[mx.array(moved)] if moved else None
        if join:
            assert join_tokens is not None
            moved, tokens = self._join(join, tokens, join_tokens, moved, before)
        self._give_pages(before)
        assert tokens is not None and self._pool is not None
        if self._table is None:
            self._table, self._pages_there = self._written_table(), None
            self._forget_old_shapes()
        logits = self._step(tokens, *self._placed(), self._pool)
        self._lengths[[row is not None for row in self._slots]] += 1
        return Batched(logits, moved)

    def keep_none(self) -> None:
        self._slots, self._pages, self._free = [], [], []
        self._pool, self._table, self._width = None, None, 0
        self._lengths = np.zeros(0, dtype=np.int32)

    def clear(self) -> None:
        self._apart.clear()
        self.keep_none()

    def num_bytes(self) -> int:
        apart = self._apart.num_bytes()
        if self._pool is None:
            return apart
        return apart + sum(array.nbytes for arrays in self._pool for array in arrays)

    def warm(self) -> None:
        """Run a fused step of every kind once, so that no row waits while kernels are compiled."""
        if self._fused is None:
            return
        page = [mx.zeros((1, *shape[1:2], PAGE, shape[3]), dtype) for shape, _, dtype in self._like]
        for groups in GROUPS:
            num_rows = groups * ROWS_A_GROUP
            lengths = mx.zeros((num_rows,), mx.int32)
            places = mx.zeros((num_rows, 1 + FEWEST_PAGES), mx.int32)
            mx.eval(self._fused(lengths, lengths, places, (page, page)))

    # -- the step --

    def _placed(self) -> tuple[mx.array, mx.array]:
        """Return every row's length, and where its tokens are."""
        assert self._table is not None
        lengths = mx.array(self._lengths)
        if self._fused_for(len(self._slots)):
            self._table[:, 0] = self._lengths
            return lengths, mx.array(self._table)
        if self._pages_there is None:
            self._pages_there = mx.array(self._table[:, 1:])
        return lengths, self._pages_there

    def _fused_for(self, num_rows: int) -> FusedStep | None:
        return self._fused if num_rows <= MAX_ROWS else None

    def _traced(self, tokens: mx.array, lengths: mx.array, there: mx.array, pool: Pool) -> mx.array:
        self.num_traces += 1  # runs once for each shape, not once a step
        if fused := self._fused_for(len(tokens)):
            return fused(tokens, lengths, there, pool)
        caches = [
            PagedCache(self._kernels, k, v, there, lengths) for k, v in zip(*pool, strict=True)
        ]
        logits: mx.array = self._model(tokens[:, None], cache=caches)[:, -1, :]
        return logits

    def _forget_old_shapes(self) -> None:
        """Let old traces go once they are many.  Called when shapes may change anyway."""
        if self.num_traces - self._forgotten >= MOST_TRACES:
            self._step, self._forgotten = mx.compile(self._traced), self.num_traces

    # -- slots --

    def _leave(self, stay: Sequence[RequestId]) -> list[int] | None:
        """Empty the slots of rows that do not stay; return where rows were, None if all stay."""
        wanted = set(stay)
        if all(row is None or row in wanted for row in self._slots):
            return None
        for slot, row in enumerate(self._slots):
            if row is not None and row not in wanted:
                self._free += self._pages[slot]
                self._slots[slot], self._pages[slot], self._lengths[slot] = None, [], 0
        self._table = None
        taken = [i for i, row in enumerate(self._slots) if row is not None]
        if not taken:
            self.keep_none()
            return []
        if 2 * slots_for(len(taken)) <= len(self._slots):
            return self._resize(slots_for(len(taken)), taken)
        return [i if row is not None else -1 for i, row in enumerate(self._slots)]

    def _join(
        self,
        join: Sequence[RequestId],
        tokens: mx.array | None,
        join_tokens: mx.array,
        moved: list[int] | None,
        before: mx.array | None,
    ) -> tuple[list[int], mx.array]:
        """Put rows into empty slots; return where rows were, and the tokens to feed."""
        places = moved if moved is not None else list(range(len(self._slots)))
        source = list(range(len(places)))
        taken = [i for i, row in enumerate(self._slots) if row is not None]
        if len(taken) + len(join) > len(self._slots):
            resized = self._resize(slots_for(len(taken) + len(join)), taken)
            places = [places[i] if i >= 0 else -1 for i in resized]
            source = [max(i, 0) for i in resized]
        empty = [i for i, row in enumerate(self._slots) if row is None][: len(join)]
        rows = [(row, self._apart.take(row)) for row in join]
        for number, (slot, (row, caches)) in enumerate(zip(empty, rows, strict=True)):
            self._slots[slot], self._lengths[slot] = row, int(caches[0].offset)
            places[slot], source[slot] = -1, (0 if tokens is None else len(tokens)) + number
        self._give_pages(before)
        done = [
            z
            for slot, (_, caches) in zip(empty, rows, strict=True)
            for z in self._fill(slot, caches, before)
        ]
        every = join_tokens if tokens is None else mx.concatenate([tokens, join_tokens])
        fed = every[mx.array(source)]
        if done:  # a sum, not mx.depends: that keeps an order of work, but is no edge of a graph
            fed = fed + mx.concatenate(done).sum().astype(fed.dtype)
        return places, fed

    def _fill(self, slot: int, caches: Sequence[Any], before: mx.array | None) -> list[mx.array]:
        """Copy a row's prompt into its pages; return what the next step must wait for."""
        length = int(self._lengths[slot])
        if not length:
            return []
        assert self._pool is not None
        pages = mx.array(self._pages[slot], dtype=mx.int32)
        if before is not None:  # the step in flight may still write into pages that were freed
            pages = pages + (before[0] * 0).astype(mx.int32)
        return [
            self._kernels.fill(cache.keys, cache.values, keys, values, pages, length)
            for cache, keys, values in zip(caches, *self._pool, strict=True)
        ]

    def _resize(self, num_slots: int, taken: Sequence[int]) -> list[int]:
        """Take `num_slots` slots, the taken ones first; return where each row was, or -1."""
        moved = [*taken, *[-1] * (num_slots - len(taken))]
        self._slots = [self._slots[i] if i >= 0 else None for i in moved]
        self._pages = [self._pages[i] if i >= 0 else [] for i in moved]
        self._lengths = np.array([self._lengths[i] if i >= 0 else 0 for i in moved], dtype=np.int32)
        self._table = None
        return moved

    # -- pages --

    def _give_pages(self, after: mx.array | None) -> None:
        """Give every row the pages that its tokens and the next one need."""
        for slot, row in enumerate(self._slots):
            missing = int(self._lengths[slot]) // PAGE + 1 - len(self._pages[slot])
            if row is None or missing <= 0:
                continue
            if len(self._free) < missing:
                self._grow(missing - len(self._free), after)
            self._pages[slot] += [self._free.pop() for _ in range(missing)]
            self._table = None

    def _grow(self, num_pages: int, after: mx.array | None) -> None:
        """Enlarge the pool by `num_pages` at least.

        `after` are the tokens of the step in flight: it writes into the pool that is copied.
        """
        if self._pool is None:
            size = pool_size(num_pages + 1)
            self._free = list(range(size - 1, 0, -1))
            self._pool = (
                [mx.zeros((size, keys[1], PAGE, keys[3]), dtype) for keys, _, dtype in self._like],
                [mx.zeros((size, keys[1], PAGE, keys[3]), dtype) for keys, _, dtype in self._like],
            )
            return
        have = self._pool[0][0].shape[0]
        more = pool_size(have + num_pages) - have
        self._free = [*range(have + more - 1, have - 1, -1), *self._free]
        if after is not None:
            mx.eval(after)  # its step writes into the pool, which MLX does not know
        keys, values = self._pool
        for layer in range(len(keys)):  # one at a time: the old one goes before the next comes
            keys[layer], values[layer] = _longer(keys[layer], more), _longer(values[layer], more)
            mx.eval(keys[layer], values[layer])

    def _give_back(self, after: mx.array | None) -> None:
        """Make the pool smaller where those who left had most of it; `after` as in `_grow`."""
        assert self._pool is not None
        used = [page for pages in self._pages for page in pages]
        size = pool_size(len(used) + 1)
        if MUCH * size > self._pool[0][0].shape[0]:
            return
        if after is not None:
            mx.eval(after)
        kept = mx.array([0, *used])
        for arrays in self._pool:
            for layer, array in enumerate(arrays):
                arrays[layer] = _longer(array[kept], size - len(used) - 1)
                mx.eval(arrays[layer])
        numbers = iter(range(1, size))
        self._pages = [[next(numbers) for _ in pages] for pages in self._pages]
        self._free = list(range(size - 1, len(used), -1))
        self._table = None

    def _written_table(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        longest = max(len(pages) for pages in self._pages)
        if longest > self._width or 4 * longest <= self._width:
            self._width = max(FEWEST_PAGES, 1 << (longest - 1).bit_length())
        table = np.zeros((len(self._slots), 1 + self._width), dtype=np.int32)
        for line, pages in zip(table, self._pages, strict=True):
            line[1 : 1 + len(pages)] = pages
        return table


def _fused_step(model: Any, kernels: FusedKernels) -> FusedStep:
    decoder = decoder_of(model)
    if why := kernels.unsupported(decoder):
        raise UnsuitableModel(why)
    return FusedStep(decoder, kernels)


def pool_size(num_pages: int) -> int:
    """Return how many pages to have for `num_pages`: a quarter too many at most, and few sizes."""
    step = max(_FEWEST // 4, 1 << max(num_pages.bit_length() - 3, 0))
    return max(_FEWEST, -(-num_pages // step) * step)


def slots_for(num_rows: int) -> int:
    """Return how many slots to have: the next power of two, for an empty one costs a GPU little."""
    return 1 << (num_rows - 1).bit_length()


def _unpaged(pages: mx.array, length: int) -> mx.array:
    """Return [1, heads, length, dim] of a row's pages [n, heads, PAGE, dim]."""
    count, heads, _, dim = pages.shape
    return pages.swapaxes(0, 1).reshape(1, heads, count * PAGE, dim)[:, :, :length]


def _longer(array: mx.array, num_pages: int) -> mx.array:
    return mx.concatenate([array, mx.zeros((num_pages, *array.shape[1:]), array.dtype)])
