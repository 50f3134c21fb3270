"""Three ways to ask a connection for rows, typed: apsw's cursors say of each column that it may be anything.

None leaves a statement open behind it. One that is halfway keeps its snapshot, so that all later reads of its
connection see the store of that moment, and a commit fails; and when a cursor is freed is not ours to say: whoever
lists all objects (`gc.get_objects`, a debugger) holds it, and lets it go on a thread that may not finish it.
"""

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
    cursor = db.execute(sql, tuple(bindings))
    try:
        row: Row | None = cursor.fetchone()
    finally:
        cursor.close()
    return row


def value(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row. Raises `LookupError` if there is none."""
    row = first(db, sql, bindings)
    if row is None:
        raise LookupError(sql)
    return row[0]
