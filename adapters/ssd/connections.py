"""Connections to the SQLite file that the manifests are in: what is durable, and who waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock
from typing import Any

from sqlite_utils import Database

from mlxbun.adapters.ssd.files import Files
from mlxbun.adapters.ssd.schema import migrations


class ManifestDamaged(Exception):
    """The file is no SQLite database, or one that SQLite finds damaged."""


class Connections:
    """A SQLite file in WAL mode: what was committed survives a power cut.

    Any thread may call.  There are two connections, one for reading and one for writing, so that
    a reader does not wait for a commit to reach the medium.  Every call raises sqlite3.Error
    where SQLite does, with nothing changed.
    """

    def __init__(self, path: Path, files: Files) -> None:
        """Open, or create, and bring the tables up to date.

        Raises ManifestDamaged, or sqlite3.Error for what is no fault of the file.
        """
        self._files = files
        self.alone, self._reading = RLock(), Lock()  # `alone` keeps other writers out
        self._write = _connect(path)
        try:
            _prepare(self._write)
            self._read = _connect(path)
        except BaseException:
            self._write.close()
            raise
        self._read.conn.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        with self.alone, self._reading:
            self._read.close()
            self._write.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Keep other writers out, and commit all that is done meanwhile, or nothing.

        Calls inside it join it.  Reading inside it sees what was before.
        """
        with self.alone:
            if self._write.conn.in_transaction:
                yield self._write.conn
                return
            with self._write.atomic():
                yield self._write.conn
                self._files.committing()
            self._files.committed()

    def compact(self) -> None:
        """Leave nothing in the file of rows that were deleted.  Not within a transaction."""
        with self.alone, self._reading:
            self._write.conn.execute("VACUUM")
            self._write.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rows(self, sql: str, *values: object) -> list[Any]:
        """Return what a query finds, outside of any transaction."""
        with self._reading:
            return self._read.conn.execute(sql, values).fetchall()


def _connect(path: Path) -> Database:
    # Locks are ours, so any thread may use a connection; sqlite-utils begins what it commits.
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    return Database(connection, execute_plugins=False)


def _prepare(db: Database) -> None:
    try:
        db.enable_wal()
        if db.journal_mode != "wal":
            raise sqlite3.OperationalError("the file system cannot keep a write-ahead log")
        damage = db.conn.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise ManifestDamaged(str(error)) from error
        raise
    if damage != "ok":
        raise ManifestDamaged(damage)
    for pragma in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON",
                   "foreign_keys = ON", "temp_store = MEMORY"):  # fmt: skip
        db.conn.execute(f"PRAGMA {pragma}")
    migrations.apply(db)
    db.conn.execute("CREATE TEMP TABLE touched (id INTEGER, at REAL)")
