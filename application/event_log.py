"""The records of one stream, kept so that who left can read them again, also while more come.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator

import msgspec

CHUNK = 256  # records; of one token's record nearly all is as in the one before
Numbered = tuple[int, bytes]

_DECODER = msgspec.msgpack.Decoder(list[Numbered])


class EventLog:
    """Records by their numbers, which ascend.  What is not among the latest is compressed."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, bytes]] = []  # with the number of its last record
        self._latest: list[Numbered] = []
        self._num_bytes = 0
        self._changed = asyncio.Event()
        self.closed = False
        self.last = -1  # the number of the last record

    @property
    def num_bytes(self) -> int:
        """What it takes of memory, about."""
        return self._num_bytes + sum(len(record) for _, record in self._latest)

    def add(self, number: int, record: bytes) -> None:
        assert number > self.last and not self.closed
        self._latest.append((number, record))
        self.last = number
        if len(self._latest) == CHUNK:
            self._pack()
        self._wake()

    def close(self) -> None:
        """Say that nothing more comes.  Safe to call twice."""
        if not self.closed:
            self._pack()
            self.closed = True
            self._wake()

    def read(self, after: int) -> list[Numbered]:
        """Return records with larger numbers than `after`, the next ones, not always all."""
        for last, packed in self._chunks:
            if last > after:
                records = _DECODER.decode(zlib.decompress(packed))
                return [record for record in records if record[0] > after]
        return [record for record in self._latest if record[0] > after]

    async def follow(self, after: int) -> AsyncGenerator[list[Numbered], None]:
        """Yield all records with larger numbers than `after`, to the last that will come."""
        while True:
            if records := self.read(after):
                after = records[-1][0]
                yield records
            elif self.closed:
                return
            else:
                await self._changed.wait()

    def _pack(self) -> None:
        if self._latest:
            packed = zlib.compress(msgspec.msgpack.encode(self._latest), 1)
            self._chunks.append((self.last, packed))
            self._num_bytes += len(packed)
            self._latest = []

    def _wake(self) -> None:
        self._changed.set()  # whoever waits now wakes
        self._changed.clear()
