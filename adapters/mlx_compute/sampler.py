"""Sampling on the device: one small graph for all rows, whatever each of them asked.

Semantics are mlx-lm's, row by row: logit bias, then repetition, presence and frequency
penalties over each one's window; on the result, at temperature 1, top-p, min-p, XTC and
top-k, in this order; then one draw at the row's temperature.  A draw is the inverse of the
cumulative distribution at one uniform number, which depends on (seed, token index) alone.

Rows without top-p and top-k are drawn in vocabulary order, exactly.  The others are drawn
among candidates, the most likely tokens: all of the vocabulary where sorting is cheap (a
GPU), else CANDIDATES of them.  A nucleus that is wider than that is cut there, counted, and
the row's later draws use the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from mlxbun.domain.sampling import NO_LOGPROBS, RequestId, SamplingParams, TokenId
from mlxbun.domain.scheduling import TokenLogprobs

CANDIDATES = 1024
_HISTORY_STEP = 32


class SamplingRow(Struct):
    """One row of the batch, on the host.  `index` counts the tokens drawn so far."""

    request_id: RequestId
    params: SamplingParams
    prompt_ids: tuple[TokenId, ...]
    index: int = 0
    wide: bool = False  # its nucleus once did not fit the candidates


class Drawn(Struct, frozen=True):
    """One step's lazy results: [rows] tokens, and what was asked beside them."""

    tokens: mx.array
    wide: mx.array | None
    logprobs: mx.array | None  # [rows], of the tokens
    top_ids: mx.array | None  # [rows, k]
    top_logprobs: mx.array | None  # [rows, k]

    def arrays(self) -> list[mx.array]:
        found = (self.tokens, self.wide, self.logprobs, self.top_ids, self.top_logprobs)
        return [a for a in found if a is not None]


