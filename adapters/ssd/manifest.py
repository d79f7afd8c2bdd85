"""The manifests: which blocks are visible, which file has which, who was used when.

Knows no file of a block: it is told what was written, and says which files nobody needs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from mlxbun.adapters.ssd import pruning
from mlxbun.adapters.ssd.connections import Connections
from mlxbun.adapters.ssd.place import Place, alone
from mlxbun.adapters.ssd.pruning import Gone
from mlxbun.domain.blocks import BlockInfo, BlockKey, Namespace, StoreFailed


class Identity(Struct, frozen=True):
    """A namespace and what is kept of it.  `num_bytes` counts a shared file once."""

    namespace: Namespace
    description: str | None
    num_blocks: int
    num_bytes: int
    last_used: float | None


_KNOWN = """
    SELECT b.key, p.key, b.kind, b.start, b.num_tokens, b.num_bytes,
        o.content, o.num_bytes, b.part_at, b.part_bytes, b.part_digest
    FROM blocks b JOIN namespaces n ON n.id = b.namespace JOIN objects o ON o.id = b.object
    LEFT JOIN blocks p ON p.id = b.parent
    WHERE n.namespace = ?
"""
_FIND = """
    SELECT o.content, o.num_bytes, b.part_at, b.part_bytes, b.part_digest
    FROM blocks b JOIN namespaces n ON n.id = b.namespace JOIN objects o ON o.id = b.object
    WHERE n.namespace = ? AND b.key = ?
"""
_RATE = "SELECT prefill_rate FROM namespaces WHERE namespace = ?"
_ID = """
    SELECT b.id FROM blocks b JOIN namespaces n ON n.id = b.namespace
    WHERE n.namespace = ? AND b.key = ?
"""
_CHAIN = """
    WITH RECURSIVE up (id) AS (
        SELECT b.id FROM blocks b JOIN namespaces n ON n.id = b.namespace
        WHERE n.namespace = ? AND b.key = ?
        UNION SELECT b.parent FROM up JOIN blocks b ON b.id = up.id WHERE b.parent IS NOT NULL
    )
    SELECT b.key, o.content, o.num_bytes, b.part_at, b.part_bytes, b.part_digest
    FROM up JOIN blocks b ON b.id = up.id JOIN objects o ON o.id = b.object ORDER BY b.id
"""
_IDENTITIES = """
    SELECT n.namespace, n.description,
        (SELECT count(*) FROM blocks WHERE namespace = n.id),
        (SELECT coalesce(sum(num_bytes), 0) FROM objects
            WHERE id IN (SELECT object FROM blocks WHERE namespace = n.id)),
        (SELECT max(last_used) FROM blocks WHERE namespace = n.id)
    FROM namespaces n ORDER BY n.namespace
"""
_INSERT = """
    INSERT INTO blocks
        (namespace, key, parent, kind, start, num_tokens, num_bytes, object,
        part_at, part_bytes, part_digest, created, last_used)
    VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT id FROM objects WHERE content = ?), ?, ?, ?, ?, ?)
"""
_MOVE = """
    UPDATE blocks SET object = (SELECT id FROM objects WHERE content = ?),
        part_at = ?, part_bytes = ?, part_digest = ?
    WHERE id = ?
"""
_TOUCH = """
    WITH RECURSIVE up (id, at) AS (
        SELECT id, at FROM touched
        UNION SELECT b.parent, up.at FROM up JOIN blocks b ON b.id = up.id
            WHERE b.parent IS NOT NULL
    )
    UPDATE blocks SET last_used = max(last_used, latest.at)
    FROM (SELECT id, max(at) AS at FROM up GROUP BY id) AS latest WHERE latest.id = blocks.id
"""
_ADD_WRITTEN = """
    INSERT INTO written VALUES (?, ?)
    ON CONFLICT (day) DO UPDATE SET num_bytes = num_bytes + excluded.num_bytes
