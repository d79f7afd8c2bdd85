"""Residency: which prefix state is where, who may use it, and what leaves when room is short.

The cache may forget, it may never lie.  State in RAM is lent, not given: a donor stays as it is,
so any number of requests share one prefill, also while it is being computed.  What leaves RAM
leaves because the SSD has it, because there is no SSD, or because a hard ceiling forces it.
"""

from __future__ import annotations

from mlxbun.domain.residency.decisions import decide, waiting_on
from mlxbun.domain.residency.eviction import CEILING
from mlxbun.domain.residency.state import Residency, Resident, evolve, fold
from mlxbun.domain.residency.words import (
    BlocksEvicted,
    BlocksForgotten,
    BlocksFound,
    BlocksNotWritten,
    BlocksPublished,
    BlocksRestored,
    BlocksWritten,
    Budget,
    Clear,
    Command,
    Compute,
    End,
    Event,
    Find,
    Opened,
    PrefixAwaited,
    PrefixComputing,
    PrefixLent,
    PrefixMissed,
    PrefixReturned,
    PrefixUserEnded,
    Pruned,
    Publish,
    Restored,
    RestoreFailed,
    RestoreStarted,
    Return,
    WriteFailed,
    WriteQueued,
    Written,
)

__all__ = [
    "BlocksEvicted",
    "BlocksForgotten",
    "BlocksFound",
    "BlocksNotWritten",
    "BlocksPublished",
    "BlocksRestored",
    "BlocksWritten",
    "Budget",
    "CEILING",
    "Clear",
    "Command",
    "Compute",
    "End",
    "Event",
    "Find",
    "Opened",
    "PrefixAwaited",
    "PrefixComputing",
    "PrefixLent",
    "PrefixMissed",
    "PrefixReturned",
    "PrefixUserEnded",
    "Pruned",
    "Publish",
    "Residency",
    "Resident",
    "RestoreFailed",
    "RestoreStarted",
    "Restored",
    "Return",
    "WriteFailed",
    "WriteQueued",
    "Written",
    "decide",
    "evolve",
    "fold",
    "waiting_on",
]