class Sampler:
    """The sampling state of a batch.  `compose` on every join or leave, `draw` every step."""

    def __init__(
        self, vocab_size: int, xtc_exempt: Sequence[TokenId], *, normalise: bool, sort_all: bool
    ) -> None:
        """`normalise` takes argmax of log-probabilities, as mlx-lm does, not of logits."""
        self._vocab_size = vocab_size
        self._exempt = mx.array(sorted(xtc_exempt), dtype=mx.int32) if xtc_exempt else None
        self._normalise = normalise
        self._sort_all = sort_all
        self._rows: list[SamplingRow] = []
        self._history: mx.array | None = None  # [rows, window], right-aligned, vocab_size = none
        self._history_length = 0

    def compose(self, rows: Sequence[SamplingRow], kept: Sequence[int]) -> None:
        """Take `rows` as the batch; the first len(kept) of them were rows `kept` before."""
        penalised = any(row.params.penalised for row in rows)
        self._history = self._recompose_history(rows, kept) if penalised else None
        self._rows = list(rows)
        self._read_params([row.params for row in rows])

    def draw(self, logits: mx.array) -> Drawn:
        """Draw a token for each row from [rows, vocab] logits; count it as drawn."""
        if self._processed:
            logits = self._process(logits.astype(mx.float32))
        if self._normalise:
            logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
        wide = None
        if self._sampled:
            scores = logits.astype(mx.float32)
            uniforms = self._uniforms()
            if self._any_whole:
                whole = self._draw_whole(scores, uniforms)
                tokens = mx.where(self._is_whole, whole, tokens)
            if self._num_candidates:
                drawn, wide = self._draw_candidates(scores, uniforms)
                tokens = mx.where(self._is_candidate, drawn, tokens)
        for row in self._rows:
            row.index += 1
        if self._history is not None:
            self._remember(tokens)
        return self._with_logprobs(logits, tokens, wide)

    # -- parameters, on the device: [rows] each, made when the batch changes --

    def _read_params(self, params: Sequence[SamplingParams]) -> None:
        rows = self._rows
        self._sampled = any(not p.greedy for p in params)
        self._processed = self._history is not None or any(p.logit_bias for p in params)
        self._penalties = _penalties(params)
        self._seeds = np.array([p.seed & (2**64 - 1) for p in params], dtype=np.uint64)
        self._biases = _bias_arrays(params)
        self._max_logprobs = max((p.logprobs for p in params), default=NO_LOGPROBS)
        filtered = [not p.greedy and (p.top_p < 1.0 or p.top_k > 0) for p in params]
        self._num_candidates = max(
            (self._candidates_for(r) for r, f in zip(rows, filtered, strict=True) if f), default=0
        )
        whole = [not p.greedy and not f for p, f in zip(params, filtered, strict=True)]
        self._any_whole = any(whole)
        self._any_xtc = any(p.xtc_probability > 0 for p in params)
        if not self._sampled:
            return
        self._is_candidate, self._is_whole = mx.array(filtered), mx.array(whole)
        self._inverse_temperature = _column(
            1 / p.temperature if p.temperature else 1 for p in params
        )
        self._top_p = _column(p.top_p if p.top_p < 1.0 else 2.0 for p in params)
        self._top_k = _column(p.top_k or self._vocab_size for p in params)
        self._log_min_p = _column(np.log(p.min_p) if p.min_p else -np.inf for p in params)
        self._xtc_probability = _column(p.xtc_probability for p in params)
        self._xtc_threshold = _column(p.xtc_threshold for p in params)

    def _candidates_for(self, row: SamplingRow) -> int:
        """Return how many of the most likely tokens contain every token that may be drawn."""
        if self._sort_all or row.wide:
            return self._vocab_size
        params, needed = row.params, CANDIDATES
        if params.top_k:
            needed = params.top_k
        if params.xtc_probability > 0:  # XTC removes from the top before top-k counts
            needed += (
                int(1 / params.xtc_threshold) + 1 if params.xtc_threshold else self._vocab_size
            )
        return min(self._vocab_size, 1 << max(needed - 1, 63).bit_length())

    def _uniforms(self) -> tuple[mx.array, mx.array]:
        """Return two uniforms a row, [rows, 1]: the draw's, and XTC's coin."""
        index = np.array([row.index for row in self._rows], dtype=np.uint64)
        draw = mx.array(uniforms(self._seeds, index, 0)[:, None])
        return draw, mx.array(uniforms(self._seeds, index, 1)[:, None]) if self._any_xtc else draw

    # -- logits processors --

    def _process(self, logits: mx.array) -> mx.array:
        if self._biases is not None:
            rows, ids, values = self._biases
            logits = logits.at[rows, ids].add(values)
        return logits if self._history is None else self._penalise(logits)

    def _penalise(self, logits: mx.array) -> mx.array:
        # One spare column takes the writes of empty slots and of tokens outside a window.
        logits = mx.pad(logits, [(0, 0), (0, 1)])
        for kind, penalty, first in self._penalties:
            seen = self._window(first)
            if kind == "frequency":  # once for every occurrence
                rows = mx.broadcast_to(mx.arange(len(self._rows))[:, None], seen.shape)
                logits = logits.at[rows, seen].subtract(mx.broadcast_to(penalty, seen.shape))
                continue
            score = mx.take_along_axis(logits, seen, axis=1)
            if kind == "repetition":
                score = mx.where(score < 0, score * penalty, score / penalty)
            else:
                score = score - penalty
            logits = mx.put_along_axis(logits, seen, score, axis=1)
        return logits[:, :-1]

    def _window(self, size: mx.array) -> mx.array:
        """Return the history with what lies before each row's window masked: [rows, window]."""
        history = self._history
        assert history is not None
        width = history.shape[1]
        return mx.where(mx.arange(width)[None] < width - size, self._vocab_size, history)

    # -- history of ids, on the device, since the last token is not read yet --

    def _recompose_history(self, rows: Sequence[SamplingRow], kept: Sequence[int]) -> mx.array:
        old, num_kept = self._history, len(kept)
        width = _HISTORY_STEP
        for row in rows:
            width = max(width, _window_tokens(row.params, len(row.prompt_ids) + row.index))
        width = -(-width // _HISTORY_STEP) * _HISTORY_STEP
        parts: list[mx.array] = []
        if num_kept:
            if old is None:  # nobody was penalised, so what they drew does not matter
                parts.append(mx.full((num_kept, width), self._vocab_size, dtype=mx.int32))
            else:
                parts.append(_fit(old[mx.array(list(kept))], width, self._vocab_size))
        fresh = np.full((len(rows) - num_kept, width), self._vocab_size, dtype=np.int32)
        for line, row in zip(fresh, rows[num_kept:], strict=True):
            if row.params.penalised:
                tail = row.prompt_ids[-width:]
                line[width - len(tail) :] = tail
        if len(fresh):
            parts.append(mx.array(fresh))
        self._history_length = max(
            (len(r.prompt_ids) + r.index for r in rows if _whole_history(r.params)), default=0
        )
        return mx.concatenate(parts) if len(parts) > 1 else parts[0]

    def _remember(self, tokens: mx.array) -> None:
        history = self._history
        assert history is not None
        if self._history_length:
            self._history_length += 1
            if self._history_length > history.shape[1]:
                history = _fit(history, 2 * history.shape[1], self._vocab_size)
        self._history = mx.concatenate([history[:, 1:], tokens[:, None]], axis=1)

    # -- draws: [rows] token ids --

    def _draw_whole(self, scores: mx.array, uniforms: tuple[mx.array, mx.array]) -> mx.array:
        """Draw in vocabulary order: temperature, min-p and XTC, exactly."""
        best = scores.max(axis=-1, keepdims=True)
        kept = scores >= best + self._log_min_p
        if self._any_xtc:
            probabilities = mx.softmax(mx.where(kept, scores, -mx.inf), axis=-1)
            kept = kept & ~self._xtc(probabilities, None, uniforms[1])
        weights = mx.where(kept, mx.exp((scores - best) * self._inverse_temperature), 0.0)
        return _invert(weights, uniforms[0])

    def _draw_candidates(
        self, scores: mx.array, uniforms: tuple[mx.array, mx.array]
    ) -> tuple[mx.array, mx.array | None]:
        """Draw among the most likely tokens, best first; say which rows needed more of them."""
        count = min(self._num_candidates, self._vocab_size)
        if count < self._vocab_size:
            ids = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
            order = mx.argsort(-mx.take_along_axis(scores, ids, axis=-1), axis=-1)
            ids = mx.take_along_axis(ids, order, axis=-1)
        else:
            ids = mx.argsort(-scores, axis=-1)
        ranked = mx.take_along_axis(scores, ids, axis=-1)
        mass = mx.exp(ranked - mx.logsumexp(scores, axis=-1, keepdims=True))
        mass_above = mx.cumsum(mass, axis=-1) - mass
        kept = (mass_above < self._top_p) & (ranked >= ranked[:, :1] + self._log_min_p)
        last = kept[:, -1]
        if self._any_xtc:
            mass = mx.where(kept, mass, 0.0)
            filtered = (self._top_p < 1.0) | (self._log_min_p > -mx.inf)
            mass = mx.where(filtered, mass / mass.sum(axis=-1, keepdims=True), mass)
            kept = kept & ~self._xtc(mass, ids, uniforms[1])
        rank = mx.cumsum(kept.astype(mx.int32), axis=-1)
        wide = last & (rank[:, -1] < self._top_k[:, 0]) if count < self._vocab_size else None
        kept = kept & (rank <= self._top_k)
        weights = mx.where(kept, mx.exp((ranked - ranked[:, :1]) * self._inverse_temperature), 0.0)
        place = _invert(weights, uniforms[0])
        drawn = mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0].astype(mx.int32)
        return drawn, None if wide is None else wide & self._is_candidate

    def _xtc(self, mass: mx.array, ids: mx.array | None, coin: mx.array) -> mx.array:
        """Return the tokens that XTC removes: all above the threshold but the least likely."""
        above = mass > self._xtc_threshold
        least = mx.where(above, mass, mx.inf).min(axis=-1, keepdims=True)
        removed = (mass > least) & (coin < self._xtc_probability)
        if self._exempt is None:
            return removed
        if ids is None:
            exempt = mx.zeros((self._vocab_size,), mx.bool_).at[self._exempt].add(True)[None]
        else:
            exempt = (ids[..., None] == self._exempt).any(axis=-1)
        return removed & ~exempt

    def _with_logprobs(self, logits: mx.array, tokens: mx.array, wide: mx.array | None) -> Drawn:
        if self._max_logprobs == NO_LOGPROBS:
            return Drawn(tokens, wide, None, None, None)
        scores = logits.astype(mx.float32)
        total = mx.logsumexp(scores, axis=-1, keepdims=True)
        chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1) - total
        count = min(self._max_logprobs, self._vocab_size)
        if not count:
            return Drawn(tokens, wide, chosen[:, 0], None, None)
        if count < self._vocab_size:
            top = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
        else:
            top = mx.broadcast_to(mx.arange(count), scores.shape)
        top_scores = mx.take_along_axis(scores, top, axis=-1) - total
        order = mx.argsort(-top_scores, axis=-1)
        return Drawn(
            tokens,
            wide,
            chosen[:, 0],
            mx.take_along_axis(top, order, axis=-1),
            mx.take_along_axis(top_scores, order, axis=-1),
        )