"""
_FORGET_GENERATIONS = """
    DELETE FROM generations WHERE namespace = (SELECT id FROM namespaces WHERE namespace = ?)
"""


class Manifest:
    """The rows of blocks, of their files and namespaces.  Any thread may call.

    Every call raises sqlite3.Error where SQLite does, with nothing changed.  Inside a transaction
    of `connections`, what writes joins it.
    """

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    # Reading.

    def known(self, namespace: Namespace) -> list[BlockInfo]:
        """Return the blocks of a namespace, least recently used first, children before parents."""
        rows = self.connections.rows(_KNOWN + "ORDER BY b.last_used, b.id DESC", namespace)
        return [_info(row) for row in rows]

    def contents(self, namespace: Namespace) -> list[tuple[BlockInfo, Place]]:
        """Return the blocks of a namespace, parents before children, and where they are."""
        rows = self.connections.rows(_KNOWN + "ORDER BY b.id", namespace)
        return [(_info(row), _place(row[6:])) for row in rows]

    def find(self, namespace: Namespace, key: BlockKey) -> Place | None:
        """Return where a block is, None if it is not visible."""
        for row in self.connections.rows(_FIND, namespace, key):
            return _place(row)
        return None

    def chain(self, namespace: Namespace, key: BlockKey) -> list[tuple[BlockKey, Place]]:
        """Return a block and all before it, first to last, and where they are."""
        return [(row[0], _place(row[1:])) for row in self.connections.rows(_CHAIN, namespace, key)]

    def objects(self) -> dict[str, int]:
        """Return the contents that blocks refer to, and the sizes of their files."""
        return dict(self.connections.rows("SELECT content, num_bytes FROM objects"))

    def has(self, content: str) -> bool:
        return bool(self.connections.rows("SELECT 1 FROM objects WHERE content = ?", content))

    def num_bytes(self) -> int:
        total: int = self.connections.rows("SELECT coalesce(sum(num_bytes), 0) FROM objects")[0][0]
        return total

    def identities(self) -> list[Identity]:
        return [Identity(*row) for row in self.connections.rows(_IDENTITIES)]

    def written(self, day: str) -> int:
        """Return the bytes of files that were written on a day."""
        rows = self.connections.rows("SELECT num_bytes FROM written WHERE day = ?", day)
        return sum(row[0] for row in rows)

    # Writing.

    def insert(
        self, namespace: Namespace, blocks: Sequence[tuple[BlockInfo, Place]], now: float
    ) -> int:
        """Make blocks visible, parents before children; return how many were not yet.

        What is before a new block counts as used with it.  Raises StoreFailed for a parent that
        is not visible.
        """
        num_new = 0
        with self.connections.transaction() as db:
            owner = _namespace_id(db, namespace)
            for info, place in blocks:
                if _block_id(db, namespace, info.key) is not None:
                    continue
                parent = None
                if info.parent is not None:
                    parent = _block_id(db, namespace, info.parent)
                    if parent is None:
                        raise StoreFailed(f"block {info.key}: its parent {info.parent} is not kept")
                _know_file(db, place)
                told = (info.kind, info.start, info.num_tokens, info.num_bytes)
                values = (owner, info.key, parent, *told, *_columns(place), now, now)
                row = db.execute(_INSERT, values).lastrowid
                db.execute("INSERT INTO touched VALUES (?, ?)", (row, now))
                num_new += 1
            _touch(db)
        return num_new

    def move(self, namespace: Namespace, moves: Sequence[tuple[BlockKey, Place]]) -> Sequence[str]:
        """Say that blocks are in other places; return the contents that nobody needs any more."""
        with self.connections.transaction() as db:
            left: set[int] = set()
            for key, place in moves:
                block = _block_id(db, namespace, key)
                if block is not None:
                    _know_file(db, place)
                    of = db.execute("SELECT object FROM blocks WHERE id = ?", (block,))
                    left.add(of.fetchone()[0])
                    db.execute(_MOVE, (*_columns(place), block))
            return pruning.delete_unused(db, left)

    def use(self, uses: Mapping[tuple[Namespace, BlockKey], float]) -> None:
        """Note when blocks, and with them all before them, were of use."""
        with self.connections.transaction() as db:
            db.executemany(
                f"INSERT INTO touched SELECT id, ? FROM ({_ID})",
                [(at, namespace, key) for (namespace, key), at in uses.items()],
            )
            _touch(db)

    def describe(self, namespace: Namespace, text: str) -> None:
        with self.connections.transaction() as db:
            owner = _namespace_id(db, namespace)
            db.execute("UPDATE namespaces SET description = ? WHERE id = ?", (text, owner))

    def prefill_rate(self, namespace: Namespace) -> float:
        for (rate,) in self.connections.rows(_RATE, namespace):
            return rate or 0.0
        return 0.0

    def note_prefill_rate(self, namespace: Namespace, tokens_per_second: float) -> None:
        with self.connections.transaction() as db:
            owner = _namespace_id(db, namespace)
            db.execute(
                "UPDATE namespaces SET prefill_rate = ? WHERE id = ?", (tokens_per_second, owner)
            )

    def describe_new(self, namespace: Namespace, text: str) -> None:
        """Keep a description unless there is one."""
        with self.connections.transaction() as db:
            db.execute(
                "UPDATE namespaces SET description = ? WHERE namespace = ? AND description IS NULL",
                (text, namespace),
            )

    def add_written(self, day: str, num_bytes: int) -> None:
        with self.connections.transaction() as db:
            db.execute(_ADD_WRITTEN, (day, num_bytes))

    def forget(self, contents: Iterable[str]) -> Gone:
        """Forget the blocks that have these contents, whoever's, and all after them."""
        with self.connections.transaction() as db:
            return pruning.delete(db, pruning.with_descendants(db, contents))

    def forget_namespace(self, namespace: Namespace) -> Gone:
        """Forget a namespace, its blocks, its checkpoints and its description."""
        with self.connections.transaction() as db:
            gone = pruning.delete(db, pruning.of_namespace(db, namespace))
            db.execute(_FORGET_GENERATIONS, (namespace,))
            db.execute("DELETE FROM namespaces WHERE namespace = ?", (namespace,))
            return gone

    def shrink(self, max_bytes: int) -> Gone:
        """Forget least recently used blocks until the contents that are left take `max_bytes`."""
        with self.connections.transaction() as db:
            return pruning.delete(db, pruning.least_recently_used(db, max_bytes))


