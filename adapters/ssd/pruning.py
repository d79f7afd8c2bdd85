"""What leaves the manifests, and in which order: children before parents, rows before files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from msgspec import Struct

from mlxbun.domain.blocks import BlockKey, Namespace

_WITH_DESCENDANTS = """
    WITH RECURSIVE down (id) AS (
        SELECT b.id FROM blocks b JOIN objects o ON o.id = b.object WHERE o.content = ?
        UNION SELECT b.id FROM down JOIN blocks b ON b.parent = down.id
    )
    SELECT id FROM down
"""
_OF_NAMESPACE = """
    SELECT b.id FROM blocks b JOIN namespaces n ON n.id = b.namespace
    WHERE n.namespace = ? ORDER BY b.id DESC
"""
_BY_USE = """
    SELECT b.id, o.id, o.num_bytes FROM blocks b JOIN objects o ON o.id = b.object
    ORDER BY b.last_used, b.id DESC
"""
_NAMED = """
    SELECT n.namespace, b.key, b.object FROM blocks b JOIN namespaces n ON n.id = b.namespace
    WHERE b.id = ?
"""
_DELETE_UNUSED = """
    DELETE FROM objects
    WHERE id = :object AND NOT EXISTS (SELECT 1 FROM blocks WHERE object = :object)
    RETURNING content
"""


class Gone(Struct, frozen=True):
    """What left the manifests: blocks, children before parents, and contents without a block."""

    blocks: Sequence[tuple[Namespace, BlockKey]]
    contents: Sequence[str]


def with_descendants(db: sqlite3.Connection, contents: Iterable[str]) -> list[int]:
    """Return the blocks that have these contents and all after them, children first."""
    found = {row[0] for content in contents for row in db.execute(_WITH_DESCENDANTS, (content,))}
    return sorted(found, reverse=True)


def of_namespace(db: sqlite3.Connection, namespace: Namespace) -> list[int]:
    """Return the blocks of a namespace, children first."""
    return [row[0] for row in db.execute(_OF_NAMESPACE, (namespace,))]


def least_recently_used(db: sqlite3.Connection, max_bytes: int) -> list[int]:
    """Return the blocks to delete so that the contents that are left take `max_bytes`."""
    total: int = db.execute("SELECT coalesce(sum(num_bytes), 0) FROM objects").fetchone()[0]
    if total <= max_bytes:
        return []
    users = dict(db.execute("SELECT object, count(*) FROM blocks GROUP BY object"))
    doomed: list[int] = []
    for block, content, num_bytes in db.execute(_BY_USE):
        doomed.append(block)
        users[content] -= 1
        if not users[content]:
            total -= num_bytes
            if total <= max_bytes:
                break
    return doomed


def delete(db: sqlite3.Connection, blocks: Sequence[int]) -> Gone:
    """Delete blocks, and contents that no block refers to any more."""
    named = [db.execute(_NAMED, (block,)).fetchone() for block in blocks]
    db.executemany("DELETE FROM blocks WHERE id = ?", ((block,) for block in blocks))
    contents = delete_unused(db, {row[2] for row in named})
    return Gone([(namespace, key) for namespace, key, _ in named], contents)


def delete_unused(db: sqlite3.Connection, objects: Iterable[int]) -> list[str]:
    """Delete those of `objects` that no block refers to; return their contents."""
    deleted = (db.execute(_DELETE_UNUSED, {"object": one}).fetchall() for one in objects)
    return [row[0] for rows in deleted for row in rows]
