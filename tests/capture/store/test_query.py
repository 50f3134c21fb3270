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
