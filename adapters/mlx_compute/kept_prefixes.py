"""Prefix state in RAM: blocks and boundaries, copied out of rows and lent to rows.

A copy belongs to nobody's row: it has buffers of its own, so that it pins nothing, and is computed
when it is made.  Rows that borrow it get arrays of their own at their first write.  What an array
holds as bfloat16 is kept as the same bits in uint16, which other threads can read as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from msgspec import Struct

from mlxbun.adapters.mlx_compute.cut_layers import cut_layers, state_from
from mlxbun.domain.blocks import BLOCK, BlockKey, BlockLost, Tensor

# safetensors' name: MLX's type, and the type that its bits are kept as.
_FORMS: dict[str, tuple[mx.Dtype, mx.Dtype]] = {
    "F32": (mx.float32, mx.float32),
    "F16": (mx.float16, mx.float16),
    "BF16": (mx.bfloat16, mx.uint16),
    "I64": (mx.int64, mx.int64),
    "I32": (mx.int32, mx.int32),
    "U32": (mx.uint32, mx.uint32),
    "U8": (mx.uint8, mx.uint8),
    "BOOL": (mx.bool_, mx.bool_),
}
_BITS = {mx.float32: mx.uint32, mx.float16: mx.uint16, mx.bfloat16: mx.uint16}
_NAMES = {dtype: name for name, (dtype, _) in _FORMS.items()}
_NUMPY = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


class _Kept(Struct, frozen=True):
    """One array: its bits, evaluated, and what they are (safetensors' name)."""

    bits: mx.array
    dtype: str

    @property
    def array(self) -> mx.array:
        """A new object: writing into it leaves what is kept as it is."""
        return self.bits.view(_FORMS[self.dtype][0])


class KeptPrefixes:
    """Copies by key.  One thread owns it; `tensors` may be called on any."""

    def __init__(self) -> None:
        self._kept: dict[BlockKey, dict[str, _Kept]] = {}

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._kept

    def num_bytes(self) -> int:
        return sum(_bytes_of(kept) for kept in self._kept.values())

    def keep_blocks(self, caches: Sequence[Any], blocks: Sequence[tuple[BlockKey, int]]) -> int:
        """Copy blocks of BLOCK tokens from plain KVCaches; return the bytes of one.

        `blocks` are (key, first token), in order and without gaps.
        """
        return self._keep(_cut(caches, blocks, blocks[-1][1] + BLOCK))[0]

    def keep_part(self, caches: Sequence[Any], key: BlockKey, start: int, num_tokens: int) -> int:
        """Copy some tokens from plain KVCaches as one block of any length; return its bytes."""
        return self._keep(_cut(caches, [(key, start)], start + num_tokens))[0] if num_tokens else 0

    def keep_boundary(
        self,
        caches: Sequence[Any],
        key: BlockKey,
        start: int,
        num_tokens: int,
        blocks: Sequence[tuple[BlockKey, int]] = (),
    ) -> list[int]:
        """Copy the state of caches of any kind, of `num_tokens` tokens; return its bytes.

        Of layers that can be cut only what follows the first `start` tokens is copied, and of
        what is before them `blocks`, as in `keep_blocks`; the bytes of these come first.  All of
        it is kept, or nothing.
        """
        copies = _cut(cut_layers(caches, num_tokens), blocks, start) if blocks else {}
        whole: dict[str, _Kept] = {}
        for number, cache in enumerate(caches):
            state = state_from(cache, start, num_tokens)
            leaves: Any = tree_flatten(state)
            for path, leaf in leaves:
                kind, array = _as_array(leaf)
                whole[f"{number}:{path}{kind}"] = _as_bits(array)
        return self._keep(copies | {key: whole})

    def _keep(self, copies: dict[BlockKey, dict[str, _Kept]]) -> list[int]:
        mx.eval([one.bits for copy in copies.values() for one in copy.values()])
        self._kept |= copies
        return [_bytes_of(copy) for copy in copies.values()]

    def lend_blocks(self, keys: Sequence[BlockKey], caches: Sequence[Any]) -> None:
        """Fill empty plain KVCaches with the tokens of `keys`, in order."""
        blocks = [self._kept[key] for key in keys]
        for of in {name.partition(".")[0] for name in blocks[0]}:
            keys_of, values_of = (
                mx.concatenate([block[f"{of}.{side}"].array for block in blocks], axis=2)
                for side in ("keys", "values")
            )
            for place, layer in enumerate(map(int, of.split(","))):
                own = keys_of[place][None], values_of[place][None]
                caches[layer].state = (*own, keys_of.shape[2])

    def lend_boundary(
        self, keys: Sequence[BlockKey], caches: Sequence[Any], num_tokens: int
    ) -> list[Any]:
        """Return caches of the kinds of `caches`, in the state of `num_tokens` tokens.

        The last of `keys` is a boundary's; those before it are the blocks of what it leaves out.
        Raises ValueError where they are not.
        """
        *before, key = keys
        leaves: list[list[tuple[str, Any]]] = [[] for _ in caches]
        for name, kept in self._kept[key].items():
            number, _, place = name.partition(":")
            path, _, kind = place.partition("#")
            leaves[int(number)].append((path, _as_leaf(kind, kept)))
        lent = [
            type(cache).from_state(tree_unflatten(mine))
            for cache, mine in zip(caches, leaves, strict=True)
        ]
        self._prepend(before, cut_layers(lent, num_tokens), num_tokens)
        return lent

    def _prepend(self, keys: Sequence[BlockKey], caches: Sequence[Any], num_tokens: int) -> None:
        """Put the tokens of blocks before those that plain KVCaches have."""
        blocks = [self._kept[key] for key in keys]
        names = {name.partition(".")[0] for name in blocks[0]} if blocks else set[str]()
        places = {layer: (of, i) for of in names for i, layer in enumerate(of.split(","))}
        num_before = sum(next(iter(block.values())).bits.shape[2] for block in blocks)
        for layer, cache in enumerate(caches):
            if cache.keys.shape[2] + num_before != num_tokens:
                raise ValueError("these blocks are not what a boundary leaves out")
            if not blocks:
                continue
            of, place = places[str(layer)]
            keys_of, values_of = (
                mx.concatenate(
                    [*(block[f"{of}.{side}"].array[place][None] for block in blocks), tail], axis=2
                )
                for side, tail in (("keys", cache.keys), ("values", cache.values))
            )
            cache.state = (keys_of, values_of, num_tokens)

    def forget(self, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self._kept.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()

    def tensors(self, key: BlockKey) -> list[Tensor]:
        """Return what is kept under `key` as bytes, without a copy.  Raises BlockLost."""
        kept = self._kept.get(key)
        if kept is None:
            raise BlockLost("it left RAM before it was read")
        return [
            Tensor(name, one.dtype, tuple(one.bits.shape), _bytes(one.bits))
            for name, one in kept.items()
        ]

    def adopt(self, key: BlockKey, tensors: Sequence[Tensor]) -> int:
        """Keep what was read from a disk; return its bytes.  Raises BlockLost."""
        kept: dict[str, _Kept] = {}
        for tensor in tensors:
            if tensor.dtype not in _NUMPY:
                raise BlockLost(f"{tensor.name} is of the type {tensor.dtype}")
            try:
                flat: Any = np.frombuffer(tensor.data, dtype=_NUMPY[tensor.dtype])
                kept[tensor.name] = _Kept(mx.array(flat.reshape(tensor.shape)), tensor.dtype)
            except ValueError as error:
                raise BlockLost(f"{tensor.name} is not of its shape: {error}") from error
        mx.eval([one.bits for one in kept.values()])
        self._kept[key] = kept
        return _bytes_of(kept)


def _cut(
    caches: Sequence[Any], blocks: Sequence[tuple[BlockKey, int]], stop: int
) -> dict[BlockKey, dict[str, _Kept]]:
    """Return copies of tokens of plain KVCaches, up to `stop`, a block each; not computed yet.

    Layers of one shape are stacked, so that the work does not grow with the number of layers
    times blocks.
    """
    start = blocks[0][1]
    copies: dict[BlockKey, dict[str, _Kept]] = {key: {} for key, _ in blocks}
    for layers in _alike(caches):
        of = ",".join(map(str, layers))
        for side in ("keys", "values"):
            stacked = mx.stack([getattr(caches[i], side)[0, :, start:stop] for i in layers])
            parts = mx.split(stacked, len(blocks), axis=2)
            for (key, _), part in zip(blocks, parts, strict=True):
                copies[key][f"{of}.{side}"] = _as_bits(_copied(part))
    return copies


def _bytes_of(kept: dict[str, _Kept]) -> int:
    return sum(one.bits.nbytes for one in kept.values())


def _as_bits(array: mx.array) -> _Kept:
    name = _NAMES[array.dtype]
    dtype, form = _FORMS[name]
    return _Kept(array if dtype == form else array.view(form), name)


def _copied(array: mx.array) -> mx.array:
    """Return the same bits in a buffer of their own, lazy and contiguous.

    `mx.contiguous` alone is no copy where a slice lies in one piece, as that of one head does: it
    would hold all of the row's buffer.  The operation alone keeps the order of dense input.
    """
    bits = array.view(_BITS.get(array.dtype, array.dtype))
    own = mx.bitwise_or(bits, mx.zeros((), bits.dtype))
    return mx.contiguous(own).view(array.dtype)


def _alike(caches: Sequence[Any]) -> list[list[int]]:
    """Return the layers of each shape: heads and sizes of keys and values."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for layer, cache in enumerate(caches):
        k, v = cache.keys, cache.values
        found.setdefault((k.shape[1], k.shape[3], v.shape[1], v.shape[3], k.dtype), []).append(
            layer
        )
    return list(found.values())


def _as_array(leaf: Any) -> tuple[str, mx.array]:
    """Return what kind of leaf of a state this is, for its name, and an array that says it."""
    if isinstance(leaf, mx.array):
        return "", _copied(leaf)
    if leaf is None:
        return "#none", mx.zeros((0,), mx.uint8)
    if isinstance(leaf, str):
        return "#str", mx.array(list(leaf.encode()), dtype=mx.uint8)
    return "#int", mx.array([int(leaf)], dtype=mx.int64)


def _as_leaf(kind: str, kept: _Kept) -> Any:
    match kind:
        case "none":
            return None
        case "str":
            return bytes(kept.bits).decode()
        case "int":
            return int(str(kept.bits.item()))
        case _:
            return kept.array


def _bytes(array: mx.array) -> memoryview:
    view: Any = array  # it offers a buffer, which its type does not say
    return memoryview(view).cast("B") if array.size else memoryview(b"")
