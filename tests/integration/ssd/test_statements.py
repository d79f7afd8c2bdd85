"""SQL in the sources, as every Python that is supported takes it."""

from __future__ import annotations

import re
from pathlib import Path

from mlxbun.adapters import ssd


def test_no_statement_numbers_its_parameters() -> None:
    """Python 3.12 warns of `?1` with a sequence, and 3.14 raises: they go by name instead."""
    files = list(Path(ssd.__file__).parent.rglob("*.py"))
    numbered = {file.name for file in files if re.search(r"\?[0-9]", file.read_text())}
    assert len(files) > 5 and not numbered
