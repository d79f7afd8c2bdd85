"""Reading ahead: what the disk has for requests that wait their turn is read while they wait.

Bounded in bytes, so that what waits does not drive out what runs, and given up with the request.
What was read is not pinned: if it left RAM again before its turn, it is asked for anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from mlxbun.domain import residency
from mlxbun.domain.blocks import BlockKey
from mlxbun.domain.residency import Event
from mlxbun.domain.sampling import RequestId

SHARE = 4  # one part in so many of RAM's budget is read ahead


class _Ahead(Struct, frozen=True):
    """What a waiting request will begin with: its keys, and the bytes that are read for it."""

    find: residency.Find
    num_bytes: int


class ReadAhead:
    """Who waits and was looked at.  `max_bytes` may be read for all of them together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._waiting: dict[RequestId, _Ahead] = {}
        self._num_bytes = 0

    @property
    def room(self) -> int:
        """Bytes that may still be read ahead."""
        return self._max_bytes - self._num_bytes

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    def begun(
        self, state: residency.Residency, find: residency.Find, events: Sequence[Event]
    ) -> None:
        """Note what was decided for a request that waits."""
        started = [k for e in events if isinstance(e, residency.RestoreStarted) for k in e.keys]
        num_bytes = sum(state.blocks[key].info.num_bytes for key in started)
        self._waiting[find.request_id] = _Ahead(find, num_bytes)
        self._num_bytes += num_bytes

    def leave(self, request_id: RequestId) -> residency.Find | None:
        """Let go of a request whose turn has come, or that is over; return what it would ask."""
        ahead = self._waiting.pop(request_id, None)
        if ahead is None:
            return None
        self._num_bytes -= ahead.num_bytes
        return ahead.find

    def wanted(self) -> set[BlockKey]:
        """Return the keys of all who wait."""
        return {key for ahead in self._waiting.values() for key in keys_of(ahead.find)}


def keys_of(find: residency.Find) -> Iterable[BlockKey]:
    """Return all that a request may begin with."""
    return (*find.keys, *(key for _, key in find.ends))


def unwanted(
    state: residency.Residency, keys: Iterable[BlockKey], wanted: set[BlockKey]
) -> tuple[BlockKey, ...]:
    """Return which of `keys` are being read from the disk for nobody."""
    return tuple(
        key
        for key in dict.fromkeys(keys)
        if key in state.blocks and state.blocks[key].restoring and key not in wanted
    )
