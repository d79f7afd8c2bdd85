"""What tests of the real model layer may ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxbun.adapters.mlx_compute import loading


@pytest.fixture(scope="session")
def load(tiny_model: Callable[[str], Path]) -> Callable[[str], Any]:
    """Return a function from a tiny model's name to the model, loaded once as it is stored."""
    models = dict[str, Any]()

    def loaded(name: str) -> Any:
        if name not in models:
            models[name] = loading.load(tiny_model(name), "native").model
        return models[name]

    return loaded
