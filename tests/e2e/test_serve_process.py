"""`mlxbun serve` as a process: how it starts, refuses and ends.  The model is scripted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
PROGRAM = """
import os, sys
from doubles.model_store import ListModelStore
from mlxbun.adapters.cli.main import run
from mlxbun.adapters.cli.wiring import Wiring

def store(settings):
    return ListModelStore(here=["demo"], remote=["far"])

def later(*_):
    raise AssertionError("not in this test")

wiring = Wiring("0", "scripted:app", ("false",), store, later, later, later, later)
sys.exit(run(sys.argv[1:], os.environ, wiring))
"""
# What composition_root does in the worker, with a scripted model.
SCRIPTED = """
import os
from doubles.server import service
from mlxbun.adapters.http.rsgi import RsgiApp
from mlxbun.application.settings import effective, from_environment

settings = from_environment(os.environ)
made = service()
made.settings = lambda: effective(settings)
if settings.served_name == "broken":
    raise RuntimeError("the application cannot be built")
app = RsgiApp(made)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    return tmp_path / "program.py"


def command(program: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join((str(TESTS), str(program.parent)))
    clean = {name: value for name, value in os.environ.items() if "MLX_BUN" not in name}
    return [sys.executable, str(program), *words], {**clean, "PYTHONPATH": path}


def refused(program: Path, *words: str) -> tuple[int, str]:
    """Run a server that should not start; return its exit status and what it said."""
    argv, environ = command(program, *words)
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@contextmanager
def serving(program: Path, address: int | Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a server; it is listening in the block, and must have ended after it."""
    flag = "--port" if isinstance(address, int) else "--unix"
    argv, environ = command(program, "serve", flag, str(address), *words)
    process = subprocess.Popen(argv, env=environ, text=True)
    try:
        while not answers(address):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the server ended with status {process.wait(0.02)}")
        yield process
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def answers(address: int | Path) -> bool:
    tcp = isinstance(address, int)
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as caller:
        return caller.connect_ex(("127.0.0.1", address) if tcp else str(address)) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_server_ends_well_when_it_is_told_to(program: Path, number: signal.Signals) -> None:
    port = free_port()
    with serving(program, port) as process:
        assert get(f"http://127.0.0.1:{port}/v1/models")["data"][0]["id"] == "doubles/scripted"
        process.send_signal(number)
    assert process.returncode == 0


def test_the_worker_knows_what_was_a_flag(program: Path) -> None:
    port = free_port()
    with serving(program, port, "--batch", "3") as process:
        lines = get(f"http://127.0.0.1:{port}/v1/effective-config")
        process.terminate()
    settings = {line["name"]: line for line in lines["settings"]}
    assert (settings["batch"]["value"], settings["batch"]["source"]) == (3, "flag")
    assert settings["max_waiting"]["source"] == "default"


def test_a_second_server_says_who_has_the_port_and_which_is_free(program: Path) -> None:
    port = free_port()
    with serving(program, port) as process:
        get(f"http://127.0.0.1:{port}/v1/models")
        status, said = refused(program, "serve", "--port", str(port))
        process.terminate()
    assert status == 1
    assert f"port {port} is taken" in said and "doubles/scripted" in said
    assert "or use --port " in said


def test_a_port_that_somebody_else_holds_is_refused(program: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        status, said = refused(program, "--port", str(listener.getsockname()[1]))
    assert status == 1 and "does not speak HTTP" in said


def test_a_model_that_is_not_there_is_refused_before_anything_starts(program: Path) -> None:
    status, said = refused(program, "serve", "nonsense", "--port", str(free_port()))
    assert (status, said) == (1, "mlxbun: no model here matches 'nonsense'\n")


def test_a_model_that_could_not_be_fetched_is_refused(program: Path) -> None:
    status, said = refused(program, "serve", "far", "--port", str(free_port()))
    assert status == 1 and "far is not here and could not be fetched" in said


def test_a_worker_that_cannot_start_ends_the_server_with_status_1(program: Path) -> None:
    status, said = refused(program, "--served-name", "broken", "--port", str(free_port()))
    assert status == 1 and "the application cannot be built" in said


def test_a_socket_left_behind_is_taken_over_and_a_live_one_is_not(
    program: Path, tmp_path: Path
) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(program, path) as process:
        with socket.socket(socket.AF_UNIX) as caller:
            caller.settimeout(10)
            caller.connect(str(path))
            caller.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
            assert caller.recv(12) == b"HTTP/1.1 200"
        status, said = refused(program, "--unix", str(path))
        process.terminate()
    assert status == 1 and "a server listens there already" in said
    assert not path.exists()


def test_a_file_is_not_taken_for_a_socket(program: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    status, said = refused(program, "--unix", str(tmp_path / "file"))
    assert status == 1 and "is a file already" in said
    assert (tmp_path / "file").read_text() == "precious"