def _info(row: Sequence[Any]) -> BlockInfo:
    return BlockInfo(*row[:6])


def _place(row: Sequence[Any]) -> Place:
    content, file_bytes, at, num_bytes, digest = row
    if digest is None:
        return alone(content, file_bytes)
    return Place(content, file_bytes, at, num_bytes, digest)


def _columns(place: Place) -> tuple[str, int | None, int | None, str | None]:
    if place.is_alone:
        return (place.content, None, None, None)
    return (place.content, place.at, place.num_bytes, place.digest)


def _know_file(db: sqlite3.Connection, place: Place) -> None:
    db.execute(
        "INSERT OR IGNORE INTO objects (content, num_bytes) VALUES (?, ?)",
        (place.content, place.file_bytes),
    )


def _namespace_id(db: sqlite3.Connection, namespace: Namespace) -> int:
    db.execute("INSERT OR IGNORE INTO namespaces (namespace) VALUES (?)", (namespace,))
    row = db.execute("SELECT id FROM namespaces WHERE namespace = ?", (namespace,)).fetchone()
    found: int = row[0]
    return found


def _block_id(db: sqlite3.Connection, namespace: Namespace, key: BlockKey) -> int | None:
    row = db.execute(_ID, (namespace, key)).fetchone()
    return None if row is None else row[0]


def _touch(db: sqlite3.Connection) -> None:
    db.execute(_TOUCH)
    db.execute("DELETE FROM touched")
