"""Values and lists of messages, stored once."""

import json
import random
from contextlib import closing

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.store import contents, migrations, query
from tests.capture.store.samples import parsed
from tests.capture.store.test_bodies import OBJECTS


def opened() -> apsw.Connection:
    db = apsw.Connection(":memory:")
    migrations.climb(db)
    for key in (1, 2):
        db.execute(
            "INSERT INTO rollout (key, id, version, created, state, secret, tools_secret, record, registration)"
            " VALUES (?1, ?1, 0, ?1, 'open', ?1, ?1, '{}', '{}')",
            (key,),
        )
    return db


@pytest.fixture
def db():
    db = opened()
    yield db
    db.close()


def count(db: apsw.Connection, table: str) -> int:
    return int(query.value(db, f"SELECT count(*) FROM {table}"))


def test_equal_content_is_one_row_and_each_rollout_is_noted(db):
    key = contents.put(db, 1, b"tools")
    assert contents.put(db, 1, b"tools") == key
    assert contents.put(db, 2, b"tools") == key
    assert (count(db, "content"), count(db, "use")) == (1, 2)
    assert contents.get(db, key) == b"tools"


def test_content_is_compressed_where_it_pays(db):
    text = b"the same words again. " * 100
    noise = bytes(range(256)) * 2
    stored = {}
    for data in (text, noise[:256], b"short" * 3):
        key = contents.put(db, 1, data)
        assert contents.get(db, key) == data
        stored[data] = db.execute("SELECT packed, length(data) FROM content WHERE key = ?", (key,)).get
    assert stored[text][0] == "zlib"
    assert stored[text][1] < len(text) / 5
    assert stored[noise[:256]] == (None, 256)
    assert stored[b"short" * 3] == (None, 15)


def test_a_list_that_grows_adds_a_row_a_message(db):
    messages = [b'"%d"' % n for n in range(50)]
    for length in range(51):
        last = contents.put_chain(db, 1, messages[:length]).last
        assert contents.get_chain(db, last) == messages[:length]
    assert (count(db, "chain"), count(db, "content")) == (50, 50)


def test_a_list_that_forks_shares_what_stands_before(db):
    one = contents.put_chain(db, 1, [b"1", b"2", b"3"]).last
    two = contents.put_chain(db, 1, [b"1", b"2", b"4", b"3"]).last
    assert contents.get_chain(db, one) == [b"1", b"2", b"3"]
    assert contents.get_chain(db, two) == [b"1", b"2", b"4", b"3"]
    assert (count(db, "chain"), count(db, "content")) == (5, 4)


def test_two_rollouts_share_messages_and_not_links(db):
    contents.put_chain(db, 1, [b"1", b"2"])
    contents.put_chain(db, 2, [b"1", b"2"])
    assert (count(db, "chain"), count(db, "content")) == (4, 2)


@given(st.lists(st.lists(st.sampled_from([b"1", b"2", b"3"]), max_size=8), max_size=8))
def test_any_lists_come_back(lists):
    db = opened()
    kept = [contents.put_chain(db, 1, elements).last for elements in lists]
    assert [contents.get_chain(db, last) for last in kept] == lists
    # A link for each distinct prefix.
    assert count(db, "chain") == len({tuple(elements[:n]) for elements in lists for n in range(1, len(elements) + 1)})
    db.close()


@given(OBJECTS, OBJECTS, st.sampled_from(["messages", "input", "contents", "other"]))
def test_any_request_and_what_was_sent_come_back(one, other, name):
    one = one | {name: [other, one, "x" * 300], "tools": ["tool"] * 100}
    request = json.dumps(one).encode()
    sent = json.dumps(one | other).encode()
    db = opened()
    kept = contents.put_body(db, 1, request)
    difference = contents.put_body(db, 1, sent, base=kept.fields)
    assert parsed(contents.get_body(db, kept.stored)) == parsed(request)
    assert parsed(contents.get_body(db, difference.stored, base=kept.stored)) == parsed(sent)
    db.close()


@given(st.binary(max_size=400))
def test_bytes_that_are_no_json_come_back_as_they_are(body):
    db = opened()
    assert parsed(contents.get_body(db, contents.put_body(db, 1, body).stored)) == parsed(body)
    db.close()


def test_text_that_is_not_utf8_stays(db):
    body = b'{"messages":[{"content":"\xff"}],"x":"\xfe"}'
    assert contents.get_body(db, contents.put_body(db, 1, body).stored) == body


