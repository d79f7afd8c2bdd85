"""Checkpoints of generations on the disk: a row each, and a block for the state.

Row and block become visible in one transaction, and those that they replace go in the same one.
A row carries a hash of itself, since a token that decayed would be said to a client.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

import msgspec

from mlxbun.adapters.ssd import pruning
from mlxbun.adapters.ssd.connections import Connections
from mlxbun.adapters.ssd.failures import told
from mlxbun.adapters.ssd.losses import Losses
from mlxbun.adapters.ssd.pending import Pending
from mlxbun.domain.blocks import (
    BlockInfo,
    BlockKey,
    BlockLost,
    Committed,
    Namespace,
    StoreFailed,
    Tensor,
)
from mlxbun.domain.generation_checkpoint import Bounds, GenerationCheckpoint, GenerationKey

log = logging.getLogger("mlxbun.ssd")

Blocks = Sequence[tuple[BlockInfo, Sequence[Tensor]]]
# Makes blocks visible, and does in the same transaction what the callable does.
Commit = Callable[[Namespace, Blocks, Callable[[], None]], Committed]
Read = Callable[[Namespace, BlockKey], Sequence[Tensor]]

_KEPT = """
    SELECT g.id, g.key, g.num_bytes, g.saved
    FROM generations g JOIN namespaces n ON n.id = g.namespace
    WHERE n.namespace = ? ORDER BY g.saved, g.id
"""
_ONE = """
    SELECT g.id, g.record, g.digest, g.state
    FROM generations g JOIN namespaces n ON n.id = g.namespace
    WHERE n.namespace = ? AND g.key = ?
"""
_STATE = """
    SELECT b.id FROM blocks b JOIN generations g ON g.namespace = b.namespace AND g.state = b.key
    WHERE g.id = ?
"""
_INSERT = """
    INSERT INTO generations (namespace, key, state, num_bytes, record, digest, saved)
    VALUES ((SELECT id FROM namespaces WHERE namespace = ?), ?, ?, ?, ?, ?, ?)
"""


class SsdGenerations:
    """Port GenerationStore, beside the blocks of a store; `SsdBlockStore.generations` is one."""

    def __init__(
        self,
        connections: Connections,
        pending: Pending,
        losses: Losses,
        writers: Lock,
        commit: Commit,
        read: Read,
        now: Callable[[], float],
    ) -> None:
        self._connections, self._pending, self._losses = connections, pending, losses
        self._writers, self._commit, self._read, self._now = writers, commit, read, now

    def keys(self, namespace: Namespace) -> Sequence[GenerationKey]:
        with told("the manifests cannot be read"):
            return [row[1] for row in self._connections.rows(_KEPT, namespace)]

    def save(
        self, namespace: Namespace, checkpoint: GenerationCheckpoint, state: Sequence[Tensor]
    ) -> Committed:
        """Raises ValueError for tensors that a file cannot hold; StoreFailed also over budget."""
        gone = list[str]()

        def replace() -> None:
            with self._connections.transaction() as db:
                for row in db.execute(_ONE, (namespace, checkpoint.key)).fetchall():
                    gone.extend(_delete(db, row[0]))
                _insert(db, namespace, checkpoint, self._now())

        blocks = [(checkpoint.state, state)] if checkpoint.state is not None else []
        committed = self._commit(namespace, blocks, replace)
        self._losses.drop(gone)
        return committed

    def load(
        self, namespace: Namespace, key: GenerationKey
    ) -> tuple[GenerationCheckpoint, Sequence[Tensor]] | None:
        try:
            rows = self._connections.rows(_ONE, namespace, key)
        except sqlite3.Error as error:
            log.warning("the checkpoint of an answer cannot be read: %s", error)
            return None
        for number, record, digest, _ in rows:
            checkpoint = _decoded(record, digest)
            if checkpoint is None or checkpoint.key != key:
                log.warning("the checkpoint of an answer is damaged, and forgotten")
                with suppress(StoreFailed):  # then the next one to ask finds it out anew
                    self._forget([number])
                return None
            if checkpoint.state is None:
                return checkpoint, ()
            try:
                return checkpoint, self._read(namespace, checkpoint.state.key)
            except BlockLost as lost:
                log.warning("the state of an answer is computed again: %s", lost)
                return msgspec.structs.replace(checkpoint, state=None), ()
        return None

    def drop(self, namespace: Namespace, keys: Sequence[GenerationKey]) -> None:
        wanted = set(keys)
        with told("the manifests cannot be read"):
            kept = self._connections.rows(_KEPT, namespace)
        self._forget([row[0] for row in kept if row[1] in wanted])

    def prune(self, namespace: Namespace, bounds: Bounds) -> Sequence[GenerationKey]:
        with told("the manifests cannot be read"):
            kept = self._connections.rows(_KEPT, namespace)
        total, going = sum(row[2] for row in kept), list[tuple[int, GenerationKey]]()
        for place, (number, key, num_bytes, saved) in enumerate(kept):
            too_many = len(kept) - place > bounds.max_checkpoints or total > bounds.max_bytes
            if not too_many and self._now() - saved <= bounds.max_age_seconds:
                break
            going.append((number, key))
            total -= num_bytes
        self._forget([number for number, _ in going])
        return [key for _, key in going]

    def _forget(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        with self._writers, told("checkpoints cannot be forgotten"):
            with self._pending.transaction(), self._connections.transaction() as db:
                gone = [content for number in numbers for content in _delete(db, number)]
            self._losses.drop(gone)


def _delete(db: sqlite3.Connection, number: int) -> Sequence[str]:
    """Delete a checkpoint with its block; return the contents that nobody needs any more."""
    blocks = [row[0] for row in db.execute(_STATE, (number,))]
    contents = pruning.delete(db, blocks).contents
    db.execute("DELETE FROM generations WHERE id = ?", (number,))
    return contents


def _insert(
    db: sqlite3.Connection, namespace: Namespace, checkpoint: GenerationCheckpoint, now: float
) -> None:
    state = checkpoint.state
    record = msgspec.json.encode(checkpoint)
    digest = hashlib.sha256(record).hexdigest()
    db.execute("INSERT OR IGNORE INTO namespaces (namespace) VALUES (?)", (namespace,))
    db.execute(
        _INSERT,
        (
            namespace,
            checkpoint.key,
            state.key if state is not None else None,
            state.num_bytes if state is not None else 0,
            record,
            digest,
            now,
        ),
    )


def _decoded(record: bytes, digest: str) -> GenerationCheckpoint | None:
    if hashlib.sha256(record).hexdigest() != digest:
        return None
    try:
        return msgspec.json.decode(record, type=GenerationCheckpoint)
    except msgspec.DecodeError:
        return None
