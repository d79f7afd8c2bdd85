"""What a model must be for its decode step to be fused, and the weights that such a model has.

The kind that most models are of: blocks of attention and a gated MLP, each behind an RMS norm and
added to what it read; rotary positions, perhaps norms of queries and keys, perhaps biases of their
projections.  A model of any other make keeps its own code.

What a model computes beside its modules, a multiplier or a cap, is in its code alone.  So only
those of mlx-lm's files count whose models were compared (tests/integration/test_fused_decode.py),
and every model is tried at load (layouts.choose).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_flatten
from msgspec import Struct
from msgspec.structs import astuple

from mlxbun.adapters.mlx_compute.gated_mlp import GatedMlp
from mlxbun.adapters.mlx_compute.joint_projections import Part
from mlxbun.adapters.mlx_compute.row_states import UnsuitableModel

COMPARED = ("internlm3", "llama", "mimo", "nanbeige", "qwen2", "qwen3", "seed_oss", "smollm3")
_BLOCK = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm", "rope"}
_MLP = {"gate_proj", "up_proj", "down_proj"}
_POSITIONS = (0, 1, 77, 4000)
_TOLERANCE = 1e-2  # of the largest number: half precision, and angles that rounded otherwise


class Projection(Struct, frozen=True):
    """x @ weight.T + bias.  `weight` [n, k], `transposed` a view of it, `bias` [n]."""

    weight: mx.array
    transposed: mx.array
    bias: mx.array | None = None


class Layer(Struct, frozen=True):
    """A block's weights.  `joint` is queries', keys' and values' projection, `gated` gate's and
    up's; `gains` [2, dim] are those of queries' and keys' norms, `input_gain` and `mlp_gain` the
    others'.  `mlp` is the module of `gated` and `down`."""

    input_gain: mx.array
    joint: Projection
    gains: mx.array | None
    out: Projection
    mlp_gain: mx.array
    gated: Projection
    down: Projection
    mlp: Any


class Decoder(Struct, frozen=True):
    """A model's weights, by layer.  `scale` is the attention's, `eps` every norm's.

    `rope` is the module that rotates [rows, heads, tokens, dim] in every layer.  `num_heads` are
    those of queries, `num_key_heads` those of keys.
    """

    embedding: mx.array
    layers: tuple[Layer, ...]
    last_gain: mx.array
    head: Projection
    rope: Any
    num_heads: int
    num_key_heads: int
    dim: int
    scale: float
    eps: float

    def arrays(self) -> Iterator[mx.array]:
        """Yield every weight that a step reads."""
        values = [value for part in (self, *self.layers) for value in astuple(part)]
        for value in values:
            parts = astuple(value) if isinstance(value, Projection) else (value,)
            yield from (part for part in parts if isinstance(part, mx.array))


def decoder_of(model: Any) -> Decoder:
    """Return the weights of `model`, whose projections are joined.

    Raises UnsuitableModel, which says what does not fit.
    """
    file = type(model).__module__.rpartition(".")[2]
    if file not in COMPARED:
        raise UnsuitableModel(f"mlx-lm's {file} was not compared with a fused step")
    inner = _only(model, {"model", "lm_head"}, "the model").model
    _only(inner, {"embed_tokens", "layers", "norm"}, "the model")
    if type(inner.embed_tokens) is not Embedding:
        raise UnsuitableModel("its embedding is not a plain one")
    blocks = list(inner.layers)
    attentions = [block.self_attn for block in blocks]
    first = attentions[0]
    layers = tuple(_layer(block) for block in blocks)
    norms = [norm for block in blocks for norm in _norms(block)] + [inner.norm]
    if any(type(norm) is not RMSNorm for norm in norms):
        raise UnsuitableModel("it has norms that are not plain RMS norms")
    if len({norm.eps for norm in norms}) > 1:
        raise UnsuitableModel("its norms differ in what they add")
    if len({attention.scale for attention in attentions}) > 1:
        raise UnsuitableModel("its layers' attentions differ in scale")
    _check_gate(layers[0])
    num_heads = first.n_heads + 2 * first.n_kv_heads
    dim, left = divmod(len(layers[0].joint.weight), num_heads)
    if left:
        raise UnsuitableModel("its heads are not of one size")
    _check_rotations([attention.rope for attention in attentions], dim)
    head = getattr(model, "lm_head", None)
    tied = inner.embed_tokens.weight
    return Decoder(
        embedding=inner.embed_tokens.weight,
        layers=layers,
        last_gain=inner.norm.weight,
        head=Projection(tied, tied.T) if head is None else _projection([head]),
        rope=first.rope,
        num_heads=int(first.n_heads),
        num_key_heads=int(first.n_kv_heads),
        dim=dim,
        scale=float(first.scale),
        eps=float(inner.norm.eps),
    )


def turns_of(rope: Any, positions: mx.array, dim: int) -> mx.array:
    """Return the cosines and then the sines [rows, dim] float32 by which `rope` rotates.

    What it makes of (1, 0) says it for each pair, whatever frequencies or scales it has.
    """
    rotated: mx.array = rope(units(len(positions), dim), offset=positions)
    return rotated.reshape(len(positions), dim)


