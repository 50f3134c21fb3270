import apsw
import pytest

from capture.errors import ClientError
from capture.store import answers, migrations

NOW, LATER, TOO_LATE = (f"2026-01-01T{at}:00.000Z" for at in ("10:00", "10:59", "11:00"))
SECRET = b'{"secret":"tr-very-secret"}'


@pytest.fixture
def db():
    db = apsw.Connection(":memory:")
    migrations.climb(db)
    yield db
    db.close()


def test_an_answer_is_kept_for_an_hour(db):
    assert answers.get(db, "key", "body", now=NOW) is None
    answers.put(db, "key", "body", SECRET, now=NOW)
    assert answers.get(db, "key", "body", now=LATER) == SECRET
    assert answers.get(db, "key", "body", now=TOO_LATE) is None
    assert answers.get(db, "other", "body", now=NOW) is None


def test_the_same_key_with_another_body_is_an_error(db):
    answers.put(db, "key", "body", SECRET, now=NOW)
    with pytest.raises(ClientError) as caught:
        answers.get(db, "key", "other", now=NOW)
    assert (caught.value.code, caught.value.status) == ("idempotency_key_reused", 422)
    assert answers.get(db, "key", "other", now=TOO_LATE) is None


def test_what_expired_goes_with_the_next(db):
    answers.put(db, "key", "body", SECRET, now=NOW)
    answers.put(db, "new", "body", SECRET, now=TOO_LATE)
    assert db.execute("SELECT count(*) FROM answer").get == 1


def test_the_file_holds_neither_the_key_nor_the_answer(db):
    answers.put(db, "key-of-a-client", "body", SECRET, now=NOW)
    stored = b"".join(
        value if isinstance(value, bytes) else value.encode()
        for row in db.execute("SELECT * FROM answer")
        for value in row
    )
    assert b"very-secret" not in stored
    assert b"key-of-a-client" not in stored


def test_equal_answers_are_sealed_unequally(db):
    answers.put(db, "key", "body", SECRET, now=NOW)
    one = db.execute("SELECT sealed FROM answer").get
    answers.put(db, "key", "body", SECRET, now=NOW)
    assert db.execute("SELECT sealed FROM answer").get != one


def test_an_empty_answer_is_an_answer(db):
    answers.put(db, "key", "body", b"", now=NOW)
    assert answers.get(db, "key", "body", now=NOW) == b""
