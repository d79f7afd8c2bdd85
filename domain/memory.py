"""Memory: who holds what of the device's memory, and when it is short.

Sizes are bytes.  The parts of a ledger sum to what the allocator says is in use; what nobody
claims is `other`: activations, compiled graphs, and what the sampler keeps.
"""

from __future__ import annotations

from msgspec import Struct

LITTLE = 64  # one part in so many of the working set
PRESSURE = 0.85  # of the working set: what is in use beyond it is too much


class MemoryUse(Struct, frozen=True, gc=False):
    """What the allocator and the model say.

    `active_bytes` are in use, `cached_bytes` free but kept by the allocator, `peak_bytes` the
    most that was in use.  `working_set_bytes` is what the device can hold well, 0 if that is not
    known.  `live_kv_bytes` are of rows that run, capacity included.
    """

    active_bytes: int
    cached_bytes: int = 0
    peak_bytes: int = 0
    working_set_bytes: int = 0
    weights_bytes: int = 0
    live_kv_bytes: int = 0
    draft_bytes: int = 0


class MemoryMeasured(Struct, frozen=True, gc=False, tag="memory_measured"):
    """A ledger: weights to `other_bytes` sum to `active_bytes`.

    `writing_bytes` left the prefix cache while the disk still writes them.  `other_bytes` is
    negative where two parts share arrays, as a row does that begins with kept state until its
    first step, or where a step that is on its way has not computed what a row claims.
    `restoring_bytes` are on their way from the disk, in the process's own memory.
    """

    active_bytes: int
    weights_bytes: int
    live_kv_bytes: int
    prefix_cache_bytes: int
    writing_bytes: int
    draft_bytes: int
    other_bytes: int
    restoring_bytes: int
    cached_bytes: int
    peak_bytes: int
    working_set_bytes: int

    @property
    def short_bytes(self) -> int:
        """What is in use beyond the part of the working set that may be; 0 if nothing is."""
        if not self.working_set_bytes:
            return 0
        return max(0, self.active_bytes - int(PRESSURE * self.working_set_bytes))


Event = MemoryMeasured


def fits(ledger: MemoryMeasured, num_bytes: int, promised_bytes: int) -> bool:
    """Return whether so much state fits beside what is there and what is promised to others.

    The prefix cache makes room.  What is little fits always: where weights alone are nearly all of
    the working set, short prompts are still answered side by side.
    """
    if not ledger.working_set_bytes or num_bytes * LITTLE <= ledger.working_set_bytes:
        return True
    used = ledger.active_bytes - ledger.prefix_cache_bytes
    return used + promised_bytes + num_bytes <= PRESSURE * ledger.working_set_bytes


def measured(
    use: MemoryUse,
    *,
    prefix_cache_bytes: int = 0,
    writing_bytes: int = 0,
    restoring_bytes: int = 0,
) -> MemoryMeasured:
    """Return the ledger of a moment."""
    claimed = (
        use.weights_bytes + use.live_kv_bytes + prefix_cache_bytes + writing_bytes + use.draft_bytes
    )
    return MemoryMeasured(
        active_bytes=use.active_bytes,
        weights_bytes=use.weights_bytes,
        live_kv_bytes=use.live_kv_bytes,
        prefix_cache_bytes=prefix_cache_bytes,
        writing_bytes=writing_bytes,
        draft_bytes=use.draft_bytes,
        other_bytes=use.active_bytes - claimed,
        restoring_bytes=restoring_bytes,
        cached_bytes=use.cached_bytes,
        peak_bytes=use.peak_bytes,
        working_set_bytes=use.working_set_bytes,
    )
