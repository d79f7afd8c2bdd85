"""A server that is watched: its process, its counts, and what it complained of."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from msgspec import Struct

SECONDS = 60.0
_COMPLAINTS = ("Traceback", "ERROR", "CRITICAL", "never awaited", "Task exception")


class Held(Struct, frozen=True):
    """What a process holds of the system: descriptors, threads, memory in bytes."""

    descriptors: int
    threads: int
    resident: int


class Watched:
    """`mlxbun serve` on a free port (Linux)."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._log = log
        self._num_lines = 0
        argv = [sys.executable, "-m", "mlxbun", "serve", *words, "--port", str(self.port)]
        with log.open("ab") as out:
            self.process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)

    def get(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=SECONDS) as answer:
            return json.load(answer)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            try:
                if self.get("/health")["status"] == "ok":
                    # What a layout was tried for and does not suit is told with its trace.
                    self._num_lines = len(self._log.read_text(errors="replace").splitlines())
                    return
            except OSError:
                time.sleep(0.05)

    def wait_idle(self) -> Any:
        """Wait until no row runs or waits, and nothing is read for one; return the counts."""
        deadline = time.monotonic() + SECONDS
        while True:
            stats = self.get("/stats")
            if not stats["active_rows"] and not stats["waiting_rows"]:
                memory = stats["memory"]
                if not memory or not (memory["live_kv_bytes"] or memory["restoring_bytes"]):
                    return stats
            assert time.monotonic() < deadline, f"it never came to rest: {stats}"
            time.sleep(0.05)

    def held(self) -> Held:
        worker = Path(f"/proc/{self._worker()}")
        said = (worker / "status").read_text()
        found = {k: int(v) for k, v in re.findall(r"^(Threads|VmRSS):\s+(\d+)", said, re.M)}
        descriptors = sum(1 for _ in (worker / "fd").iterdir())
        return Held(descriptors, found["Threads"], found["VmRSS"] << 10)

    def _worker(self) -> int:
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def gone(self) -> int:
        """Wait until it has ended; return its exit status."""
        return self.process.wait(SECONDS)

    @property
    def complaints(self) -> list[str]:
        """Lines of the log, since it was ready, that no client may cause."""
        lines = self._log.read_text(errors="replace").splitlines()[self._num_lines :]
        return [line for line in lines if any(sign in line for sign in _COMPLAINTS)]


@contextmanager
def watched(words: Sequence[str], log: Path) -> Iterator[Watched]:
    """Run a server; it serves in the block."""
    server = Watched(words, log)
    try:
        server.wait_ready()
        yield server
    finally:
        if server.process.poll() is None:
            server.terminate()
            try:
                server.gone()
            except subprocess.TimeoutExpired:
                server.process.kill()
                raise
