"""What the command line needs of the rest of the program; the composition root fills it in.

Callables rather than objects, so that `mlxbun --help` imports none of what stands behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # what stands behind them takes a tenth of a second to import
    from mlxbun.application.cache_folder import CacheFolder
    from mlxbun.application.diagnosis import Check
    from mlxbun.application.model_store import ModelStore
    from mlxbun.application.service import Service
    from mlxbun.application.settings import Settings


class Wiring(Struct, frozen=True):
    """`target` is the application for Granian; `command` starts this very program again.

    `open_service` yields a service on the running event loop that has begun to load the
    model; leaving stops it.  `machine_checks` may take seconds and must not import mlx into
    this process.  `bench` takes the words after the verb and returns an exit status.
    `open_cache_folder` raises StoreFailed.
    """

    version: str
    target: str
    command: Sequence[str]
    model_store: Callable[[Settings], ModelStore]
    open_service: Callable[[Settings], AbstractAsyncContextManager[Service]]
    machine_checks: Callable[[Settings], Sequence[Check]]
    bench: Callable[[Sequence[str]], int]
    open_cache_folder: Callable[[Path], CacheFolder]
