"""What commands, events and state of residency have in common: names, causes and the budget."""

from __future__ import annotations

from typing import Literal, NewType

from msgspec import Struct

SessionId = NewType("SessionId", str)  # a digest of what the client called it

Cause = Literal["room", "idle", "pressure", "overtaken"]


class Budget(Struct, frozen=True):
    """`ram_bytes`: the soft target.  `has_ssd`: whether blocks are written to a disk as well.

    `retention` "lru" evicts what was used longest ago; "cost-size" what saves the least work a
    byte (Cao and Irani 1997, GreedyDual-Size).  What the SSD has leaves RAM after `idle_seconds`
    without use; 0 keeps it.  A session lives `session_seconds` after its last publication.
    `tails_to_ssd` is False where the SSD would take all before a tail with it.
    """

    ram_bytes: int
    has_ssd: bool = False
    retention: Literal["lru", "cost-size"] = "lru"
    idle_seconds: float = 0.0
    session_seconds: float = 3600.0
    tails_to_ssd: bool = True
