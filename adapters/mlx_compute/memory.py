"""How much memory the device can hold well."""

from __future__ import annotations

import os
from typing import Any

import mlx.core as mx

from mlxbun.adapters.mlx_compute.loading import on_cpu


def working_set_bytes() -> int:
    """Return what may be in use at once; 0 if the machine does not say.

    On Metal that is what Apple recommends, on CUDA the device's memory, on a CPU the machine's.
    """
    if on_cpu():
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError):  # a platform without these names
            return 0
    info: dict[str, Any] = mx.device_info()
    for name in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if info.get(name):
            return int(info[name])
    return 0
