"""A decode step of a whole model over slots, in few of MLX's own operations, on a CPU.

There an operation costs the host some microseconds whatever it computes, and a view as much as
work.  Model code needs views at every turn: a token axis of one is flattened before each product
and put back after it, heads are transposed past that axis, weights are transposed, and angles
made anew.  Here a state is [slots, k] all along, residuals are added by the product, and
rotations are looked up: 29 operations a layer instead of some 50.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.fused_decode.decoder import Decoder, Layer, Projection
from mlxbun.adapters.mlx_compute.loading import on_cpu
from mlxbun.adapters.mlx_compute.one_row_products import pieces_of
from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel
from mlxbun.adapters.mlx_compute.slot_cache import GroupedSlotCache, SlotCache

_POSITIONS = 4096  # whose rotations are computed at once
_SMALL = 1 << 18  # numbers of a weight by which rows of tokens are as quick as columns


class ShortStep:
    """The step of one model, called while it is traced."""

    def __init__(self, decoder: Decoder) -> None:
        """Raises UnsuitableModel for a device or a precision that gains nothing."""
        if not on_cpu():
            raise UnsuitableModel("steps of few operations are for a CPU")
        if decoder.embedding.dtype != mx.float32:
            raise UnsuitableModel(f"its weights are {decoder.embedding.dtype}")
        self._decoder = decoder
        self._layers = [_ShortLayer(layer, decoder) for layer in decoder.layers]
        self._head = _Product(decoder.head)
        self._turns = _Turns(decoder)

    def __call__(
        self,
        tokens: mx.array,
        offset: mx.array,
        caches: Sequence[SlotCache | GroupedSlotCache],
        columns: int,
    ) -> mx.array:
        """Return logits [slots, vocab] for one token a slot, written into `caches`, by layer.

        `offset` [slots] is each one's position, below `columns`.
        """
        model = self._decoder
        turns = self._turns.at(offset, columns)
        state = model.embedding[tokens]
        for layer, cache in zip(self._layers, caches, strict=True):
            state = layer(state, turns, cache)
        return self._head.of(mx.fast.rms_norm(state, model.last_gain, model.eps))


class _Turned(Struct, frozen=True):
    """What the slots' queries and keys are rotated by.

    `cosines` [slots, 1, 1, half] and `sines` [slots, 1, 2, half], the first of a pair negative.
    """

    cosines: mx.array
    sines: mx.array


class _ShortLayer:
    def __init__(self, layer: Layer, model: Decoder) -> None:
        self._layer, self._model = layer, model
        self._joint, self._out = _Product(layer.joint), _Product(layer.out)
        small = layer.gated.weight.size <= _SMALL
        self._mlp = (_Product(layer.gated), _Product(layer.down)) if small else None
        self._rotated = model.num_heads + model.num_key_heads
        self._gains = None if layer.gains is None else _by_head(layer.gains, model)

    def __call__(
        self, state: mx.array, turns: _Turned, cache: SlotCache | GroupedSlotCache
    ) -> mx.array:
        """Return the state [slots, k] after the layer."""
        layer, eps = self._layer, self._model.eps
        joint = self._joint.of(mx.fast.rms_norm(state, layer.input_gain, eps))
        state = self._out.added(self._attended(joint, turns, cache), state)
        x = mx.fast.rms_norm(state, layer.mlp_gain, eps)
        if self._mlp is None:
            out: mx.array = layer.mlp(x)
            return state + out
        gated, down = self._mlp
        gate, up = mx.split(gated.of(x), 2, axis=-1)
        return down.added(gate * mx.sigmoid(gate) * up, state)

    def _attended(
        self, joint: mx.array, turns: _Turned, cache: SlotCache | GroupedSlotCache
    ) -> mx.array:
        """Return attention [slots, heads * dim] by `joint` [slots, all heads * dim]."""
        model, slots = self._model, len(joint)
        each = model.num_heads // model.num_key_heads
        both, values = mx.split(joint, [self._rotated * model.dim], axis=-1)
        if self._gains is not None:
            heads = both.reshape(slots, self._rotated, model.dim)
            both = mx.fast.rms_norm(heads, None, model.eps) * self._gains
        pairs = both.reshape(slots, self._rotated, 2, model.dim // 2)
        turned = pairs * turns.cosines + pairs[:, :, ::-1] * turns.sines
        queries, keys = mx.split(turned, [model.num_heads], axis=1)
        cache.update_and_fetch(
            keys.reshape(slots, model.num_key_heads, 1, model.dim),
            values.reshape(slots, model.num_key_heads, 1, model.dim),
        )
        grouped = queries.reshape(slots, model.num_key_heads, each, model.dim)
        return cache.attend_grouped(grouped, model.scale).reshape(slots, -1)


class _Product:
    """x @ weight.T + bias, where one row and a large weight are multiplied in pieces."""

    def __init__(self, by: Projection) -> None:
        self._by, self._pieces = by, pieces_of(by.weight)

    def of(self, x: mx.array) -> mx.array:
        by, pieces = self._by, self._pieces
        if pieces is not None and pieces.suits(x):
            return pieces.times(x) if by.bias is None else pieces.times(x) + by.bias
        return x @ by.transposed if by.bias is None else mx.addmm(by.bias, x, by.transposed)

    def added(self, x: mx.array, to: mx.array) -> mx.array:
        """Return `to` + x @ weight.T; for a projection without bias."""
        if self._pieces is not None and self._pieces.suits(x):
            return to + self._pieces.times(x)
        return mx.addmm(to, x, self._by.transposed)


class _Turns:
    """Rotations by position: what the model's own module makes of (1, 0) at each."""

    def __init__(self, model: Decoder) -> None:
        self._rope, self._dim = model.rope, model.dim
        self._table = mx.zeros((0,))  # [positions, 1, 3, half]: cosines, sines turned over, sines

    def at(self, offset: mx.array, columns: int) -> _Turned:
        """Return the rotations of positions [slots], all below `columns`."""
        if len(self._table) < columns:
            self._fill(1 << (columns - 1).bit_length())
        cosines, sines = mx.split(self._table[offset], [1], axis=2)
        return _Turned(cosines, sines)

    def _fill(self, num_positions: int) -> None:
        """Ask the module as a step does, for one token a row: some look at how many there are."""
        parts = [self._table] if len(self._table) else []
        for first in range(len(self._table), num_positions, _POSITIONS):
            positions = mx.arange(first, min(first + _POSITIONS, num_positions))
            half = (len(positions), 1, 1, self._dim // 2)
            pairs = mx.concatenate([mx.ones(half), mx.zeros(half)], axis=-1)
            rotated: mx.array = self._rope(pairs, offset=positions)
            cosines, sines = mx.split(rotated, 2, axis=-1)
            parts.append(mx.concatenate([cosines, -sines, sines], axis=2))
        self._table = mx.concatenate(parts)
        mx.eval(self._table)  # here, and not in the trace of a step


def _by_head(gains: mx.array, model: Decoder) -> mx.array:
    """Return the gains [2, dim] of queries' and keys' norms for each head: [heads, dim]."""
    counts = model.num_heads, model.num_key_heads
    each = [
        mx.broadcast_to(gain, (count, model.dim)) for gain, count in zip(gains, counts, strict=True)
    ]
    by_head = mx.concatenate(each)
    mx.eval(by_head)
    return by_head