def read_logprobs(
    drawn: Drawn, params: Sequence[SamplingParams]
) -> tuple[TokenLogprobs | None, ...]:
    """Return what each row asked to know; reads arrays that are already evaluated."""
    if drawn.logprobs is None:
        return ()
    chosen = cast(list[float], drawn.logprobs.tolist())
    ids: list[list[TokenId]] = []
    values: list[list[float]] = []
    if drawn.top_ids is not None and drawn.top_logprobs is not None:
        ids = cast(list[list[TokenId]], drawn.top_ids.tolist())
        values = cast(list[list[float]], drawn.top_logprobs.tolist())
    found: list[TokenLogprobs | None] = []
    for i, row in enumerate(params):
        if row.logprobs == NO_LOGPROBS:
            found.append(None)
            continue
        top: tuple[tuple[TokenId, float], ...] = ()
        if ids:
            top = tuple(zip(ids[i][: row.logprobs], values[i][: row.logprobs], strict=True))
        found.append(TokenLogprobs(chosen[i], top))
    return tuple(found)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(
    seeds: npt.NDArray[np.uint64], index: npt.NDArray[np.uint64], stream: int
) -> npt.NDArray[np.float32]:
    """Return `domain.sampling.uniform` of each row, at once: [rows], float32."""
    with np.errstate(over="ignore"):
        key = _mix(seeds + _GOLDEN)
        steps = np.uint64(2) * index + np.uint64(stream + 1)
        bits = _mix(key + steps * _GOLDEN) >> np.uint64(40)
    return (bits * 2.0**-24).astype(np.float32)


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _invert(weights: mx.array, uniform: mx.array) -> mx.array:
    """Return the first place whose cumulative weight exceeds uniform x total: [rows].

    Never a place of weight 0, also where rounding makes the product reach the total.
    """
    cumulative = mx.cumsum(weights, axis=-1)
    total = cumulative[:, -1:]
    place = (cumulative <= uniform * total).sum(axis=-1)
    return mx.minimum(place, (cumulative < total).sum(axis=-1)).astype(mx.int32)


