#!/usr/bin/env python3
"""Measures what a join and a leave cost in static slots, beside mlx-lm's batch cache.

    .venv/bin/python scripts/bench/row_states.py --rows 32 --tokens 2048 --json out.json

One random layer of 8 heads x 128; arms take turns, figures are medians of milliseconds.  Ours is
the part of a step that lets rows go and come, with the state evaluated; mlx-lm's is `filter` and
`extend` of BatchKVCache.  `held` is the bytes of the state over those of the tokens that live.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

import mlx.core as mx  # noqa: E402
from mlx_lm.models.cache import BatchKVCache, KVCache  # noqa: E402
from mlx_lm.models.llama import Model, ModelArgs  # noqa: E402

from mlxbun.adapters.bench import cpu  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.mlx_compute.slot_rows import SlotRows  # noqa: E402
from mlxbun.domain.sampling import RequestId  # noqa: E402

HEADS, DIM = 8, 128
JOINS = ("join", "join_full")  # where a slot is empty, and where none is
MIXES = {
    "one row of 8,192 tokens, seven of 64": (8192, *[64] * 7),
    "32 rows of 2,048": (2048,) * 32,
    "33 rows of 2,048": (2048,) * 33,
    "32 rows of 32 to 1,024": tuple(32 * (i + 1) for i in range(32)),
    "8 rows of 16": (16,) * 8,
}


def one_layer(dtype: mx.Dtype) -> Any:
    mx.random.seed(0)
    model = Model(
        ModelArgs(
            model_type="llama", hidden_size=64, num_hidden_layers=1, intermediate_size=64,
            num_attention_heads=HEADS, num_key_value_heads=HEADS, head_dim=DIM,
            rms_norm_eps=1e-5, vocab_size=128, max_position_embeddings=1 << 17,
        )
    )  # fmt: skip
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return model


class Slots:
    """Our batch of rows of equal length.  A row that left comes again under another name."""

    def __init__(self, model: Any, num_rows: int, num_tokens: int) -> None:
        self._states = SlotRows(model)
        self._prompt = mx.zeros((1, num_tokens), mx.int32)
        self._rows = list[RequestId]()
        self._count = 0
        joining = [self._opened() for _ in range(num_rows)]
        self._rows += joining
        first = mx.zeros(num_rows, mx.int32)
        self._tokens = _tokens(self._states.forward((), None, joining, first).logits)
        self.settle()

    def settle(self) -> None:
        mx.eval(self._tokens, self._arrays())

    def leave(self) -> float:
        del self._rows[0]
        return self._timed(lambda: self._states._leave(set(self._rows)))

    def join(self) -> float:
        row = self._opened()
        self._rows.append(row)
        return self._timed(lambda: self._states._join([row]))

    def step(self) -> float:
        """Decode once, as the rows stand; return milliseconds."""
        self._tokens = mx.zeros(len(self._states.batch), mx.int32)
        begin = time.perf_counter()
        self._tokens = _tokens(self._states.forward(self._rows, self._tokens, (), None).logits)
        self.settle()
        return 1e3 * (time.perf_counter() - begin)

    def groups(self) -> list[tuple[int, int]]:
        return [(shape.slots, shape.columns) for shape in self._states.shapes]

    def _timed(self, change: Callable[[], object]) -> float:
        begin = time.perf_counter()
        change()
        mx.eval(self._arrays())
        return 1e3 * (time.perf_counter() - begin)

    def _arrays(self) -> list[Any]:
        return [group.state for group in self._states._groups]

    def _opened(self) -> RequestId:
        self._count += 1
        row = RequestId(f"row-{self._count}")
        self._states.open(row)
        mx.eval(self._states.extend(row, self._prompt))
        return row


class BatchCache:
    """mlx-lm's cache of one layer for rows of equal length."""

    def __init__(self, num_rows: int, num_tokens: int, dtype: mx.Dtype) -> None:
        shape = (num_rows, HEADS, num_tokens, DIM)
        self._dtype = dtype
        self._tokens = num_tokens
        self._cache = BatchKVCache([0] * num_rows)
        self._cache.update_and_fetch(mx.ones(shape, dtype), mx.ones(shape, dtype))
        mx.eval(self._cache.state[:4])

    def leave(self) -> float:
        kept = mx.arange(1, len(self._cache.offset))
        return self._timed(lambda: self._cache.filter(kept))

    def join(self) -> float:
        row = BatchCache(1, self._tokens, self._dtype)._cache
        return self._timed(lambda: self._cache.extend(row))

    def _timed(self, change: Callable[[], object]) -> float:
        begin = time.perf_counter()
        change()
        mx.eval(self._cache.state[:4])
        return 1e3 * (time.perf_counter() - begin)


