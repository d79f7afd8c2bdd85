"""The composition root: settings in, application out.  The only package that names adapters.

    granian --interface rsgi mlxbun.composition_root:app     MLX_BUN_* variables configure it
    mlxbun serve                                             flags too, and a child for downloads

Importing it opens nothing and imports next to nothing: what a command needs is imported when it
runs, here and in every module of this package, so that `mlxbun --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxbun.adapters.http.rsgi import RsgiApp


def __getattr__(name: str) -> Any:
    """Make `app`, the RSGI application, when Granian first asks for it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = made = open_app(os.environ)
    return made


def main() -> int:
    """Run the command line: `mlxbun`, `mlx-bun`."""
    from mlxbun.adapters.cli.main import run
    from mlxbun.composition_root.command_line import wiring

    return run(sys.argv[1:], os.environ, wiring())


def open_app(environ: Any) -> RsgiApp:
    """Return the application that `environ` configures.  Nothing is opened yet."""
    from mlxbun.adapters.http.parentage import end_with_parent
    from mlxbun.adapters.mlx_compute.heap import keep_freed_memory
    from mlxbun.application.settings import ARGV, check, from_environment
    from mlxbun.composition_root.container import make_container

    settings = from_environment(environ)
    check(settings)
    if ARGV in environ:
        end_with_parent()
    keep_freed_memory()
    # Granian alone listens where its own flags say.
    container = make_container(settings, settings.address if ARGV in environ else "")
    made: RsgiApp = container.app()
    return made
