"""Measures the engine on a GPU, one model after the other, within a limit of time.

Standard library only, and every figure comes from scripts/bench/engine.py, in processes of its
own.  What was measured is written as it comes, so that a run which is cut keeps what it has.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbun.adapters.bench.checkout import commit

LOOK_SECONDS = 1.0
LEAVE_SECONDS = 10.0


@dataclass(frozen=True)
class Task:
    """One model, and the numbers of rows to measure it with, as engine.py takes them."""

    model: str
    rows: str


TABLE = (
    Task("random:qwen3-0.6b", "1,8,32,64"),
    Task("random:qwen3-8b", "1,8,32,64"),
    Task("random:qwen3-8b-4bit", "1,32"),
)


def gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs here, none where there is no driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return gpu_names(done.stdout) if done.returncode == 0 else []


def gpu_names(listing: str) -> list[str]:
    """Return the names in what `nvidia-smi -L` prints, without the cards' identities."""
    return re.findall(r"^GPU \d+: (.+?)(?: \(UUID: .*\))?$", listing, re.MULTILINE)


class GpuTable:
    """Runs `root`/scripts/bench/engine.py for each task and keeps `out` up to date.

    A run is cut when `is_over` says so, which is asked every second.
    """

    def __init__(
        self, root: Path, out: Path, options: Sequence[str], is_over: Callable[[], bool]
    ) -> None:
        self._root = root
        self._out = out
        self._options = options
        self._is_over = is_over
        self._found: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(root),
            "gpus": gpus(),
            "python": platform.python_version(),
            "options": list(options),
            "complete": False,
            "runs": [],
        }

    def measure(self, tasks: Sequence[Task]) -> bool:
        """Measure all of `tasks`; say whether nothing failed or was cut."""
        whole = True
        for task in tasks:
            whole &= self._measure(task)
        self._found["complete"] = whole
        self._write()
        return whole

    def _measure(self, task: Task) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            partial = Path(folder) / "found.json"
            process = subprocess.Popen(
                [sys.executable, str(self._root / "scripts/bench/engine.py"),
                 "--model", task.model, "--rows", task.rows, "--json", str(partial),
                 *self._options],
                cwd=self._root, env=_environment(self._root),
            )  # fmt: skip
            run: dict[str, Any] = {"model": task.model, "rows": task.rows, "status": "running"}
            self._found["runs"].append(run)
            status: int | None = None
            seen = b""
            while status is None and not self._is_over():
                with contextlib.suppress(subprocess.TimeoutExpired):  # look at what it has so far
                    status = process.wait(LOOK_SECONDS)
                if partial.is_file() and (text := partial.read_bytes()) != seen:
                    seen = text
                    run |= json.loads(text)
                    self._write()
            if status is None:
                _end(process)
            run["status"] = "cut" if status is None else f"exit {status}"
            self._write()
        return status == 0

    def _write(self) -> None:
        aside = self._out.with_name(self._out.name + ".part")
        aside.write_text(json.dumps(self._found, indent=2) + "\n")
        aside.replace(self._out)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment(root: Path) -> dict[str, str]:
    """Return the environment in which mlxbun is imported from this checkout."""
    paths = [str(root / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