def test_what_was_sent_is_stored_as_its_difference(db):
    request = json.dumps({"model": "m", "messages": ["a" * 1000], "tools": ["b" * 1000]}).encode()
    kept = contents.put_body(db, 1, request)
    sent = contents.put_body(db, 1, request[:-1] + b',"logprobs":true}', base=kept.fields)
    assert sent.stored == b'{"without":[],"with":[["logprobs","value",true]]}'
    assert json.loads(kept.stored) == {
        "fields": [["model", "value", "m"], ["messages", "chain", 1], ["tools", "content", 2]]
    }


def test_a_body_without_messages_and_one_with_none(db):
    empty = contents.put_body(db, 1, b'{"messages":[]}')
    assert empty.chains == {"messages": (None, [], [])}
    assert contents.get_body(db, empty.stored) == b'{"messages":[]}'
    assert contents.put_body(db, 1, b"{}").chains == {}


@pytest.mark.parametrize("forget", [False, True])
def test_a_list_that_goes_on_from_the_last_one_is_the_same_chain_as_ever(db, forget):
    """With what is remembered of the last list, and without."""
    kept = {}
    lists = [[b"1"], [b"1", b"2"], [b"1", b"2"], [b"1", b"2", b"3", b"4"], [b"1"], [b"1", b"9"], [b"1", b"2", b"3"], []]
    for elements in lists:
        if forget:
            contents._links = contents._Links()
        last = contents.put_chain(db, 1, elements).last
        assert contents.get_chain(db, last) == elements
        assert kept.setdefault(tuple(elements), last) == last
    assert count(db, "chain") == 5


def test_what_is_remembered_of_a_list_that_was_rolled_back_is_written_again(db):
    contents.put_chain(db, 1, [b"1"])
    db.execute("SAVEPOINT s")
    contents.put_chain(db, 1, [b"1", b"2", b"3"])
    db.execute("ROLLBACK TO s")
    last = contents.put_chain(db, 1, [b"1", b"2", b"3", b"4"]).last
    assert contents.get_chain(db, last) == [b"1", b"2", b"3", b"4"]


def test_the_last_lists_are_forgotten_when_they_are_many():
    links = contents._Links(most=5)
    assert links.of(1, [b"a", b"b"])[1] == 0
    assert links.of(2, [b"a", b"b", b"c"])[1] == 0
    assert links.of(1, [b"a", b"b"])[1] == 2
    links.of(3, [b"a"])
    assert set(links._last) == {1, 3}
    assert links.of(2, [b"a", b"b", b"c"])[1] == 0


def test_what_is_large_is_packed_in_another_way_and_read_alike(db):
    text = b"the same words again. " * 1000
    key = contents.put(db, 1, text)
    assert query.value(db, "SELECT packed FROM content WHERE key = ?", (key,)) == "zstd"
    assert contents.get(db, key) == text
    noise = random.Random(0).randbytes(contents.LARGE)
    assert contents.pack(noise) == (None, noise)


@given(st.binary(max_size=600), st.booleans(), st.integers(1, 40))
def test_what_is_packed_is_read_as_it_was(data, hurried, times):
    how, stored = contents.pack(data * times, hurried=hurried)
    assert contents.unpack(how, stored) == data * times


def rows(db, table):
    return db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()


@given(st.lists(st.lists(st.integers(0, 60), max_size=90), max_size=4))
def test_many_elements_at_once_are_written_as_they_would_be_one_by_one(lists):
    written = []
    for many in (contents.MANY, 10**9):
        with pytest.MonkeyPatch.context() as patch, closing(opened()) as db:
            for n, numbers in enumerate(lists):
                elements = [b'"%d %s"' % (number, b"x" * 300) for number in numbers]
                if many > 1000:
                    patch.setattr(contents, "MANY", many)
                last = contents.put_chain(db, 1 + n % 2, elements).last
                assert contents.get_chain(db, last) == elements
            for key, packed, data in db.execute("SELECT key, packed, data FROM content").fetchall():
                # Alike but for how they are packed.
                plain = contents.unpack(packed, data)
                db.execute("UPDATE content SET packed = NULL, data = ? WHERE key = ?", (plain, key))
            written.append([rows(db, table) for table in ("content", "use", "chain")])
    assert written[0] == written[1]
