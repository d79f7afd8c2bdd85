"""Looks, before a server starts, whether its address is free, and who has it if not."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from typing import Any

from mlxbun.application.settings import Settings

PROBE_SECONDS = 1.0
NUM_OTHER_PORTS = 20


class AddressUnusable(OSError):
    """The server cannot listen where it should; the message says why and what to do."""


def check_address(settings: Settings) -> None:
    """Raise AddressUnusable unless a server may listen at the settings' address."""
    if settings.unix is not None:
        _check_socket(Path(settings.unix))
        return
    try:
        _bind_briefly(settings.host, settings.port)
    except socket.gaierror as error:
        raise AddressUnusable(f"--host {settings.host} is not an address: {error}") from error
    except PermissionError as error:
        raise AddressUnusable(
            f"port {settings.port} needs more rights than you have: use one above 1023"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressUnusable(
                f"--host {settings.host} is not an address of this machine: "
                "say 127.0.0.1, or 0.0.0.0 for all of its addresses"
            ) from error
        if error.errno != errno.EADDRINUSE:
            raise AddressUnusable(f"cannot listen on {settings.url}: {error}") from error
        free = _free_port(settings)
        raise AddressUnusable(
            f"port {settings.port} is taken: {who_answers(settings)}.  Stop that, or use "
            + (f"--port {free}" if free else "another --port")
        ) from error


def _check_socket(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise AddressUnusable(f"--unix {path}: there is no folder {path.absolute().parent}")
    if not path.exists():
        return
    if not path.is_socket():
        raise AddressUnusable(f"--unix {path} is a file already, and no socket")
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(path))
        except ConnectionRefusedError:
            return  # left behind by a server that died
    raise AddressUnusable(f"--unix {path}: a server listens there already")


def who_answers(settings: Settings) -> str:
    """Return a sentence about what answers HTTP at the settings' host and port."""
    models = _get(settings, "/v1/models")
    if isinstance(models, str):
        return models
    try:
        names = ", ".join(str(model["id"]) for model in models["data"])
    except (TypeError, KeyError):
        return "a web server that is no OpenAI-compatible one answers there"
    return f"an OpenAI-compatible server answers there, with {names or 'no model'}"


def _get(settings: Settings, path: str) -> Any:
    """Return the JSON that is answered, or a sentence (a str) when none is."""
    import http.client  # a tenth of the time before a server listens, and seldom needed

    host = settings.url.removeprefix("http://").rpartition(":")[0].strip("[]")
    connection = http.client.HTTPConnection(host, settings.port, timeout=PROBE_SECONDS)
    try:
        headers = {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(1 << 20)
        if answer.status == 401:
            return "a server that asks for an API key answers there"
        return json.loads(body)
    except ValueError:
        return "a web server that is no OpenAI-compatible one answers there"
    except (OSError, http.client.HTTPException):
        return "something that does not speak HTTP, or is busy, holds it"
    finally:
        connection.close()


def _bind_briefly(host: str, port: int) -> None:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)  # and no listen(): whoever waits for the server would be let in


def _free_port(settings: Settings) -> int | None:
    for port in range(settings.port + 1, min(settings.port + NUM_OTHER_PORTS, 65536)):
        try:
            _bind_briefly(settings.host, port)
        except OSError:
            continue
        return port
    return None
