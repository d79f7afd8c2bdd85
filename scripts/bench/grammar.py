#!/usr/bin/env python3
"""Measures what a grammar adds to a step, without a model: logits are given, rows are drawn.

    .venv/bin/python scripts/bench/grammar.py --rows 8 --vocab 150000 --json out.json

Arms take turns, a step each; figures are medians of milliseconds a step, for all rows.  `plain`
draws without masks, `ours` moves matchers, fills masks, and draws under them on the device, `host`
does what servers do that mask on the host: it brings the logits there, writes -inf over them with
numpy, and sends them back.

`host_part` of ours is moving, filling and sending: all that a grammar adds where there are no
tensors (a null backend), and what runs on the host while a model's forward runs on the device.
`device_part` is what the mask adds to the draw.  Rows keep to eight schemas.  The vocabulary is
made up, of words as common ones have.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402

from mlxbun.adapters.bench import cpu  # noqa: E402
from mlxbun.adapters.bench.percentiles import median  # noqa: E402
from mlxbun.adapters.grammar.compiler import Vocabulary, XGrammarCompiler  # noqa: E402
from mlxbun.adapters.mlx_compute.loading import on_cpu  # noqa: E402
from mlxbun.adapters.mlx_compute.row_masks import RowMask, stacked  # noqa: E402
from mlxbun.adapters.mlx_compute.sampler import Sampler  # noqa: E402
from mlxbun.adapters.mlx_compute.sampling_row import SamplingRow  # noqa: E402
from mlxbun.domain.constraint import (  # noqa: E402
    CompiledGrammar,
    Constraint,
    JsonSchema,
    translate,
)
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId  # noqa: E402

END = TokenId(0)
GREEDY = SamplingParams(temperature=0.0)
TEXT = {"type": "string"}
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0}},
     "required": ["name", "age"]},
    {"type": "array", "items": {"type": "number"}, "minItems": 20},
    {"type": "object", "properties": {f"field_{i}": TEXT for i in range(12)}},
    {"type": "object", "properties": {"at": {"type": "string", "format": "date-time"},
     "id": {"type": "string", "format": "uuid"}}, "required": ["at", "id"]},
    {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "number"},
     "label": {"enum": ["red", "green", "blue"]}}, "required": ["x", "label"]}, "minItems": 8},
    {"type": "object", "additionalProperties": TEXT},
    {"type": "object", "properties": {"text": {"type": "string", "maxLength": 400}},
     "required": ["text"]},
]  # fmt: skip


def vocabulary(size: int) -> Vocabulary:
    """Return bytes, then words with and without a blank before them, numbers and punctuation."""
    rng = random.Random(0)
    tokens = [b"", *(bytes([i]) for i in range(256))]
    signs = [
        b'"',
        b'",',
        b'":',
        b'": "',
        b'", "',
        b"{}",
        b'{"',
        b'"}',
        b"},",
        b"}]",
        b" {",
        b"\n  ",
    ]
    tokens += signs
    known = set(tokens)
    letters = "eeeeaaaiiioootttnnnsssrrrllcdumpghbyfvwkéü"
    while len(tokens) < size:
        word = "".join(rng.choices(letters, k=rng.randrange(2, 11)))
        spelled = rng.choice(("", " ", " ", "_")) + rng.choice((word, word.capitalize(), word))
        token = (spelled if rng.random() > 0.02 else str(rng.randrange(1000))).encode()
        if token not in known:
            known.add(token)
            tokens.append(token)
    return Vocabulary(tokens[:size], size, {END})


class Rows:
    """Rows of one batch, each with its grammar; one that is complete begins again."""

    def __init__(self, grammars: Sequence[CompiledGrammar], vocab: int, *, masked: bool) -> None:
        self._grammars = grammars
        self._vocab = vocab
        self.rows = [
            SamplingRow(RequestId(str(i)), GREEDY, (TokenId(1),)) for i in range(len(grammars))
        ]
        if masked:
            for number in range(len(grammars)):
                self._begin(number)
        self.sampler = Sampler(vocab, (), normalise=False, sort_all=False, quick_exp=on_cpu())
        self.sampler.compose(self.rows, [-1] * len(self.rows))

    def advance(self, token_ids: Sequence[int]) -> None:
        for number, token_id in enumerate(token_ids):
            mask = self.rows[number].mask
            assert mask is not None
            complete, cause = mask.advance(TokenId(token_id))
            assert cause is None, cause
            if complete:
                self._begin(number)

    def _begin(self, number: int) -> None:
        mask = RowMask(self._grammars[number].matcher(), self._vocab)
        mask.begin()
        self.rows[number].mask = mask


def draw(rows: Rows, logits: mx.array) -> list[int]:
    drawn = rows.sampler.draw(logits)
    mx.eval(*drawn.arrays.values())
    return [int(i) for i in drawn.tokens.tolist()]  # type: ignore[arg-type, union-attr]


def on_the_host(rows: Rows, logits: mx.array, bits: np.ndarray[Any, Any]) -> mx.array:
    """Return `logits` as they are after a trip to the host, masked there."""
    there = np.array(logits)
    for line, row, spread in zip(there, rows.rows, bits, strict=True):
        assert row.mask is not None
        spread[:] = np.unpackbits(row.mask.words.view(np.uint8), bitorder="little")
        line[:] = np.where(spread[: len(line)], line, -np.inf)
    return mx.array(there)


def measure(num_rows: int, vocab: int, steps: int, dtype: mx.Dtype) -> dict[str, Any]:
    made = vocabulary(vocab)
    compiler = XGrammarCompiler(lambda: made)
    compiled: list[CompiledGrammar] = []
    compile_ms: list[float] = []
    for schema in SCHEMAS:
        rules = translate(Constraint(JsonSchema(schema), "x")).rules
        began = time.perf_counter()
        compiled.append(compiler.compile(rules))
        compile_ms.append((time.perf_counter() - began) * 1e3)
    grammars = [compiled[i % len(compiled)] for i in range(num_rows)]
    arms = {
        name: Rows(grammars, vocab, masked=name != "plain") for name in ("plain", "ours", "host")
    }
    free = Rows(grammars, vocab, masked=False)  # draws what `host` has masked
    bits = np.zeros((num_rows, -(-vocab // 32) * 32), dtype=np.uint8)
    times: dict[str, list[float]] = {
        n: [] for n in ("plain", "ours", "host", "host_part", "device_part")
    }
    rng = np.random.default_rng(0)
    for step in range(steps + 5):
        # JSON's own tokens are likelier than noise would have them, so that texts come to an end.
        noise = rng.normal(size=(num_rows, vocab)).astype(np.float32)
        noise[:, 1:270] += 2.5
        logits = mx.array(noise).astype(dtype)
        mx.eval(logits)
        began = time.perf_counter()
        draw(arms["plain"], logits)
        plain = time.perf_counter()
        tokens = draw(arms["ours"], logits)
        device = time.perf_counter()
        arms["ours"].advance(tokens)
        mx.eval(stacked([row.mask for row in arms["ours"].rows], vocab))
        ours = time.perf_counter()
        tokens = draw(free, on_the_host(arms["host"], logits.astype(mx.float32), bits))
        arms["host"].advance(tokens)
        host = time.perf_counter()
        if step >= 5:  # the first ones compile graphs
            times["plain"].append((plain - began) * 1e3)
            times["device_part"].append((device - plain) * 1e3)
            times["host_part"].append((ours - device) * 1e3)
            times["ours"].append((ours - plain) * 1e3)
            times["host"].append((host - ours) * 1e3)
    found = {name: round(median(values), 4) for name, values in times.items()}
    device_part = found.pop("device_part") - found["plain"]
    added = {
        "device_part": round(device_part, 4),
        "added_by_host_masking": round(found["host"] - found["plain"], 4),
    }
    worst = sorted(times["host_part"])[int(len(times["host_part"]) * 0.99)]
    return {
        "rows": num_rows,
        "vocab": vocab,
        "steps": steps,
        "dtype": str(dtype).rpartition(".")[2],
        **found,
        **added,
        "host_part_p99": round(worst, 4),
        "host_masking_over_ours": round(
            added["added_by_host_masking"] / (found["host_part"] + max(device_part, 0.0)), 2
        ),
        "compile_ms": [round(ms, 1) for ms in compile_ms],
    }


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=150_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path)
    said = parser.parse_args(words)
    result = measure(said.rows, said.vocab, said.steps, getattr(mx, said.dtype))
    result |= {
        "machine": cpu.machine(),
        "load": round(cpu.load_average(), 1),
        "device": str(mx.default_device()),
        "blas": BLAS.kind,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if said.json is not None:
        said.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
