"""Three ways to ask a connection for rows, typed: apsw's cursors say of each column that it may be anything.

None leaves a statement open behind it. One that is halfway keeps its snapshot, so that all later reads of its
connection see the store of that moment, and a commit fails; and when a cursor is freed is not ours to say: whoever
lists all objects (`gc.get_objects`, a debugger) holds it, and lets it go on a thread that may not finish it.

So all rows are taken at once, also where one is wanted, and one cursor does for all that a connection is asked
(`OneCursor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

Row = tuple[Any, ...]


class OneCursor(apsw.Connection):
    """A connection that runs everything on one cursor; for who takes what a statement returns before the next one.

    apsw makes one for each statement, which takes as long as to run a short one: a tenth of what a call's record costs.
    """

    def __init__(self, filename: str, flags: int = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) -> None:
        super().__init__(filename, flags)
        cursor = self.cursor()
        self.execute = cursor.execute  # type: ignore[method-assign]  # a method that calls it costs a fifth of it
        self.executemany = cursor.executemany  # type: ignore[method-assign]  # as above


def every(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> list[Row]:
    """Return all rows."""
    return db.execute(sql, tuple(bindings)).fetchall()


def first(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Row | None:
    """Return the first row, None if there is none; for queries that find one, or few."""
    rows = db.execute(sql, tuple(bindings)).fetchall()
    return rows[0] if rows else None


def value(db: apsw.Connection, sql: str, bindings: Sequence[Any] = ()) -> Any:
    """Return the first column of the first row. Raises `LookupError` if there is none."""
    row = first(db, sql, bindings)
    if row is None:
        raise LookupError(sql)
    return row[0]
