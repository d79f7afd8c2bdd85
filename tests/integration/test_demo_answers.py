"""The demo model itself, as mlx-lm reads it: the conversion kept what the model knows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ASK = """
import sys
from mlxbun.adapters.mlx_compute.blas import load_fast_blas
load_fast_blas()
from mlx_lm import generate, load
model, tokenizer = load(sys.argv[1])
print(generate(model, tokenizer, "The capital of France is", max_tokens=2))
question = [{"role": "user", "content": "What is the capital of France?"}]
prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)
print(generate(model, tokenizer, prompt, max_tokens=10))
"""


def test_it_knows_the_capital_of_france(demo_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(demo_model)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.strip() for line in done.stdout.splitlines() if line.strip()] == [
        "Paris.",
        "The capital of France is Paris.",
    ]
