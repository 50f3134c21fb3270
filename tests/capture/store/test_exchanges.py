"""Bodies as rows that refer to contents and chains."""

import json
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import digest
from capture.store import exchanges
from tests.capture.store.samples import count, in_memory, parsed
from tests.capture.store.test_bodies import OBJECTS


@pytest.fixture
def db():
    db = in_memory()
    yield db
    db.close()


@given(OBJECTS, OBJECTS, st.sampled_from(["messages", "input", "contents", "other"]))
def test_any_request_and_what_was_sent_come_back(one, other, name):
    one = one | {name: [other, one, "x" * 300], "tools": ["tool"] * 100}
    request = json.dumps(one).encode()
    sent = json.dumps(one | other).encode()
    db = in_memory()
    kept, stored = exchanges.put_body(db, 1, request)
    _, difference = exchanges.put_body(db, 1, sent, base=kept.fields)
    assert parsed(exchanges.get_body(db, stored)) == parsed(request)
    assert parsed(exchanges.get_body(db, difference, base=stored)) == parsed(sent)
    db.close()


@given(OBJECTS, OBJECTS)
def test_bodies_that_are_filed_together_are_stored_as_they_are_one_by_one(one, other):
    bodies = [json.dumps(each | {"messages": [each, "x" * 300], "input": [other]}).encode() for each in (one, other)]
    with closing(in_memory()) as apart, closing(in_memory()) as together:
        filing = exchanges.Filing(together, 1)
        filed = [filing.body(body) for body in bodies]
        filing.write()
        for body, noted in zip(bodies, filed, strict=True):
            _, alone = exchanges.put_body(apart, 1, body)
            found = exchanges.get_body(together, filing.stored(noted))
            assert parsed(found) == parsed(exchanges.get_body(apart, alone)) == parsed(body)
        for table in ("content", "use", "chain"):
            assert count(together, table) == count(apart, table)


@given(st.binary(max_size=400))
def test_bytes_that_are_no_json_come_back_as_they_are(body):
    db = in_memory()
    assert parsed(exchanges.get_body(db, exchanges.put_body(db, 1, body)[1])) == parsed(body)
    db.close()


@given(st.binary(max_size=400), st.integers(1, 20))
def test_a_reply_comes_back_as_it_is_and_uses_nothing(body, times):
    stored = exchanges.reply(body * times)
    with closing(in_memory()) as db:
        assert exchanges.get_body(db, stored) == body * times
    assert exchanges.used(stored) == []


def test_a_large_reply_is_packed():
    assert len(exchanges.reply(b'{"the same words": "again"}' * 100)) < 100


def test_text_that_is_not_utf8_stays(db):
    body = b'{"messages":[{"content":"\xff"}],"x":"\xfe"}'
    assert exchanges.get_body(db, exchanges.put_body(db, 1, body)[1]) == body


def test_what_was_sent_is_stored_as_its_difference(db):
    request = json.dumps({"model": "m", "messages": ["a" * 1000], "tools": ["b" * 1000]}).encode()
    kept, stored = exchanges.put_body(db, 1, request)
    _, sent = exchanges.put_body(db, 1, request[:-1] + b',"logprobs":true}', base=kept.fields)
    assert sent == b'{"without":[],"with":[["logprobs","value",true]]}'
    assert json.loads(stored) == {
        "fields": [["model", "value", "m"], ["messages", "chain", 1], ["tools", "content", 2]]
    }
    assert (exchanges.used(stored), exchanges.used(sent), exchanges.used(None)) == ([2], [], [])


def test_a_body_without_messages_and_one_with_none(db):
    empty, stored = exchanges.put_body(db, 1, b'{"messages":[]}')
    assert (empty.chains["messages"].last, empty.chains["messages"].elements) == (None, [])
    assert exchanges.get_body(db, stored) == b'{"messages":[]}'
    assert exchanges.put_body(db, 1, b"{}")[0].chains == {}


def test_a_value_has_its_own_digest_whatever_was_digested_before(monkeypatch):
    monkeypatch.setattr(exchanges, "MOST_RECENT", 2)
    monkeypatch.setattr(exchanges, "MOST_KEPT", 3)
    monkeypatch.setattr(exchanges, "_recent", {})
    for data in (b"a", b"b", b"a", b"cc", b"ddd", b"ddd", b"eeee", b"eeee", b"a"):
        assert exchanges._digest(data) == digest(data)
        assert len(exchanges._recent) <= 2
        assert max(exchanges._recent) <= 3
