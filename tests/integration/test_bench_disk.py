"""The bench of the SSD tier runs, and holds what it must without a clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "disk.py"


def test_the_bench_runs_on_a_tiny_model_and_the_slow_disk_is_asked_once(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--model", "tiny-llama", "--tokens", "1100", "--steps", "4", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words, "--folder", str(tmp_path), "--json", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["restart"]["was_restored"] and found["slow_disk"]["declined"] > 0
    assert found["writing"]["bytes_written"] > 0
    blocks, whole = found["turns"]["blocks"], found["turns"]["whole"]
    assert 1 <= blocks["ratio"] < 1.01 < whole["ratio"], "blocks write what is new"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"], "it leaves nothing behind"
