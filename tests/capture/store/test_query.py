from pathlib import Path

import apsw
import pytest

from capture.store import query


def test_rows_one_row_one_value():
    db = apsw.Connection(":memory:")
    assert query.every(db, "VALUES (1, 'a'), (2, 'b')") == [(1, "a"), (2, "b")]
    assert query.first(db, "VALUES (1, ?)", ["a"]) == (1, "a")
    assert query.first(db, "SELECT 1 WHERE 0") is None
    assert query.value(db, "SELECT ?", (b"",)) == b""
    with pytest.raises(LookupError):
        query.value(db, "SELECT 1 WHERE 0")
    db.close()


class Held:
    """A connection whose cursors somebody else holds, as whoever lists all objects does."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self.cursors: list[apsw.Cursor] = []

    def execute(self, sql: str, bindings: tuple = ()) -> apsw.Cursor:
        self.cursors.append(self.db.execute(sql, bindings))
        return self.cursors[-1]


def test_a_first_row_leaves_no_statement_open_whoever_holds_its_cursor(tmp_path: Path):
    """Else the reader sees this moment for ever, and the writer can't commit."""
    writer, reader = (Held(apsw.Connection(str(tmp_path / "db"))) for _ in range(2))
    writer.db.execute("PRAGMA journal_mode = WAL")
    writer.db.execute("CREATE TABLE t (x)")
    for n in (1, 2):
        reader.db.execute("BEGIN")
        assert query.value(reader, "SELECT count(*) FROM t UNION ALL VALUES (-1)") == n - 1
        reader.db.execute("ROLLBACK")
        writer.db.execute("BEGIN IMMEDIATE")
        assert query.first(writer, "INSERT INTO t VALUES (?) RETURNING x", (n,)) == (n,)
        writer.db.execute("COMMIT")
    assert len(reader.cursors) == len(writer.cursors) == 2
    reader.db.close()
    writer.db.close()


def test_one_cursor_does_for_all_that_a_connection_is_asked(tmp_path: Path):
    db = query.OneCursor(str(tmp_path / "db"))
    db.execute("CREATE TABLE t (x)")
    db.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    assert db.last_insert_rowid() == 2
    with pytest.raises(apsw.SQLError):
        db.execute("SELECT y FROM t")
    assert query.first(db, "SELECT x FROM t ORDER BY x") == (1,)
    # Nothing is open: a commit, and another's write, go through.
    db.execute("BEGIN IMMEDIATE")
    assert query.every(db, "UPDATE t SET x = x + ? RETURNING x", (1,)) == [(2,), (3,)]
    db.execute("COMMIT")
    other = apsw.Connection(str(tmp_path / "db"))
    other.execute("DROP TABLE t")
    other.close()
    with pytest.raises(apsw.SQLError):
        query.value(db, "SELECT count(*) FROM t")
    db.close()
