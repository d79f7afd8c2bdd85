#!/usr/bin/env python3
"""Counts how often the default engine writes other greedy tokens than --l1 does.

    .venv/bin/python scripts/bench/same_tokens.py --model demo --prompts 64 --tokens 24

Both answer the same prompts, --rows at a time.  Where they part, the report says how close the
two tokens were: float32 sums in another order tip a tie.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from pathlib import Path
from typing import get_args

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

BLAS = load_fast_blas()  # before anything imports MLX

import mlx.core as mx  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from mlxbun.adapters.bench import cpu  # noqa: E402
from mlxbun.adapters.bench.models import find_model  # noqa: E402
from mlxbun.adapters.bench.prompts import Prompts  # noqa: E402
from mlxbun.adapters.journal import RingJournal  # noqa: E402
from mlxbun.adapters.mlx_compute import loading  # noqa: E402
from mlxbun.adapters.mlx_compute.compute import MlxCompute  # noqa: E402
from mlxbun.adapters.mlx_compute.opening import leave_thread, open_mlx_compute  # noqa: E402
from mlxbun.application.engine import Engine  # noqa: E402
from mlxbun.application.requests import Drawn, Ended, Item, Outbox, RequestSpec  # noqa: E402
from mlxbun.domain.sampling import RequestId, SamplingParams, TokenId  # noqa: E402
from mlxbun.domain.scheduling import Limits  # noqa: E402

GREEDY = SamplingParams(temperature=0.0)


class Answers:
    """The tokens of every request, collected on the engine's thread."""

    def __init__(self, count: int) -> None:
        self.tokens: list[list[TokenId]] = [[] for _ in range(count)]
        self.failed: list[str] = []
        self._left = count
        self.over = threading.Event()

    def mailbox(self, index: int) -> Mailbox:
        return Mailbox(self, index)

    def take(self, index: int, item: Item) -> None:
        if isinstance(item, Drawn):
            self.tokens[index].append(item.token_id)
        elif isinstance(item, Ended):
            if item.refusal is not None:
                self.failed.append(str(item.refusal))
            self._left -= 1
            if not self._left:
                self.over.set()


class Mailbox:
    """Hands one request's items to the collection."""

    def __init__(self, answers: Answers, index: int) -> None:
        self._answers, self._index = answers, index

    def put(self, item: Item) -> None:
        self._answers.take(self._index, item)


def answers_of(
    folder: Path,
    dtype: loading.DType,
    prompts: list[list[int]],
    num_tokens: int,
    rows: int,
    *,
    l1: bool,
) -> tuple[list[list[TokenId]], str]:
    """Return every prompt's tokens, and the path that drew them."""
    opened: list[MlxCompute] = []
    vocab_size = vocabulary(folder)

    def opening() -> MlxCompute:
        opened.append(
            open_mlx_compute(
                folder, dtype=dtype, l1=l1, vocab_size=vocab_size, xtc_exempt=()
            ).compute
        )
        return opened[0]

    answers = Answers(len(prompts))

    def tell(outbox: Outbox) -> None:
        for mailbox, item in outbox.items:
            mailbox.put(item)

    def broke(error: Exception) -> None:
        answers.failed.append(str(error))
        answers.over.set()

    limits = Limits(max_rows=rows, max_waiting=len(prompts))
    engine = Engine(opening, limits, RingJournal(10), leave_thread=leave_thread)
    engine.start(tell, lambda: None, broke)
    for index, prompt in enumerate(prompts):
        ids = tuple(TokenId(token) for token in prompt)
        spec = RequestSpec(RequestId(f"prompt-{index}"), ids, num_tokens, frozenset(), GREEDY)
        engine.submit(spec, answers.mailbox(index))
    answers.over.wait()
    engine.stop()
    if answers.failed:
        raise SystemExit(f"the engine failed: {answers.failed[0]}")
    return answers.tokens, opened[0].path


def vocabulary(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    size: int = config.get("vocab_size") or config["text_config"]["vocab_size"]
    return size


def partings(
    folder: Path,
    dtype: loading.DType,
    prompts: list[list[int]],
    ours: list[list[TokenId]],
    theirs: list[list[TokenId]],
) -> list[dict[str, float | int]]:
    """Return where answers part: the token, and how far apart the two logits were (nats)."""
    model = loading.load(folder, dtype).model
    found: list[dict[str, float | int]] = []
    for index, (prompt, one, other) in enumerate(zip(prompts, ours, theirs, strict=True)):
        at = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
        if at is None:
            continue
        logits = model(mx.array([[*prompt, *map(int, one[:at])]]))[0, -1].astype(mx.float32)
        gap = abs(logits[one[at]] - logits[other[at]]).item()
        found.append({"prompt": index, "token": at, "logits_apart": round(float(gap), 6)})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="as for engine.py (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=24, help="of each (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=8, help="at a time (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        choices=get_args(loading.DType),
        default="auto",
        help="of the weights, for both (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write what was found there")
    args = parser.parse_args()
    folder = find_model(args.model)
    encode = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    prompts = [encode(Prompts(12 + i % 20, i).next()).ids for i in range(args.prompts)]
    theirs, plain_path = answers_of(folder, args.dtype, prompts, args.tokens, args.rows, l1=True)
    ours, path = answers_of(folder, args.dtype, prompts, args.tokens, args.rows, l1=False)
    apart = partings(folder, args.dtype, prompts, ours, theirs)
    found = {
        "model": folder.name,
        "machine": cpu.machine(),
        "blas": BLAS.kind,
        "dtype": args.dtype,
        "path": path,
        "l1_path": plain_path,
        "prompts": args.prompts,
        "tokens": args.tokens,
        "rows": args.rows,
        "same": args.prompts - len(apart),
        "parted": apart,
    }
    print(json.dumps(found, indent=2))
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
