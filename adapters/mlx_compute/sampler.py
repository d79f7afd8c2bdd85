"""The sampler's state: what each row of the batch asked, as arrays, and the tokens it saw.

The arrays are made when a row joins or leaves; a step adds two uniform numbers a row, which
depend on (seed, token index) alone, and runs one graph.  On a CPU, rows with top-p or top-k
are drawn among CANDIDATES tokens, since sorting a vocabulary is slow there.  A nucleus wider
than that is cut there, counted, and the row's later draws rank four times as many.  Rows that need
few, as those with top-k do, are a group of their own, for which few are ranked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from mlxbun.adapters.mlx_compute.drawn import Drawn
from mlxbun.adapters.mlx_compute.row_masks import stacked
from mlxbun.adapters.mlx_compute.row_states import bucket
from mlxbun.adapters.mlx_compute.sampling_graph import BY_ROW, PENALTIES, Variant, draw
from mlxbun.adapters.mlx_compute.sampling_row import (
    SamplingRow,
    has_penalty,
    is_ranked,
    looks_all_the_way,
    num_looked_at,
)
from mlxbun.adapters.mlx_compute.uniforms import uniforms
from mlxbun.domain.sampling import NO_LOGPROBS, SamplingParams, TokenId

CANDIDATES = 2048
_FEW = 256  # candidates
_WORTH_TWO = 1024  # candidates: to rank fewer for some rows costs less than a group's operations
_WINDOW_STEP = 32
_WHOLE = 2.0**30  # a window that no history fills
_STEPS_AHEAD = 64
_EMPTY = SamplingParams(temperature=0.0)  # of a slot without a row


Graph = Callable[[mx.array, dict[str, mx.array]], dict[str, mx.array]]


class Sampler:
    """The sampling state of a batch.  `compose` on every join or leave, `draw` every step."""

    def __init__(
        self,
        vocab_size: int,
        xtc_exempt: Sequence[TokenId],
        *,
        normalise: bool,
        sort_all: bool,
        quick_exp: bool = False,
    ) -> None:
        """`normalise` draws from log-probabilities as mlx-lm does; `sort_all` ranks all tokens.

        `quick_exp` is as in `Variant`.
        """
        self.vocab_size = vocab_size
        self._xtc_exempt = mx.array(sorted(xtc_exempt) or [vocab_size], dtype=mx.int32)
        self._normalise = normalise
        self._sort_all = sort_all
        self._quick_exp = quick_exp
        self._rows: list[SamplingRow | None] = []
        self._variant = Variant(vocab_size)
        self._graph: Graph | None = None
        self._graphs: dict[Variant, Graph] = {}
        self._arrays: dict[str, mx.array] = {}
        self._seeds = np.zeros(0, dtype=np.uint64)
        self._uniforms: deque[npt.NDArray[np.float32]] = deque()  # of the steps to come
        self._history_length = 0  # of the longest row that looks back all the way

    def compose(self, rows: Sequence[SamplingRow | None], moved: Sequence[int]) -> None:
        """Take `rows` as the batch, by slot.  Slot i was slot moved[i] before, or -1 for none."""
        params = [row.params if row is not None else _EMPTY for row in rows]
        ranked = self._ranked_groups(rows)
        arrays = self._param_arrays(params, [chosen for _, chosen in ranked])
        if any(p.penalised for p in params):
            arrays["history"] = self._recomposed_history(rows, moved)
        self._rows, self._arrays = list(rows), arrays
        self._variant = self._variant_of(params, rows, tuple(count for count, _ in ranked))
        self._graph = self._compiled(self._variant)
        self._seeds = np.array([p.seed & (2**64 - 1) for p in params], dtype=np.uint64)
        self._uniforms.clear()

    def draw(self, logits: mx.array) -> Drawn:
        """Draw a token for each slot from [slots, vocab] logits; count it as drawn."""
        assert self._graph is not None, "compose comes first"
        arrays = self._arrays
        if self._variant.masked:
            masks = [row.mask if row is not None else None for row in self._rows]
            arrays["mask"] = stacked(masks, self.vocab_size)
        if self._variant.sampled:
            if not self._uniforms:
                self._draw_ahead()
            arrays["uniforms"] = mx.array(self._uniforms.popleft())
        if "history" in arrays:
            self._grow_history()
        out = self._graph(logits, arrays)
        for row in self._rows:
            if row is not None:
                row.index += 1
        if "history" in out:
            arrays["history"] = out.pop("history")
        return Drawn(out)

    def _compiled(self, variant: Variant) -> Graph:
        graph = self._graphs.get(variant)
        if graph is None:
            graph = self._graphs[variant] = mx.compile(partial(draw, variant))
        return graph

    def _variant_of(
        self,
        params: Sequence[SamplingParams],
        rows: Sequence[SamplingRow | None],
        candidates: tuple[int, ...],
    ) -> Variant:
        sampled = [row for row in rows if row is not None and not row.params.greedy]
        return Variant(
            self.vocab_size,
            self._normalise,
            any(p.logit_bias for p in params),
            tuple(name for name in PENALTIES if any(has_penalty(p, name) for p in params)),
            any(not is_ranked(row.params) for row in sampled),
            candidates,
            any(row.params.xtc_probability > 0 for row in sampled),
            max((p.logprobs for p in params), default=NO_LOGPROBS),
            self._quick_exp,
            any(row is not None and row.mask is not None for row in rows),
            any(row is not None and row.params.greedy for row in rows),
        )

    def _ranked_groups(self, rows: Sequence[SamplingRow | None]) -> list[tuple[int, list[bool]]]:
        """Return the groups of rows whose tokens are ranked: how many tokens, and which rows."""
        needed = [
            self._candidates_for(row)
            if row is not None and not row.params.greedy and is_ranked(row.params)
            else 0
            for row in rows
        ]
        few = _FEW if max(needed, default=0) > _WORTH_TWO else _WORTH_TWO
        groups = ([0 < n <= few for n in needed], [n > few for n in needed])
        return [
            (max(n for n, is_so in zip(needed, chosen, strict=True) if is_so), chosen)
            for chosen in groups
            if any(chosen)
        ]

    def _candidates_for(self, row: SamplingRow) -> int:
        """Return how many of the likeliest tokens contain every token that may be drawn."""
        if self._sort_all:
            return self.vocab_size
        params, needed = row.params, CANDIDATES << min(2 * row.num_wide, 16)
        if params.top_k:
            needed = params.top_k
        if params.xtc_probability > 0:  # XTC removes from the top before top-k counts
            threshold = params.xtc_threshold
            needed += int(1 / threshold) + 1 if threshold else self.vocab_size
        return min(self.vocab_size, 1 << max(needed - 1, 63).bit_length())

    def _param_arrays(
        self, params: Sequence[SamplingParams], ranked: Sequence[Sequence[bool]]
    ) -> dict[str, mx.array]:
        ways = {"whole": [not p.greedy and not is_ranked(p) for p in params]}
        ways |= {f"candidate_{group}": list(chosen) for group, chosen in enumerate(ranked)}
        arrays = {
            "inverse_temperature": _column([1 / (p.temperature or 1.0) for p in params]),
            "top_p": _column([p.top_p if p.top_p < 1.0 else 2.0 for p in params]),
            "top_k": _column([p.top_k or self.vocab_size for p in params]),
            "log_min_p": _column([np.log(p.min_p) if p.min_p else -np.inf for p in params]),
            "xtc_probability": _column([p.xtc_probability for p in params]),
            "xtc_threshold": _column([p.xtc_threshold for p in params]),
            "xtc_exempt": self._xtc_exempt,
        }
        for way, chosen in ways.items():
            arrays[f"is_{way}"] = mx.array(chosen)
            places = _listed(chosen)
            if places is not None:
                arrays[f"{way}_listed"] = mx.array(places)
                arrays |= {f"{way}_{name}": arrays[name][mx.array(places)] for name in BY_ROW}
        biases = [(r, i, b) for r, p in enumerate(params) for i, b in p.logit_bias]
        if biases:
            rows, ids, values = zip(*biases, strict=True)
            arrays["bias_row"], arrays["bias_id"] = mx.array(rows), mx.array(ids)
            arrays["bias"] = mx.array(values, dtype=mx.float32)
        for name in PENALTIES:
            if any(has_penalty(p, name) for p in params):
                penalties = [getattr(p, f"{name}_penalty") for p in params]
                windows = [getattr(p, f"{name}_context_size") or _WHOLE for p in params]
                arrays[f"{name}_penalty"] = _column(penalties)
                arrays[f"{name}_window"] = _column(windows)
        return arrays

    def _draw_ahead(self) -> None:
        """Compute the next steps' uniforms, [slots, 2] each: the draw's, and XTC's coin."""
        index = np.array([row.index if row is not None else 0 for row in self._rows])
        steps = index.astype(np.uint64) + np.arange(_STEPS_AHEAD, dtype=np.uint64)[:, None]
        draws = [uniforms(self._seeds, steps, stream) for stream in (0, 1)]
        self._uniforms.extend(np.stack(draws, axis=-1).astype(np.float32))

    # -- history of ids: on the device, since the token drawn last is not read yet --

    def _recomposed_history(
        self, rows: Sequence[SamplingRow | None], moved: Sequence[int]
    ) -> mx.array:
        old = self._arrays.get("history")
        windows = [num_looked_at(r) if r is not None else 0 for r in rows]
        width = -(-max(windows) // _WINDOW_STEP) * _WINDOW_STEP
        fresh = np.full((len(rows), width), self.vocab_size, dtype=np.int32)
        for line, row, before in zip(fresh, rows, moved, strict=True):
            if row is not None and row.params.penalised and before < 0:
                tail = row.prompt_ids[-width:]
                line[width - len(tail) :] = tail
        self._history_length = max(
            (r.num_seen for r in rows if r is not None and looks_all_the_way(r.params)),
            default=0,
        )
        if old is None:  # nobody was penalised, so what they saw does not matter
            return mx.array(fresh)
        places = mx.array([max(before, 0) for before in moved])
        was_there = mx.array([before >= 0 for before in moved])[:, None]
        return mx.where(was_there, self._fit(old[places], width), mx.array(fresh))

    def _grow_history(self) -> None:
        """Make room for one more token where a row looks back over its whole history."""
        if not self._history_length:
            return
        self._history_length += 1
        width = self._arrays["history"].shape[1]
        if self._history_length > width:
            self._arrays["history"] = self._fit(self._arrays["history"], 2 * width)

    def _fit(self, history: mx.array, width: int) -> mx.array:
        """Return `history` with `width` columns, the newest kept, at the right end."""
        have = history.shape[1]
        if have >= width:
            return history[:, have - width :]
        empty = mx.full((history.shape[0], width - have), self.vocab_size, dtype=mx.int32)
        return mx.concatenate([empty, history], axis=1)


def _listed(chosen: Sequence[bool]) -> list[int] | None:
    """Return the places of the chosen rows, if to list them saves work; None for all or none.

    A few more places than there are rows keep the number of shapes small: the last is repeated.
    """
    places = [place for place, is_chosen in enumerate(chosen) if is_chosen]
    if not places or bucket(len(places)) >= len(chosen):
        return None
    return places + places[-1:] * (bucket(len(places)) - len(places))


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(np.array(values, dtype=np.float32)[:, None])
