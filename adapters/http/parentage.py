"""A worker ends when the process that started it is gone.

Killed outright, Granian's main process takes no worker along, and an orphan would keep the port,
the model's memory and the SSD cache's folder.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable

log = logging.getLogger("mlxbun.http")

LOOK_SECONDS = 1.0


def end_with_parent(
    parent: Callable[[], int] = os.getppid,
    end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    look_seconds: float = LOOK_SECONDS,
) -> threading.Thread:
    """Look every `look_seconds` whether the parent is still the same; if not, `end` once."""
    first = parent()

    def watch() -> None:
        pause = threading.Event()
        while parent() == first:
            pause.wait(look_seconds)
        log.warning("the process that started this server is gone; stopping")
        end()

    thread = threading.Thread(target=watch, name="mlxbun-parent", daemon=True)
    thread.start()
    return thread
