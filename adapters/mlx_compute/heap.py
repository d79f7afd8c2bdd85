"""Memory that MLX's CPU build frees stays with the process, up to a bound.

A step there frees and takes the same hundreds of megabytes again: logits, masks, activations.
glibc gives large pieces back to the system at once, and the system clears each page anew when it
is touched: 7,000 page faults in a step of 32 rows with a vocabulary of 49,000, 6 % of it.
"""

from __future__ import annotations

import ctypes
import sys

KEPT_BYTES = 256 << 20  # that are free and stay, at most
OWN_BYTES = 64 << 20  # pieces from this size on go back to the system when they are freed
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # Source: glibc, malloc.h


def keep_freed_memory() -> bool:
    """Let freed memory be used again; return whether it helped.

    Threads keep arenas of their own, though one for all would save more page faults: small models
    take so many small pieces in two threads that waiting for each other cost a third of a step.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library than glibc
        return False
    wanted = ((_TRIM_THRESHOLD, KEPT_BYTES), (_MMAP_THRESHOLD, OWN_BYTES))
    return all([mallopt(name, value) == 1 for name, value in wanted])
