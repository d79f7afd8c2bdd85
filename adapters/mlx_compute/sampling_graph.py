"""The sampling graph: from logits to tokens, for all rows at once, whatever each one asked.

Semantics are mlx-lm's, row by row: logit bias, then repetition, presence and frequency
penalties over each one's window; on the result, at temperature 1, top-p, min-p, XTC and
top-k, in this order; then one draw at the row's temperature.  A draw is the inverse of the
cumulative distribution at one uniform number.

A graph is a pure function of arrays, so that it can be compiled; what changes its shape (does
any row sample, how many candidates) is its `Variant`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.quick_exp import quick_exp

PENALTIES = ("repetition", "presence", "frequency")  # in the order of application
_FEW = 64  # numbers a row, for which a quick exp takes longer than it saves
_BELOW = 1.0 - 2.0**-23  # times a float32 is less than it, if only just

BY_ROW = (  # what each row asked
    "inverse_temperature",
    "top_p",
    "top_k",
    "log_min_p",
    "xtc_probability",
    "xtc_threshold",
)


class Variant(Struct, frozen=True):
    """Which parts the graph has.  Equal variants share a compiled graph.

    `candidates` are how many of the likeliest tokens are ranked for rows with top-p or top-k: one
    number for each group of rows that need about as many.  `num_logprobs` is -1 (none), 0 (the
    chosen token's) or how many alternatives to report.  With `masked`, rows draw only what their
    masks allow.  `quick_exp` is for MLX's CPU build, whose own exp computes one number at a time.
    `greedy`: some row takes the likeliest token.
    """

    vocab_size: int
    normalise: bool = False  # argmax of log-probabilities, as mlx-lm takes it, not of logits
    biased: bool = False
    penalties: tuple[str, ...] = ()
    whole: bool = False
    candidates: tuple[int, ...] = ()
    xtc: bool = False
    num_logprobs: int = -1
    quick_exp: bool = False
    masked: bool = False
    greedy: bool = True

    @property
    def sampled(self) -> bool:
        return self.whole or bool(self.candidates)


Arrays = Mapping[str, mx.array]


def draw(variant: Variant, logits: mx.array, arrays: Arrays) -> dict[str, mx.array]:
    """Draw one token a row from `logits`: [rows, vocab].

    Takes, as the variant needs them: `uniforms` [rows, 2], `bias_row`, `bias_id`, `bias`
    [biases], `history` [rows, window] (right-aligned, vocab_size where empty), `NAME_penalty`
    and `NAME_window` [rows, 1], `is_whole`, `is_candidate_N` [rows], `inverse_temperature`,
    `top_p`, `top_k`, `log_min_p`, `xtc_probability`, `xtc_threshold` [rows, 1], `xtc_exempt`
    [tokens] (vocab_size alone for none), `mask` [rows, ceil(vocab / 32)] uint32, a bit for each
    token that may be drawn.  Where only some rows draw in one way, `whole_listed` and
    `candidate_N_listed`, N counting the groups of candidates, are those rows, and the others are
    spared the work; a row may be listed twice.  What they asked is then `whole_NAME` and
    `candidate_N_NAME`, for the names of BY_ROW.

    A mask has the last word before filters and the draw; log-probabilities are those without it.

    Returns `tokens` [rows] int32 and, as asked, `history`, `wide` [rows], `logprobs` [rows],
    `top_ids` and `top_logprobs` [rows, k], best first.
    """
    if variant.biased or variant.penalties:
        logits = _process(variant, logits.astype(mx.float32), arrays)
    if variant.normalise:
        logits = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    unmasked = logits
    if variant.masked:
        logits = _masked(variant, logits, arrays["mask"])
    if variant.greedy:
        tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
    else:
        tokens = mx.zeros(logits.shape[:1], mx.int32)
    out: dict[str, mx.array] = {}
    scores = logits.astype(mx.float32)
    if variant.whole:
        rows, mine, own = _only(arrays, scores, "whole")
        drawn = _draw_whole(variant, mine, own)
        tokens = _put(tokens, rows, drawn, arrays["is_whole"])
    for group, count in enumerate(variant.candidates):
        rows, mine, own = _only(arrays, scores, f"candidate_{group}")
        drawn, wide = _draw_candidates(variant, count, mine, own)
        are = arrays[f"is_candidate_{group}"]
        tokens = _put(tokens, rows, drawn, are)
        if wide is not None:
            others = out.get("wide", mx.zeros(tokens.shape, mx.bool_))
            out["wide"] = _put(others, rows, wide, are)
    out["tokens"] = tokens
    if variant.penalties:
        out["history"] = mx.concatenate([arrays["history"][:, 1:], tokens[:, None]], axis=1)
    if variant.num_logprobs >= 0:
        _report_logprobs(variant, unmasked.astype(mx.float32), tokens, out)
    return out


def _masked(variant: Variant, logits: mx.array, mask: mx.array) -> mx.array:
    """Return `logits` with -inf wherever `mask`, [rows, words] uint32, has no bit."""
    bits = (mask[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    bits = bits.reshape(mask.shape[0], -1)[:, : variant.vocab_size]
    return mx.where(bits != 0, logits, -mx.inf)


def _only(arrays: Arrays, scores: mx.array, way: str) -> tuple[mx.array | None, mx.array, Arrays]:
    """Return the rows that draw in a way, their scores, and what they asked; None for all rows."""
    rows = arrays.get(f"{way}_listed")
    if rows is None:
        return None, scores, arrays
    asked = {name: arrays[f"{way}_{name}"] for name in BY_ROW}
    own = {**arrays, **asked, "uniforms": mx.take(arrays["uniforms"], rows, axis=0)}
    return rows, mx.take(scores, rows, axis=0), own


def _put(into: mx.array, rows: mx.array | None, values: mx.array, where: mx.array) -> mx.array:
    """Return `into` with `values` in `rows`, or, for all rows, wherever `where` says."""
    if rows is None:
        return mx.where(where, values, into)
    return mx.put_along_axis(into, rows, values, axis=0)


def _process(variant: Variant, logits: mx.array, arrays: Arrays) -> mx.array:
    if variant.biased:
        logits = logits.at[arrays["bias_row"], arrays["bias_id"]].add(arrays["bias"])
    if not variant.penalties:
        return logits
    history = arrays["history"]
    num_rows, width = history.shape
    last = history[:, -1:]
    some = last < variant.vocab_size
    for name in variant.penalties:
        penalty, window = arrays[f"{name}_penalty"], arrays[f"{name}_window"]
        inside = (mx.arange(width)[None] >= width - window) & (history < variant.vocab_size)
        # What is outside stands for the last token: what that gets, it may be given twice.
        seen = mx.where(inside, history, mx.where(some, last, 0))
        if name == "frequency":  # once for every occurrence
            rows = mx.broadcast_to(mx.arange(num_rows)[:, None], seen.shape)
            logits = logits.at[rows, seen].subtract(mx.where(inside, penalty, 0.0))
            continue
        score = mx.take_along_axis(logits, seen, axis=1)
        if name == "repetition":
            penalised = mx.where(score < 0, score * penalty, score / penalty)
        else:
            penalised = score - penalty
        # No window is empty, so the last token is inside, where there is one.
        logits = mx.put_along_axis(logits, seen, mx.where(some, penalised, score), axis=1)
    return logits


def _draw_whole(variant: Variant, scores: mx.array, arrays: Arrays) -> mx.array:
    """Draw in vocabulary order: temperature, min-p and XTC, exactly."""
    best = scores.max(axis=-1, keepdims=True)
    kept = scores >= best + arrays["log_min_p"]
    if variant.xtc:
        mass = mx.where(kept, _exp(variant, scores - best), 0.0)
        mass = mass / mass.sum(axis=-1, keepdims=True)
        # One spare place, as below: MLX does not check where a scatter writes.
        exempt = mx.zeros((variant.vocab_size + 1,), mx.bool_)
        exempt = exempt.at[arrays["xtc_exempt"]].add(True)[None, :-1]
        kept = kept & ~_removed_by_xtc(mass, exempt, arrays)
    weights = _exp(variant, (scores - best) * arrays["inverse_temperature"])
    return _invert(mx.where(kept, weights, 0.0), arrays)


def _draw_candidates(
    variant: Variant, count: int, scores: mx.array, arrays: Arrays
) -> tuple[mx.array, mx.array | None]:
    """Draw among the `count` likeliest tokens, best first; say which rows needed more of them."""
    all_ = variant.vocab_size
    if count < all_:
        ids = likeliest(scores, count)
        order = mx.argsort(-mx.take_along_axis(scores, ids, axis=-1), axis=-1)
        ids = mx.take_along_axis(ids, order, axis=-1)
    else:
        ids = mx.argsort(-scores, axis=-1)
    ranked = mx.take_along_axis(scores, ids, axis=-1)
    best, top_p, log_min_p = ranked[:, :1], arrays["top_p"], arrays["log_min_p"]
    total = _exp(variant, scores - best).sum(axis=-1, keepdims=True)
    mass = _exp(variant, ranked - best) / total
    kept = (mx.cumsum(mass, axis=-1) - mass < top_p) & (ranked >= best + log_min_p)
    if variant.masked:
        kept = kept & (ranked > -mx.inf)
    last = kept[:, -1]
    if variant.xtc:
        mass = mx.where(kept, mass, 0.0)
        filtered = (top_p < 1.0) | (log_min_p > -mx.inf)
        mass = mx.where(filtered, mass / mass.sum(axis=-1, keepdims=True), mass)
        exempt = (ids[..., None] == arrays["xtc_exempt"]).any(axis=-1)
        kept = kept & ~_removed_by_xtc(mass, exempt, arrays)
    rank = mx.cumsum(kept.astype(mx.int32), axis=-1)
    wide = last & (rank[:, -1] < arrays["top_k"][:, 0]) if count < all_ else None
    kept = kept & (rank <= arrays["top_k"])
    weights = _exp(variant, (ranked - best) * arrays["inverse_temperature"])
    place = _invert(mx.where(kept, weights, 0.0), arrays)
    return mx.take_along_axis(ids, place[:, None], axis=-1)[:, 0].astype(mx.int32), wide


def likeliest(scores: mx.array, count: int) -> mx.array:
    """Return the ids of each row's `count` largest scores, in any order.

    They are in those `count` groups of tokens whose largest scores are largest, which are few to
    search: a third to a fifth of the work of MLX's partition over all.
    """
    vocab_size = scores.shape[-1]
    size = 1 << int(math.log2(vocab_size / count) / 2)
    while vocab_size % size:
        size //= 2
    if size == 1:
        return _largest(scores, count)
    num_groups = vocab_size // size  # token t is in group t % num_groups
    groups = _largest(scores.reshape(-1, size, num_groups).max(axis=1), count)
    firsts = mx.arange(size, dtype=groups.dtype)[:, None] * num_groups
    ids = (groups[:, None, :] + firsts).reshape(-1, size * count)
    best = _largest(mx.take_along_axis(scores, ids, axis=-1), count)
    return mx.take_along_axis(ids, best, axis=-1)


def _largest(scores: mx.array, count: int) -> mx.array:
    """Return the places of each row's `count` largest scores."""
    rest = scores.shape[-1] - count
    return mx.argpartition(scores, kth=rest, axis=-1)[:, rest:] if rest else mx.argsort(scores)


def _removed_by_xtc(mass: mx.array, exempt: mx.array, arrays: Arrays) -> mx.array:
    """Return the tokens that XTC removes: all above the threshold but the least likely."""
    above = mass > arrays["xtc_threshold"]
    least = mx.where(above, mass, mx.inf).min(axis=-1, keepdims=True)
    coin = arrays["uniforms"][:, 1:]
    return (mass > least) & (coin < arrays["xtc_probability"]) & ~exempt


def _invert(weights: mx.array, arrays: Arrays) -> mx.array:
    """Return the first place whose cumulative weight exceeds uniform x total: [rows].

    Never a place of weight 0: the product is kept from reaching the total, as rounding may.
    """
    cumulative = mx.cumsum(weights, axis=-1)
    reach = mx.minimum(arrays["uniforms"][:, :1], _BELOW) * cumulative[:, -1:]
    return (cumulative <= reach).sum(axis=-1).astype(mx.int32)


def _report_logprobs(
    variant: Variant, scores: mx.array, tokens: mx.array, out: dict[str, mx.array]
) -> None:
    best = scores.max(axis=-1, keepdims=True)
    total = best + mx.log(_exp(variant, scores - best).sum(axis=-1, keepdims=True))
    out["logprobs"] = (mx.take_along_axis(scores, tokens[:, None], axis=-1) - total)[:, 0]
    count = min(variant.num_logprobs, variant.vocab_size)
    if not count:
        return
    if count < variant.vocab_size:
        top = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
    else:
        top = mx.broadcast_to(mx.arange(count), scores.shape)
    top_logprobs = mx.take_along_axis(scores, top, axis=-1) - total
    order = mx.argsort(-top_logprobs, axis=-1)
    out["top_ids"] = mx.take_along_axis(top, order, axis=-1)
    out["top_logprobs"] = mx.take_along_axis(top_logprobs, order, axis=-1)


def _exp(variant: Variant, x: mx.array) -> mx.array:
    """Return exp(x) for x <= 0, float32."""
    return quick_exp(x) if variant.quick_exp and x.shape[-1] > _FEW else mx.exp(x)
