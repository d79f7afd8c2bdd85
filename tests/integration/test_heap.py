"""Freed memory stays with a process that asks for it, in the process alone that asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

# One thread, so that pieces come and go in the same order each time.
PIECES = """
import resource, sys
from mlxbun.adapters.mlx_compute.heap import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()

def work():
    # Three steps' worth: each takes and gives back 80 MB, as pieces of 8.
    for _ in range(3):
        pieces = [bytearray(8 << 20) for _ in range(10)]
        for piece in pieces:
            piece[::4096] = bytes(len(piece) // 4096)
        del piece, pieces

work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PIECES, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_what_a_step_freed_the_next_one_uses_without_new_pages() -> None:
    kept, given_back = page_faults("kept"), page_faults("plain")
    assert kept < given_back / 4
