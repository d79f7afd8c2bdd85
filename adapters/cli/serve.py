"""`mlxbun serve`: checks what can be checked, then lets Granian run the application.

Granian forks its worker on Linux, so this process must not import mlx or start a thread: what
a model needs first (a download, a conversion) is done by a child.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbun.adapters.cli.preflight import check_address
from mlxbun.adapters.cli.wiring import Wiring
from mlxbun.application.model_store import LocalModel, ModelUnavailable
from mlxbun.application.settings import Settings, check, parse, to_environment

SPARE_SECONDS = 5  # between the worker's own timeout and its being killed


def serve(argv: Sequence[str], environ: Mapping[str, str], wiring: Wiring) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status: 0 unless the worker died.

    Raises UsageError, AddressUnusable or ModelUnavailable before anything is started.
    """
    settings = parse(argv, environ)
    check(settings)
    for name, note in settings.notes.items():
        print(f"mlxbun: note: {name}: {note}", file=sys.stderr)
    check_address(settings)
    for name in filter(None, (settings.model, settings.embedding_model)):
        model = ensure_model(settings, wiring, name)
        print(f"mlxbun: loading {model.name} ({model.weights}, {model.path})", file=sys.stderr)
    os.environ.update(to_environment(argv))
    return _run(settings, wiring.target)


def ensure_model(settings: Settings, wiring: Wiring, name: str) -> LocalModel:
    """Return the model that `name` means, fetched by a child process if it is not here.

    Raises ModelUnavailable.
    """
    store = wiring.model_store(settings)
    model = store.find(name)
    if model is None:
        words = ("get", name, "--cache", settings.cache, "--dtype", settings.dtype)
        child = subprocess.run([*wiring.command, *words], stdout=subprocess.DEVNULL)
        model = store.find(name) if child.returncode == 0 else None
    if model is None:
        raise ModelUnavailable(f"{name} is not here and could not be fetched")
    return model


def _run(settings: Settings, target: str) -> int:
    from granian import Granian  # its methods have no types
    from granian.constants import HTTPModes, Interfaces
    from granian.log import LogLevels

    if settings.unix is not None:
        Path(settings.unix).unlink(missing_ok=True)  # a stale one would count as taken
    server: Any = Granian(
        target,
        address=settings.host,
        port=settings.port,
        uds=None if settings.unix is None else Path(settings.unix),
        uds_permissions=0o600,
        interface=Interfaces.RSGI,
        workers=1,
        http=HTTPModes.http1,
        websockets=False,
        workers_kill_timeout=math.ceil(settings.shutdown_timeout_seconds) + SPARE_SECONDS,
        log_level=LogLevels.info if settings.log_level == "debug" else LogLevels.warning,
        log_dictconfig=logging_configuration(settings.log_level),
    )

    def stop_on_hangup() -> None:
        # Granian's own answer is to load a second model beside the first.
        signal.signal(signal.SIGHUP, server.signal_handler_interrupt)

    server.on_startup(stop_on_hangup)
    try:
        server.serve()
    except SystemExit as stopped:  # a worker that ended by itself
        return stopped.code if isinstance(stopped.code, int) else 1
    return 0


def logging_configuration(level: str) -> dict[str, Any]:
    """Return a dictConfig: our messages from `level` up, and Granian's, on stderr."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {"format": "%(asctime)s %(levelname)-7s %(message)s", "datefmt": "%H:%M:%S"}
        },
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "line",
                "stream": "ext://sys.stderr",
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "mlxbun": {"level": level.upper()},
            "_granian": {},
        },
    }
