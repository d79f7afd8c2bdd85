"""mlx-lm's model zoo and loader, without the rest of mlx-lm.

`import mlx_lm` pulls in transformers (2 s and half a gigabyte where torch is installed) for
tokenizers that we do not use, and `mlx_lm.utils` the client of the model hub (a quarter of a
second of each start), which only fetches, and lowers this process's limit of open files for
good.  So the package is entered through a stand-in with the same path, its tokenizer module is
a stand-in too, and while it is imported the hub's client is one and the limit is held.
tests/integration/test_loading.py checks that the pinned mlx-lm still needs no more than that.
"""

from __future__ import annotations

import importlib
import importlib.util
import resource
import sys
from functools import partial
from types import ModuleType
from typing import Any

_HUB = "huggingface_hub"


def mlx_lm_utils() -> Any:
    """Return `mlx_lm.utils`, imported lean unless mlx_lm was imported in full before."""
    if "mlx_lm.utils" in sys.modules:
        return sys.modules["mlx_lm.utils"]
    if "mlx_lm" not in sys.modules:
        _stand_in()
    set_limit = resource.setrlimit
    resource.setrlimit = _keep_limit
    hub = sys.modules.setdefault(_HUB, _no_hub())
    try:
        return importlib.import_module("mlx_lm.utils")
    finally:
        resource.setrlimit = set_limit
        if getattr(hub, "__spec__", None) is None:
            del sys.modules[_HUB]  # whoever wants it gets the real one


def mlx_lm_cache() -> Any:
    """Return `mlx_lm.models.cache`."""
    mlx_lm_utils()
    return importlib.import_module("mlx_lm.models.cache")


def route_attention(model: Any) -> None:
    """Let caches that have a method `attend` answer the attention of `model` by it.

    Model files import mlx-lm's attention function by name, so the name is bound anew in each
    file that the model comes from.  Other caches get mlx-lm's function as before.
    """
    base = importlib.import_module("mlx_lm.models.base")
    plain = base.scaled_dot_product_attention
    for name in {type(module).__module__ for module in model.modules()}:
        file = sys.modules[name]
        if getattr(file, "scaled_dot_product_attention", None) is plain:
            file.scaled_dot_product_attention = partial(_attention, plain)  # type: ignore[attr-defined]


def _attention(
    plain: Any,
    queries: Any,
    keys: Any,
    values: Any,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: Any = None,
) -> Any:
    attend = getattr(cache, "attend", None)
    if attend is not None:
        return attend(queries, keys, values, scale, mask, sinks)
    return plain(queries, keys, values, cache, scale, mask, sinks)


def _stand_in() -> None:
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("mlx-lm is not installed", name="mlx_lm")
    package = ModuleType("mlx_lm")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    tokenizer_utils = ModuleType("mlx_lm.tokenizer_utils")
    tokenizer_utils.TokenizerWrapper = object  # type: ignore[attr-defined]
    tokenizer_utils.load = None  # type: ignore[attr-defined]
    sys.modules["mlx_lm"] = package
    sys.modules["mlx_lm.tokenizer_utils"] = tokenizer_utils


def _no_hub() -> ModuleType:
    """Return a hub's client that has what `mlx_lm.utils` names when it is imported.

    Its modules are the real ones, for a thread that asks for one meanwhile.
    """

    def snapshot_download(*_: object, **__: object) -> None:
        raise RuntimeError("models are fetched by mlxbun get, and never here")

    hub, spec = ModuleType(_HUB), importlib.util.find_spec(_HUB)
    hub.__path__ = [] if spec is None else list(spec.submodule_search_locations or ())
    hub.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    return hub


def _keep_limit(_resource: int, _limits: tuple[int, int]) -> None:
    """Stand in for `resource.setrlimit` while mlx_lm.utils is imported."""
