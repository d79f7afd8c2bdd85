"""Checkpoints of generations on the disk: a row each, rows of what each added, and parts of state.

Rows and state become visible in one transaction, and what they take the place of goes in the same
one.  What is there is not written again: neither tokens nor state.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock

import msgspec

from mlxbun.adapters.ssd import pruning
from mlxbun.adapters.ssd.answer_parts import assembled, digest_of, head_of, part_of, read_head
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
    SELECT g.id, g.record, g.digest
    FROM generations g JOIN namespaces n ON n.id = g.namespace
    WHERE n.namespace = ? AND g.key = ?
"""
_LENGTH = """
    SELECT g.id, g.num_tokens FROM generations g JOIN namespaces n ON n.id = g.namespace
    WHERE n.namespace = ? AND g.key = ?
"""
_PARTS = "SELECT record, digest FROM answer_parts WHERE generation = ? ORDER BY start"
# Of an earlier version's checkpoints, the row itself names the state.
_STATE = """
    SELECT b.id, b.key FROM blocks b JOIN generations g ON g.namespace = b.namespace
    WHERE g.id = :generation AND (g.state = b.key
        OR b.key IN (SELECT s.key FROM answer_states s WHERE s.generation = :generation))
"""
_INSERT = """
    INSERT INTO generations (namespace, key, num_bytes, record, digest, saved, num_tokens)
    VALUES ((SELECT id FROM namespaces WHERE namespace = ?), ?, 0, x'', '', 0, 0)
"""
_UPDATE = """
    UPDATE generations SET num_bytes = ?, record = ?, digest = ?, saved = ?, num_tokens = ?
    WHERE id = ?
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
        self,
        namespace: Namespace,
        checkpoint: GenerationCheckpoint,
        new: Blocks = (),
        after: int = 0,
    ) -> Committed:
        """Raises ValueError for tensors that a file cannot hold; StoreFailed also over budget."""
        gone = list[str]()

        def put() -> None:
            gone.clear()
            with self._connections.transaction() as db:
                number = _row(db, namespace, checkpoint.key, after)
                _write(db, number, checkpoint, after, self._now())
                gone.extend(_leave(db, number, checkpoint))

        committed = self._commit(namespace, new, put)
        self._losses.drop(gone)
        return committed

    def load(
        self, namespace: Namespace, key: GenerationKey
    ) -> tuple[GenerationCheckpoint, Sequence[Sequence[Tensor]]] | None:
        try:
            rows = self._connections.rows(_ONE, namespace, key)
            parts = self._connections.rows(_PARTS, rows[0][0]) if rows else ()
        except sqlite3.Error as error:
            log.warning("the checkpoint of an answer cannot be read: %s", error)
            return None
        for number, record, digest in rows:
            head = read_head(record, digest)
            checkpoint = assembled(head, parts) if head is not None else None
            if checkpoint is None or checkpoint.key != key:
                log.warning("the checkpoint of an answer is damaged, and forgotten")
                with suppress(StoreFailed):  # then the next one to ask finds it out anew
                    self._forget([number])
                return None
            try:
                state = [self._read(namespace, part.key) for part in checkpoint.state]
            except BlockLost as lost:
                log.warning("the state of an answer is computed again: %s", lost)
                return msgspec.structs.replace(checkpoint, state=()), []
            return checkpoint, state
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
    """Delete a checkpoint with its state; return the contents that nobody needs any more."""
    blocks = [row[0] for row in db.execute(_STATE, {"generation": number})]
    contents = pruning.delete(db, blocks).contents
    db.execute("DELETE FROM generations WHERE id = ?", (number,))
    return contents


def _row(db: sqlite3.Connection, namespace: Namespace, key: GenerationKey, after: int) -> int:
    """Return the row of a checkpoint, which has its first `after` tokens and the older state."""
    found = db.execute(_LENGTH, (namespace, key)).fetchone()
    if after:
        if found is None or found[1] != after:
            raise StoreFailed(f"checkpoint {key}: its first {after} tokens are not kept")
        return int(found[0])
    if found is not None:
        db.execute("DELETE FROM answer_parts WHERE generation = ?", (found[0],))
        return int(found[0])
    db.execute("INSERT OR IGNORE INTO namespaces (namespace) VALUES (?)", (namespace,))
    made = db.execute(_INSERT, (namespace, key)).lastrowid
    assert made is not None
    return made


def _write(
    db: sqlite3.Connection, number: int, checkpoint: GenerationCheckpoint, after: int, now: float
) -> None:
    record, part = msgspec.json.encode(head_of(checkpoint)), part_of(checkpoint, after)
    num_tokens = len(checkpoint.token_ids)
    told_of = (checkpoint.num_bytes, record, digest_of(record), now, num_tokens)
    db.execute(_UPDATE, (*told_of, number))
    db.execute(
        "INSERT INTO answer_parts (generation, start, record, digest) VALUES (?, ?, ?, ?)",
        (number, after, part, digest_of(part)),
    )


def _leave(db: sqlite3.Connection, number: int, checkpoint: GenerationCheckpoint) -> Sequence[str]:
    """Name a checkpoint's state, and delete what else the row had; return what nobody needs.

    Raises StoreFailed where some of the state is not there.
    """
    named = {part.key for part in checkpoint.state}
    old = [block for block, key in db.execute(_STATE, {"generation": number}) if key not in named]
    db.execute("DELETE FROM answer_states WHERE generation = ?", (number,))
    db.execute("UPDATE generations SET state = NULL WHERE id = ?", (number,))
    db.executemany(
        "INSERT INTO answer_states (generation, key) VALUES (?, ?)",
        [(number, key) for key in sorted(named)],
    )
    there = {key for _, key in db.execute(_STATE, {"generation": number})}
    if named - there:
        raise StoreFailed(f"checkpoint {checkpoint.key}: some of its state is not kept")
    return pruning.delete(db, old).contents
