"""The GPU's table: every row is written when it is measured, and a run that is cut keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxbun.adapters.bench.gpu_table import GpuTable, Task

ENGINE = """
import json, pathlib, sys, threading
asked = dict(zip(sys.argv[1::2], sys.argv[2::2]))
found = {"model": asked["--model"], "results": []}
for rows in asked["--rows"].split(","):
    if rows == "0":
        threading.Event().wait()
    if rows == "-1":
        sys.exit("broken")
    found["results"].append({"rows": int(rows)})
    pathlib.Path(asked["--json"]).write_text(json.dumps(found))
"""


def never() -> bool:
    return False


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "scripts/bench").mkdir(parents=True)
    (tmp_path / "scripts/bench/engine.py").write_text(ENGINE)
    return tmp_path


def test_a_model_that_breaks_does_not_keep_the_next_from_being_measured(root: Path) -> None:
    out = root / "found.json"
    assert not GpuTable(root, out, [], never).measure([Task("a", "1,-1"), Task("b", "1,8")])
    found = json.loads(out.read_text())
    assert [run["status"] for run in found["runs"]] == ["exit 1", "exit 0"]
    assert found["runs"][0]["results"] == [{"rows": 1}]
    assert found["runs"][1]["results"] == [{"rows": 1}, {"rows": 8}]
    assert not found["complete"]


def test_what_was_measured_before_the_limit_is_kept(root: Path) -> None:
    out = root / "found.json"

    def is_over() -> bool:
        return out.is_file() and '"results"' in out.read_text()

    assert not GpuTable(root, out, [], is_over).measure([Task("a", "1,0"), Task("b", "1")])
    found = json.loads(out.read_text())
    assert [run["status"] for run in found["runs"]] == ["cut", "cut"]
    assert found["runs"][0]["results"] == [{"rows": 1}]


def test_a_table_that_was_measured_whole_says_so(root: Path) -> None:
    out = root / "found.json"
    assert GpuTable(root, out, [], never).measure([Task("a", "1")])
    assert json.loads(out.read_text())["complete"]
