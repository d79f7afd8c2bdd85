"""Names the state of the code that was measured.  Standard library only."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def commit(root: Path) -> str:
    """Return the commit of a checkout, with -dirty where files differ, or "unknown"."""
    if shutil.which("git") is None:
        return "unknown"
    asked = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(asked, cwd=root, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
