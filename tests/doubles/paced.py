"""The real program with decode steps that take their time: a server to be killed midway.

    python -m doubles.paced serve MODEL ...

A tiny model on a fast machine may complete an answer while a slow disk keeps its first checkpoint.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any
from unittest import mock

import msgspec

from mlxbun.adapters.cli.main import run
from mlxbun.application.stepping import Stepping
from mlxbun.composition_root import open_app
from mlxbun.composition_root.command_line import wiring

TURN_SECONDS = 0.05


def __getattr__(name: str) -> Any:
    """Make `app` for Granian, which asks its worker for it."""
    if name != "app":
        raise AttributeError(name)
    turn = Stepping.turn

    def paced(stepping: Stepping) -> None:
        """Sleep after a turn: what a prompt costs, and so how it is read, is measured without."""
        turn(stepping)
        time.sleep(TURN_SECONDS)

    mock.patch.object(Stepping, "turn", paced).start()
    return open_app(os.environ)


if __name__ == "__main__":
    sys.exit(
        run(
            sys.argv[1:],
            os.environ,
            msgspec.structs.replace(wiring(), target="doubles.paced:app"),
        )
    )
