"""A decode step of a whole model: five operations a layer, of kernels that know each other.

Between blocks a hidden state goes in three forms at once: as it is, for the residual; times the
next norm's gain; and as sums of squares, from which the next product takes what the norm lacks.
So no norm, addition, rotation or activation is an operation of its own.

Where rows are many and a weight is large, MLX's own product is faster than ours, and the norm, the
gate and the sum around it are MLX's too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
from msgspec import Struct

from mlxbun.adapters.mlx_compute.fused_decode.decoder import Decoder, Layer, Projection, turns_of


class Flow(Struct, frozen=True):
    """A hidden state [rows, k] on its way to the norm with `gain`.

    `packed` [3, rows, k] has the state, and what a product by our kernels needs of it (see
    few_rows_source); after a product of MLX's there is `plain` [rows, k] instead.
    """

    gain: mx.array
    packed: mx.array | None = None
    plain: mx.array | None = None

    @property
    def state(self) -> mx.array:
        if self.packed is not None:
            return self.packed[0]
        assert self.plain is not None
        return self.plain


class FusedKernels(Protocol):
    """What `fused_decode.kernels` offers; tests have a double that needs no GPU."""

    def unsupported(self, decoder: Decoder) -> str | None:
        """Return why a model cannot be served by these, None if it can."""
        ...

    def pays(self, num_rows: int, weight: mx.array) -> bool:
        """Return whether these are faster than MLX's own product."""
        ...

    def begin(self, tokens: mx.array, embedding: mx.array, gain: mx.array) -> Flow: ...

    def normed(self, flow: Flow, weight: mx.array, bias: mx.array | None, eps: float) -> mx.array:
        """Return norm(flow) @ weight.T + bias."""
        ...

    def gated(self, flow: Flow, weight: mx.array, eps: float) -> mx.array:
        """Return silu(a) * b of norm(flow) @ weight.T = [a, b]."""
        ...

    def added(self, x: mx.array, weight: mx.array, flow: Flow, gain: mx.array) -> Flow:
        """Return the packed `flow` + x @ weight.T on its way to the norm with `gain`."""
        ...

    def attend_joint(
        self,
        joint: mx.array,
        turns: mx.array,
        gains: mx.array | None,
        keys: mx.array,
        values: mx.array,
        places: mx.array,
        scale: float,
        eps: float,
    ) -> mx.array:
        """See paged_attention.attend_joint."""
        ...


class FusedStep:
    """The step of one model, called while it is traced."""

    def __init__(self, decoder: Decoder, kernels: FusedKernels) -> None:
        self._decoder = decoder
        self._kernels = kernels

    def __call__(
        self,
        tokens: mx.array,
        lengths: mx.array,
        places: mx.array,
        pool: tuple[Sequence[mx.array], Sequence[mx.array]],
    ) -> mx.array:
        """Return logits [rows, vocab] for one token a row, put into the pool.

        `lengths` [rows] is how many each row has there, `places` [rows, 1 + pages] that number
        and which pages they are.
        """
        model, kernels = self._decoder, self._kernels
        turns = turns_of(model.rope, lengths, model.dim)
        flow = kernels.begin(tokens, model.embedding, model.layers[0].input_gain)
        next_gains = [layer.input_gain for layer in model.layers[1:]] + [model.last_gain]
        for layer, gain, keys, values in zip(model.layers, next_gains, *pool, strict=True):
            joint = self._normed(flow, layer.joint)
            seen = kernels.attend_joint(
                joint, turns, layer.gains, keys, values, places, model.scale, model.eps
            )
            flow = self._added(seen, layer.out, flow, layer.mlp_gain)
            flow = self._added(self._gated(flow, layer), layer.down, flow, gain)
        return self._normed(flow, model.head)

    def _normed(self, flow: Flow, by: Projection) -> mx.array:
        if self._is_ours(flow, by):
            return self._kernels.normed(flow, by.weight, by.bias, self._decoder.eps)
        x = mx.fast.rms_norm(flow.state, flow.gain, self._decoder.eps)
        return x @ by.transposed if by.bias is None else mx.addmm(by.bias, x, by.transposed)

    def _gated(self, flow: Flow, layer: Layer) -> mx.array:
        if self._is_ours(flow, layer.gated):
            return self._kernels.gated(flow, layer.gated.weight, self._decoder.eps)
        gate, up = mx.split(self._normed(flow, layer.gated), 2, axis=-1)
        return gate * mx.sigmoid(gate) * up

    def _added(self, x: mx.array, by: Projection, flow: Flow, gain: mx.array) -> Flow:
        if flow.packed is not None and self._kernels.pays(len(x), by.weight):
            return self._kernels.added(x, by.weight, flow, gain)
        return Flow(gain, plain=mx.addmm(flow.state, x, by.transposed))

    def _is_ours(self, flow: Flow, by: Projection) -> bool:
        packed = flow.packed
        return packed is not None and self._kernels.pays(packed.shape[1], by.weight)
