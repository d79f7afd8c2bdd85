"""What the commands say of themselves."""

from __future__ import annotations

import contextlib
import io

from mlxbun.adapters.cli.main import run
from mlxbun.composition_root.command_line import wiring


def command_help(verb: str) -> str:
    """Return what `mlxbun VERB --help` prints, as it prints it."""
    words = [verb, "--help"] if verb else ["--help"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run(words, {}, wiring())
    return f"```console\n$ mlxbun {' '.join(words)}\n{printed.getvalue().rstrip()}\n```"