@cache
def units(num_rows: int, dim: int) -> mx.array:
    """Return [rows, 1, 1, dim]: ones and then zeros.

    MLX 0.32.4 rotates a broadcast array wrongly on CUDA, so every row is there.
    """
    half = (num_rows, 1, 1, dim // 2)
    rows = mx.concatenate([mx.ones(half), mx.zeros(half)], axis=-1)
    mx.eval(rows)  # here, and not in the trace of a step
    return rows


def _layer(block: Any) -> Layer:
    _only(block, _BLOCK, "a block")
    attention = _only(block.self_attn, _ATTENTION, "its attention")
    gated, down = _mlp(block.mlp)
    query_norm: Any = getattr(attention, "q_norm", None)
    key_norm: Any = getattr(attention, "k_norm", None)
    if (query_norm is None) != (key_norm is None):
        raise UnsuitableModel("it norms queries or keys alone")
    return Layer(
        input_gain=block.input_layernorm.weight,
        joint=_projection([attention.q_proj, attention.k_proj, attention.v_proj]),
        gains=None if query_norm is None else _stacked(query_norm.weight, key_norm.weight),
        out=_unbiased(_projection([attention.o_proj])),
        mlp_gain=block.post_attention_layernorm.weight,
        gated=gated,
        down=down,
        mlp=block.mlp,
    )


def _mlp(mlp: Any) -> tuple[Projection, Projection]:
    if isinstance(mlp, GatedMlp):
        return Projection(mlp.both, mlp.both.T), Projection(mlp.down, mlp.down.T)
    _only(mlp, _MLP, "its MLP")
    gated, down = _projection([mlp.gate_proj, mlp.up_proj]), _projection([mlp.down_proj])
    return _unbiased(gated), _unbiased(down)


def _stacked(queries: mx.array, keys: mx.array) -> mx.array:
    gains = mx.stack([queries, keys])
    mx.eval(gains)  # here, and not in the trace of a step
    return gains


def _norms(block: Any) -> list[Any]:
    of_heads = [getattr(block.self_attn, name, None) for name in ("q_norm", "k_norm")]
    return [
        block.input_layernorm,
        block.post_attention_layernorm,
        *(norm for norm in of_heads if norm is not None),
    ]


def _only(module: Any, names: set[str], what: str) -> Any:
    """Return `module`, in which nothing of another name holds weights."""
    others = sorted(
        name for name, value in module.items() if name not in names and _has_weights(value)
    )
    if others:
        raise UnsuitableModel(f"{what} has {', '.join(others)}")
    return module


def _has_weights(value: Any) -> bool:
    leaves: Any = tree_flatten(value)
    return any(isinstance(leaf, mx.array) for _, leaf in leaves)


def _projection(modules: Sequence[Any]) -> Projection:
    """Return the product that `modules` are: one plain projection, or all of a joint one."""
    first = modules[0]
    if isinstance(first, Part):
        joint = first.joint
        if [getattr(m, "joint", None) for m in modules] == [joint] * joint.num_parts:
            if joint.is_quantised:
                raise UnsuitableModel("its weights are quantised")
            return Projection(joint.weight, joint.transposed, joint.bias)
    elif len(modules) == 1 and type(first) is Linear:
        return Projection(first.weight, first.weight.T, first.get("bias"))
    raise UnsuitableModel("projections of one input are not joined, or quantised")


def _unbiased(projection: Projection) -> Projection:
    if projection.bias is not None:
        raise UnsuitableModel("projections other than queries', keys' and values' have a bias")
    return projection


def _check_gate(layer: Layer) -> None:
    weight = layer.gated.weight
    x = mx.random.normal((2, weight.shape[1]), key=mx.random.key(0)).astype(weight.dtype)
    gate, up = mx.split(x @ layer.gated.transposed, 2, axis=-1)
    made = (gate * mx.sigmoid(gate) * up) @ layer.down.transposed
    _check(made, layer.mlp(x), "its MLP is not gated by SiLU")


def _check_rotations(ropes: Sequence[Any], dim: int) -> None:
    """See that all layers rotate alike, by pairs half a head apart."""
    positions = mx.array(_POSITIONS)
    x = mx.random.normal((len(_POSITIONS), 1, 1, dim), key=mx.random.key(1))
    turns = turns_of(ropes[0], positions, dim)[:, None, None, :]
    cosines, sines = mx.split(turns, 2, axis=-1)
    left, right = mx.split(x, 2, axis=-1)
    want = mx.concatenate([left * cosines - right * sines, left * sines + right * cosines], axis=-1)
    for rope in ropes:
        _check(want, rope(x, offset=positions), "its layers rotate in ways of their own")


def _check(found: mx.array, want: mx.array, why: str) -> None:
    apart, most = mx.abs(found - want).max(), mx.abs(want).max()
    if not (apart <= _TOLERANCE * most).item():
        raise UnsuitableModel(why)
