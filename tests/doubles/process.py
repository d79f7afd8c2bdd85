"""A server process on a free port, over the doubles, and a raw client for it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

TESTS = Path(__file__).parent.parent
HANG_SECONDS = 20.0  # nothing here takes nearly as long


class ServerProcess:
    """Granian with one worker.  `output` is what it printed."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "granian", "--interface", "rsgi", "--no-ws", "--http", "1",
                 "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1",
                 "--factory", "doubles.server:app"],
                cwd=TESTS, env={**os.environ, **environment}, start_new_session=True,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def complaints(self) -> list[str]:
        """Lines that no client may cause: of a bug in the server, or of a task left behind."""
        signs = ("ERROR:mlxbun.http", "Task ", "never awaited", "Traceback", "ExceptionGroup")
        return [line for line in self.output.splitlines() if line.startswith(signs)]

    @property
    def worker(self) -> int:
        """The worker's process id (Linux)."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    @property
    def num_descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.worker}/fd").iterdir())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_SECONDS)

    def wait_listening(self) -> None:
        def listening() -> bool:
            try:
                self.connect().close()
            except ConnectionRefusedError:
                return False
            return True

        until(listening)

    def get(self, path: str) -> Any:
        with urlopen(self.url + path, timeout=HANG_SECONDS) as answer:
            return json.load(answer)

    def get_status(self, path: str) -> int:
        try:
            with urlopen(self.url + path, timeout=HANG_SECONDS) as answer:
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    def stats(self) -> Any:
        return self.get("/stats")

    def wait_idle(self) -> Any:
        """Wait until no row lives; return the counts then."""
        until(lambda: (s := self.stats())["active_rows"] == s["waiting_rows"] == 0)
        return self.stats()

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        return self.process.wait(HANG_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def serving(log: Path, **environment: float | str) -> Iterator[ServerProcess]:
    """Run a server with DOUBLE_* set; it listens when this yields."""
    said = {f"DOUBLE_{name.upper()}": str(value) for name, value in environment.items()}
    server = ServerProcess(said, log)
    try:
        server.wait_listening()
        yield server
    finally:
        server.close()


def until(true: Any) -> None:
    """Ask again and again, as fast as the server answers, until it is so."""
    deadline = time.monotonic() + HANG_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it never became so"


class RawClient:
    """A client that can misbehave."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = server.connect()
        self.received = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def post(self, path: str, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"host": "x", "content-length": str(len(data))}
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def chat(self, content: str, **fields: Any) -> None:
        self.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields},
        )

    def read_until(self, mark: bytes) -> bytes:
        """Read until `mark` came; return all that was received so far."""
        while mark not in self.received:
            piece = self.socket.recv(65536)
            assert piece, f"the server closed before {mark!r}: {self.received[-500:]!r}"
            self.received += piece
        return self.received

    def read_to_end(self) -> bytes:
        """Read until the server closes, or a stream's last chunk came."""
        while not self.received.endswith(b"\r\n0\r\n\r\n"):
            piece = self.socket.recv(65536)
            if not piece:
                break
            self.received += piece
        return self.received

    def read_answer(self) -> bytes:
        """Read one whole answer, a stream's or another's; return its body."""
        head, _, body = self.read_until(b"\r\n\r\n").partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is None:
            received = self.read_until(b"\r\n0\r\n\r\n")
            chunks = received.partition(b"\r\n\r\n")[2].split(b"\r\n")[1::2]
            return b"".join(chunks)
        while len(body) < int(length[1]):
            piece = self.socket.recv(65536)
            assert piece, f"the server closed inside {self.received!r}"
            self.received += piece
            body += piece
        return body

    def read_text(self) -> str:
        """Read a chat stream to its [DONE]; return its text."""
        *records, done, _ = self.read_answer().decode().split("\n\n")
        assert done == "data: [DONE]"
        chunks = [json.loads(r.removeprefix("data: ")) for r in records if r[0] != ":"]
        return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)

    @property
    def status(self) -> int:
        return int(self.read_until(b"\r\n\r\n").split(b" ", 2)[1])

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        """Leave as a crashed process does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.socket.close()
