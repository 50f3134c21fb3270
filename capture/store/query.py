"""Three ways to ask a connection for rows, typed: apsw's cursors say of each column that it may be anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

Row = tuple[Any, ...]


def every(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
    """Return all rows."""
    return db.execute(sql, tuple(bindings)).fetchall()


def first(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
    """Return the first row, None if there is none."""
    row: Row | None = db.execute(sql, tuple(bindings)).fetchone()
    return row


def value(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row. Raises `LookupError` if there is none."""
    row = first(db, sql, bindings)
    if row is None:
        raise LookupError(sql)
    return row[0]