def joins_and_leaves(
    model: Any, num_rows: int, num_tokens: int, dtype: mx.Dtype, rounds: int
) -> dict[str, Any]:
    """Let one row leave and another come, in turns; then let one come to a full batch."""
    ours, theirs = Slots(model, num_rows, num_tokens), BatchCache(num_rows, num_tokens, dtype)
    taken = dict[str, list[float]]()

    def took(name: str, milliseconds: float) -> None:
        taken.setdefault(name, []).append(milliseconds)

    for _ in range(rounds + 1):
        took("ours_leave_ms", ours.leave())
        took("theirs_leave_ms", theirs.leave())
        took("ours_join_ms", ours.join())
        took("theirs_join_ms", theirs.join())
        took("ours_step_ms", ours.step())
    for times in taken.values():
        del times[0]  # what a first run pays once is not measured
    for _ in range(rounds):
        took("ours_join_full_ms", ours.join())
        took("theirs_join_full_ms", theirs.join())
        ours.leave()
        theirs.leave()
    figures: dict[str, Any] = {name: median(times) for name, times in taken.items()}
    joins = [figures[f"ours_{join}_ms"] / figures[f"theirs_{join}_ms"] for join in JOINS]
    figures |= {"rows": num_rows, "tokens": num_tokens, "groups": ours.groups()}
    figures |= {"join_ratio": max(joins)}
    figures |= {"leave_ratio": figures["ours_leave_ms"] / figures["theirs_leave_ms"]}
    return figures


def held(model: Any, lengths: Sequence[int]) -> dict[str, float | list[tuple[int, int]]]:
    """Return bytes over live bytes after two steps.  Nothing is computed for it."""
    states = SlotRows(model)
    rows = [RequestId(str(i)) for i in range(len(lengths))]
    caches = []
    keys = mx.zeros((0,))
    for row, length in zip(rows, lengths, strict=True):
        states.open(row)
        keys, _ = states.extend(row, mx.zeros((1, length - 1), mx.int32))
        cache = KVCache()
        cache.update_and_fetch(keys, keys)
        caches.append(cache)
    states.forward((), None, rows, mx.zeros(len(rows), mx.int32))
    states.forward(rows, mx.zeros(len(states.batch), mx.int32), (), None)
    one = mx.zeros((len(rows), HEADS, 1, DIM), keys.dtype)
    merged = BatchKVCache.merge(caches)
    for _ in range(2):
        merged.update_and_fetch(one, one)
    live = (sum(lengths) + len(rows)) * 2 * HEADS * DIM * keys.dtype.size
    groups = [(shape.slots, shape.columns) for shape in states.shapes]
    return {"ours": states.num_bytes() / live, "theirs": merged.nbytes / live, "groups": groups}


def _tokens(logits: mx.array) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", default="8,32", help="batch sizes (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="a row (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--json", metavar="FILE", help="write the results there; - is stdout")
    args = parser.parse_args()

    dtype = {"float32": mx.float32, "float16": mx.float16}[args.dtype]
    model = one_layer(dtype)
    changes = []
    for size in map(int, args.rows.split(",")):
        changes.append(joins_and_leaves(model, size, args.tokens, dtype, args.rounds))
        print(line(changes[-1]), file=sys.stderr)
        mx.clear_cache()
    mixes = {name: held(model, lengths) for name, lengths in MIXES.items()}
    for name, figures in mixes.items():
        print("held, {}: {ours:.2f}x, mlx-lm {theirs:.2f}x".format(name, **figures),
              file=sys.stderr)  # fmt: skip
    found = {
        "machine": cpu.machine(),
        "blas": BLAS.kind,
        "load_average": cpu.load_average(),
        "mlx": version("mlx"),
        "dtype": args.dtype,
        "joins_and_leaves": changes,
        "held": mixes,
    }
    if args.json == "-":
        print(json.dumps(found))
    elif args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


def line(figures: dict[str, Any]) -> str:
    form = (
        "{rows:>3} rows x {tokens}: join {ours_join_ms:.2f} ms, to a full batch "
        "{ours_join_full_ms:.2f}, mlx-lm {theirs_join_ms:.1f} and {theirs_join_full_ms:.1f}; "
        "leave {ours_leave_ms:.2f} ms, mlx-lm {theirs_leave_ms:.1f}; a step {ours_step_ms:.1f}"
    )
    return form.format_map(figures)


if __name__ == "__main__":
    sys.exit(main())