def _column(values: object) -> mx.array:
    return mx.array(np.array(list(values), dtype=np.float32)[:, None])  # type: ignore[call-overload]


def _bias_arrays(params: Sequence[SamplingParams]) -> tuple[mx.array, mx.array, mx.array] | None:
    entries = [(r, i, b) for r, p in enumerate(params) for i, b in p.logit_bias]
    if not entries:
        return None
    rows, ids, values = zip(*entries, strict=True)
    return mx.array(rows), mx.array(ids), mx.array(values, dtype=mx.float32)


def _penalties(params: Sequence[SamplingParams]) -> list[tuple[str, mx.array, mx.array]]:
    """Return (kind, penalties [rows, 1], window sizes [rows, 1]) in the order of application."""
    whole = 2.0**30
    found: list[tuple[str, mx.array, mx.array]] = []
    for kind, neutral in (("repetition", 1.0), ("presence", 0.0), ("frequency", 0.0)):
        values = [getattr(p, f"{kind}_penalty") for p in params]
        if any(value != neutral for value in values):
            sizes = [getattr(p, f"{kind}_context_size") or whole for p in params]
            found.append((kind, _column(values), _column(sizes)))
    return found


def _whole_history(params: SamplingParams) -> bool:
    return (
        (params.repetition_penalty != 1.0 and not params.repetition_context_size)
        or (params.presence_penalty != 0.0 and not params.presence_context_size)
        or (params.frequency_penalty != 0.0 and not params.frequency_context_size)
    )


def _window_tokens(params: SamplingParams, num_tokens: int) -> int:
    """Return how many tokens back the row's penalties look, 0 if it has none."""
    windows = [
        size or num_tokens
        for penalty, neutral, size in (
            (params.repetition_penalty, 1.0, params.repetition_context_size),
            (params.presence_penalty, 0.0, params.presence_context_size),
            (params.frequency_penalty, 0.0, params.frequency_context_size),
        )
        if penalty != neutral
    ]
    return max(windows, default=0)


def _fit(history: mx.array, width: int, empty: int) -> mx.array:
    """Return `history` with `width` columns, the newest kept, at the right end."""
    have = history.shape[1]
    if have >= width:
        return history[:, have - width :]
    return mx.pad(history, [(0, 0), (width - have, 0)], constant_values=mx.array(empty, mx.int32))
