"""xgrammar's native library, without the Python package around it, which imports torch.

The package is entered through a stand-in with its path, so that only the bindings are imported:
0.2 s, where all of it takes seven.  docs/adr/0019 says how it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import types
from typing import Any

from mlxbun.domain.constraint import GrammarUnavailable

PACKAGE = "xgrammar"
HOW = "pip install --no-deps xgrammar==0.2.9"

_importing = threading.Lock()


def bindings() -> Any:
    """Return the module of xgrammar's native classes.  Raises GrammarUnavailable.

    The first call loads the library.
    """
    with _importing:
        if PACKAGE not in sys.modules:
            _stand_in()
        try:
            importlib.import_module(f"{PACKAGE}.load_binding")
            return importlib.import_module(f"{PACKAGE}.tvm_ffi_binding._ffi_api")
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            message = f"xgrammar cannot be loaded ({error}): {HOW}"
            raise GrammarUnavailable(message) from error


def _stand_in() -> None:
    # What its foreign functions do with torch, where that is installed, is not needed.
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise GrammarUnavailable(f"structured output needs xgrammar: {HOW}")
    package = types.ModuleType(PACKAGE)
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules[PACKAGE] = package
