"""What the command line needs of the rest; nothing in it is made before it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbun.composition_root.container import open_service
from mlxbun.composition_root.models import model_store

if TYPE_CHECKING:
    from mlxbun.adapters.cli.wiring import Wiring
    from mlxbun.application.cache_folder import CacheFolder
    from mlxbun.application.diagnosis import Check
    from mlxbun.application.settings import Settings


def wiring() -> Wiring:
    """Return callables, whose modules are imported when they are called."""
    from mlxbun import __version__
    from mlxbun.adapters.cli.wiring import Wiring

    return Wiring(
        version=__version__,
        target="mlxbun.composition_root:app",
        command=(sys.executable, "-m", "mlxbun.composition_root"),
        model_store=model_store,
        open_service=open_service,
        machine_checks=machine_checks,
        bench=bench,
        open_cache_folder=open_cache_folder,
    )


def machine_checks(settings: Settings) -> Sequence[Check]:
    from mlxbun.adapters.mlx_compute.probe import machine_checks as checks

    return checks(settings.blas)


def open_cache_folder(folder: Path) -> CacheFolder:
    from mlxbun.adapters.ssd.opening import open_block_store

    return open_block_store(folder)


def bench(words: Sequence[str]) -> int:
    from mlxbun.adapters.bench.command import run

    return run(words)
