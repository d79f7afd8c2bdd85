"""The bench of grammars runs, and says what it says it does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "grammar.py"


def test_it_measures_every_part_and_writes_them_down(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    words = ["--rows", "3", "--vocab", "3000", "--steps", "4", "--json", str(out)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert (found["rows"], found["vocab"], found["steps"]) == (3, 3000, 4)
    parts = ("plain", "ours", "host", "host_part")
    assert all(found[part] > 0 for part in parts)
    assert len(found["compile_ms"]) == 8
