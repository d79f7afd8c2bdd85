"""Kept ids on the disk: a row for each text, beside the blocks that its ids are the names of.

Rows change in one transaction.  A row carries a hash of itself, since ids that decayed would
be another conversation's.  Rows are never updated: SQLite would write all of a row anew.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

import msgspec
from msgspec import Struct

from mlxbun.adapters.ssd.connections import Connections
from mlxbun.adapters.ssd.failures import told
from mlxbun.adapters.ssd.pending import Pending
from mlxbun.domain.blocks import Namespace, StoreFailed
from mlxbun.domain.kept_ids import Kept

log = logging.getLogger("mlxbun.ssd")

_ALL = """
    SELECT k.id, k.text, k.num_chars, k.ids, k.digest
    FROM kept_ids k JOIN namespaces n ON n.id = k.namespace
    WHERE n.namespace = ? ORDER BY k.id
"""
_DELETE = """
    DELETE FROM kept_ids
    WHERE namespace = (SELECT id FROM namespaces WHERE namespace = ?) AND text = ?
"""
_NAMESPACE = "INSERT OR IGNORE INTO namespaces (namespace) VALUES (?)"
_INSERT = """
    INSERT OR IGNORE INTO kept_ids (namespace, text, num_chars, ids, digest)
    VALUES ((SELECT id FROM namespaces WHERE namespace = ?), ?, ?, ?, ?)
"""


class Row(Struct, frozen=True):
    """What is written of a text: its hash, its length, ids of four bytes, and a hash of those."""

    text: str
    num_chars: int
    ids: bytes
    digest: str


class SsdKeptIds:
    """Port KeptIdsStore, in the manifests of a store; `SsdBlockStore.kept_ids` is one.

    `afford` is told of bytes before they are written, and raises StoreFailed if they are too many.
    """

    def __init__(
        self,
        connections: Connections,
        pending: Pending,
        writers: Lock,
        afford: Callable[[int], None],
    ) -> None:
        self._connections, self._pending = connections, pending
        self._writers, self._afford = writers, afford

    def load(self, namespace: Namespace) -> Sequence[Kept]:
        with told("the manifests cannot be read"):
            rows = self._connections.rows(_ALL, namespace)
        found, damaged = list[Kept](), list[int]()
        for number, *row in rows:
            one = kept_of(Row(*row))
            if one is None:
                damaged.append(number)
            else:
                found.append(one)
        if damaged:
            log.warning("kept ids of %d texts are damaged, and forgotten", len(damaged))
            with suppress(StoreFailed):  # then the next process finds it out anew
                self._forget(damaged)
        return found

    def save(self, namespace: Namespace, new: Sequence[Kept], gone: Sequence[Kept]) -> int:
        """Raises StoreFailed also over the day's budget."""
        rows = [row_of(one) for one in new]
        num_bytes = sum(len(row.ids) for row in rows)
        with self._writers, told("kept ids cannot be written"):
            if num_bytes:
                self._afford(num_bytes)
            with self._pending.transaction(), self._connections.transaction() as db:
                left = [(namespace, one.digest) for one in (*gone, *new)]
                db.executemany(_DELETE, left)
                self.insert(namespace, rows)
            self._pending.wrote(num_bytes)
        return num_bytes

    def insert(self, namespace: Namespace, rows: Sequence[Row]) -> None:
        """Keep texts that are not there; within a transaction, for all to be kept or none."""
        with self._connections.transaction() as db:
            if rows:
                db.execute(_NAMESPACE, (namespace,))
            db.executemany(_INSERT, [(namespace, *msgspec.structs.astuple(row)) for row in rows])

    def _forget(self, numbers: Sequence[int]) -> None:
        every = [(number,) for number in numbers]
        with self._writers, told("they stay"), self._connections.transaction() as db:
            db.executemany("DELETE FROM kept_ids WHERE id = ?", every)


def row_of(one: Kept) -> Row:
    data = _little_endian(one.ids).tobytes()
    return Row(one.digest, one.num_chars, data, _digest(one.digest, one.num_chars, data))


def kept_of(row: Row) -> Kept | None:
    """Return what a row keeps, None if it is damaged."""
    if _digest(row.text, row.num_chars, row.ids) != row.digest or len(row.ids) % 4:
        return None
    return Kept(row.text, row.num_chars, _little_endian(array("I", row.ids)))


def _little_endian(ids: array[int]) -> array[int]:
    """Return ids in the order of bytes that the disk has, or from it in the machine's."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids


def _digest(text: str, num_chars: int, ids: bytes) -> str:
    return hashlib.sha256(f"{text} {num_chars} ".encode() + ids).hexdigest()
