"""A process that writes is killed at every boundary; scripts/crash_test does it by the thousand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WRITING = ("write", "fsync", "rename", "fsync_folder", "committing", "committed")


@pytest.mark.parametrize("layout", ["blocks", "whole"])
def test_after_a_kill_at_each_boundary_what_was_told_is_there_and_nothing_else_is(
    layout: str,
) -> None:
    script = str(ROOT / "scripts" / "crash_test")
    done = subprocess.run(
        [sys.executable, script, "--short", "--seed", "1", "--layout", layout],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "nothing was broken" in done.stdout
    kills = {name: int(n) for name, n in re.findall(r"(\w+) (\d+)(?=,|$)", done.stdout, re.M)}
    assert all(kills[step] >= 6 for step in WRITING), done.stdout
    assert all(kills[kind] >= 20 for kind in ("commit", "save", "keep")), done.stdout
