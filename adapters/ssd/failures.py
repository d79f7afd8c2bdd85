"""What the disk and SQLite raise, as the port's one error."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from mlxbun.domain.blocks import StoreFailed


@contextmanager
def told(what: str) -> Generator[None]:
    """Raise StoreFailed for what the disk or SQLite raises; `errno` is the cause's.

    `what` says what could not be done.
    """
    try:
        yield
    except StoreFailed:
        raise
    except OSError as error:
        raise _failed(error.errno, f"{what}: {error.strerror or error}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # absent where Python itself raised
        number = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_READONLY: errno.EROFS}.get(code)
        raise _failed(number, f"{what}: {error}") from error


def _failed(number: int | None, words: str) -> StoreFailed:
    return StoreFailed(words) if number is None else StoreFailed(number, words)
