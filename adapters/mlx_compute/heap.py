"""Memory that MLX's CPU build frees stays with the process, up to a bound.

A step there frees and takes the same hundreds of megabytes again: logits, masks, activations.
glibc gives large pieces back to the system at once, and the system clears each page anew when it
is touched: some 15,000 page faults in a step of 32 rows with a vocabulary of 49,000, 6 % of it.
"""

from __future__ import annotations

import ctypes
import sys

KEPT_BYTES = 256 << 20  # that are free and stay, at most
OWN_BYTES = 64 << 20  # pieces from this size on go back to the system when they are freed
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # Source: glibc, malloc.h


def keep_freed_memory() -> bool:
    """Let freed memory be used again.  Call before there are threads; return whether it helped.

    One arena serves all threads: others are made of pieces of 64 MB, which come and go.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library than glibc
        return False
    wanted = (
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_MMAP_THRESHOLD, OWN_BYTES),
        (_ARENA_MAX, 1),
    )
    return all([mallopt(name, value) == 1 for name, value in wanted])
