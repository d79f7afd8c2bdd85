#!/usr/bin/env python3
"""Runs mlx-lm's loops over MODEL on order; scripts/bench/engine.py starts it.

Orders come on standard input, answers go to standard output, as JSON lines: see
adapters/bench/peer_process.py.
"""

from __future__ import annotations

import os
import sys

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

load_fast_blas()  # before anything imports MLX, as for the engine

from mlxbun.adapters.bench.baselines import open_baselines  # noqa: E402
from mlxbun.adapters.bench.peer_process import serve  # noqa: E402


def main() -> int:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    serve(lambda: open_baselines(sys.argv[1]), sys.stdin.buffer, answers)
    return 1


if __name__ == "__main__":
    sys.exit(main())
