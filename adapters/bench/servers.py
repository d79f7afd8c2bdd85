"""Starts servers to measure as child processes, and times how they come up."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

from mlxbun.adapters.bench.client import Client, Endpoint

# The command as users have it, beside the interpreter that runs this.
OURS = Path(sys.executable).with_name("mlxbun")
# The same BLAS for both, or the comparison would be of libraries.
MLX_LM = (
    "from mlxbun.adapters.mlx_compute.blas import load_fast_blas; load_fast_blas();"
    "import runpy; runpy.run_module('mlx_lm.server', run_name='__main__')"
)
POLL_SECONDS = 0.005
STOP_SECONDS = 15.0


class DidNotStart(RuntimeError):
    """A server ended, or was not ready in time; the message holds its last lines."""


class StartTimes(Struct, frozen=True):
    """Seconds from the process's start: socket open, /health 200, first token answered."""

    listening: float
    healthy: float
    answered: float


class ServerProcess:
    """A server that we started.  `stop` ends it and what it started."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}")
        self.started = time.perf_counter()
        self._process = process
        self._port = port
        self._log = log

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def ready(self, timeout_seconds: float = 120) -> StartTimes:
        """Wait until it answers a request.  Raises DidNotStart."""
        try:
            async with asyncio.timeout(timeout_seconds):
                listening = await self._until(self._listens)
                healthy = await self._until(self._is_healthy)
                answered = await self._until(self._answers)
        except TimeoutError:
            raise DidNotStart(
                f"{self.name} was not ready in {timeout_seconds:g} s:\n{self.tail()}"
            ) from None
        return StartTimes(listening, healthy, answered)

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL to it and what it started."""
        if self.alive:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        self._log.unlink(missing_ok=True)

    def tail(self) -> str:
        """Return the end of what it printed."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

    async def _until(self, condition: Callable[[], Awaitable[bool]]) -> float:
        while not await condition():
            if not self.alive:
                raise DidNotStart(f"{self.name} ended:\n{self.tail()}")
            await asyncio.sleep(POLL_SECONDS)
        return time.perf_counter() - self.started

    async def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    async def _is_healthy(self) -> bool:
        return (await self._send("GET", "/health")) == 200

    async def _answers(self) -> bool:
        return (
            await self._send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        ) == 200

    async def _send(self, method: str, path: str, payload: object = None) -> int:
        async with Client(self.endpoint) as client:
            return (await client.send(method, path, payload)).status


def start_ours(model: str, arguments: Sequence[str] = ()) -> ServerProcess:
    """Start `mlxbun serve MODEL` on a free port."""
    port = _free_port()
    given = [str(OURS), "serve", model, "--port", str(port)]
    return _start("mlxbun", [*given, *arguments], port)


def start_mlx_lm(folder: str, arguments: Sequence[str] = ()) -> ServerProcess:
    """Start mlx_lm.server on the model in `folder`, on a free port, with our BLAS under it."""
    port = _free_port()
    given = [
        sys.executable,
        "-c",
        MLX_LM,
        "--model",
        folder,
        "--port",
        str(port),
        "--log-level",
        "ERROR",
    ]
    return _start("mlx_lm.server", [*given, *arguments], port)


def _start(name: str, arguments: list[str], port: int) -> ServerProcess:
    handle, log = tempfile.mkstemp(prefix="mlxbun-bench-", suffix=".log")
    output: IO[bytes]
    with os.fdopen(handle, "wb") as output:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
        )
    return ServerProcess(name, process, port, Path(log))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
