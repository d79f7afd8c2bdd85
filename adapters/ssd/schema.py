"""The tables of the manifests.  Migrations are only added: old directories open for ever."""

from __future__ import annotations

from sqlite_utils import Database, Migrations

migrations = Migrations("mlxbun.ssd")


# A block's row has a greater id than its parent's, and is never used later than its parent: so
# "least recently used, then newest" is an order in which children go before their parents.
# Foreign keys are checked when a transaction ends, and no delete cascades: SQLite bounds the
# depth of cascades, and a chain may be longer.
_BLOCKS = (
    """
        CREATE TABLE namespaces (
            id INTEGER PRIMARY KEY,
            namespace TEXT NOT NULL UNIQUE,
            description TEXT
        )
        """,
    """
        CREATE TABLE objects (
            id INTEGER PRIMARY KEY,
            content TEXT NOT NULL UNIQUE,
            num_bytes INTEGER NOT NULL
        )
        """,
    """
        CREATE TABLE blocks (
            id INTEGER PRIMARY KEY,
            namespace INTEGER NOT NULL REFERENCES namespaces DEFERRABLE INITIALLY DEFERRED,
            key TEXT NOT NULL,
            parent INTEGER REFERENCES blocks DEFERRABLE INITIALLY DEFERRED,
            kind TEXT NOT NULL,
            start INTEGER NOT NULL,
            num_tokens INTEGER NOT NULL,
            num_bytes INTEGER NOT NULL,
            object INTEGER NOT NULL REFERENCES objects DEFERRABLE INITIALLY DEFERRED,
            created REAL NOT NULL,
            last_used REAL NOT NULL,
            UNIQUE (namespace, key)
        )
        """,
    "CREATE INDEX blocks_by_parent ON blocks (parent)",
    "CREATE INDEX blocks_by_object ON blocks (object)",
    "CREATE INDEX blocks_by_use ON blocks (last_used, id DESC)",
    "CREATE TABLE written (day TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL) WITHOUT ROWID",
)


@migrations(name="0001_blocks")
def _blocks(db: Database) -> None:
    for statement in _BLOCKS:
        db.conn.execute(statement)


# `state` is the key of a block of the same namespace; blocks may leave before their checkpoint.
@migrations(name="0002_generations")
def _generations(db: Database) -> None:
    db.conn.execute(
        """
        CREATE TABLE generations (
            id INTEGER PRIMARY KEY,
            namespace INTEGER NOT NULL REFERENCES namespaces DEFERRABLE INITIALLY DEFERRED,
            key TEXT NOT NULL,
            state TEXT,
            num_bytes INTEGER NOT NULL,
            record BLOB NOT NULL,
            digest TEXT NOT NULL,
            saved REAL NOT NULL,
            UNIQUE (namespace, key)
        )
        """
    )


# NULL in all three: the block has a file of its own, whose content is its digest.
@migrations(name="0003_whole")
def _whole(db: Database) -> None:
    for column in ("part_at INTEGER", "part_bytes INTEGER", "part_digest TEXT"):
        db.conn.execute(f"ALTER TABLE blocks ADD COLUMN {column}")


# `text` is a text's hash, and a greater id is a text that was saved later.  This one delete
# cascades, so that a version which knows no kept ids can forget a namespace.
@migrations(name="0004_kept_ids")
def _kept_ids(db: Database) -> None:
    db.conn.execute(
        """
        CREATE TABLE kept_ids (
            id INTEGER PRIMARY KEY,
            namespace INTEGER NOT NULL REFERENCES namespaces ON DELETE CASCADE,
            text TEXT NOT NULL,
            num_chars INTEGER NOT NULL,
            ids BLOB NOT NULL,
            digest TEXT NOT NULL,
            UNIQUE (namespace, text)
        )
        """
    )


# What each checkpoint added to its answer, and the keys of its state, blocks of its namespace.
# `generations.state` is what an earlier version wrote.  They go with their answer, as above.
@migrations(name="0005_answer_parts")
def _answer_parts(db: Database) -> None:
    for statement in _ANSWER_PARTS:
        db.conn.execute(statement)


# Tokens of a prompt that are computed in a second, as measured last.
@migrations(name="0006_prefill_rate")
def _prefill_rate(db: Database) -> None:
    db.conn.execute("ALTER TABLE namespaces ADD COLUMN prefill_rate REAL")


_ANSWER_PARTS = (
    "ALTER TABLE generations ADD COLUMN num_tokens INTEGER NOT NULL DEFAULT 0",
    """
        CREATE TABLE answer_parts (
            generation INTEGER NOT NULL REFERENCES generations ON DELETE CASCADE,
            start INTEGER NOT NULL,
            record BLOB NOT NULL,
            digest TEXT NOT NULL,
            PRIMARY KEY (generation, start)
        )
        """,
    """
        CREATE TABLE answer_states (
            generation INTEGER NOT NULL REFERENCES generations ON DELETE CASCADE,
            key TEXT NOT NULL,
            PRIMARY KEY (generation, key)
        ) WITHOUT ROWID
        """,
)
