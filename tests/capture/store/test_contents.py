"""Values stored once, alone and many at once."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.digests import digest
from capture.store import contents, query
from tests.capture.store.samples import count, in_memory


@pytest.fixture
def db():
    db = in_memory()
    yield db
    db.close()


def test_equal_content_is_one_row_and_each_rollout_is_noted(db):
    key = contents.put(db, 1, b"tools")
    assert contents.put(db, 1, b"tools") == key
    assert contents.put(db, 2, b"tools") == key
    assert (count(db, "content"), count(db, "use")) == (1, 2)
    assert contents.get(db, key) == b"tools"


def test_content_is_compressed_where_it_pays(db):
    text = b"the same words again. " * 100
    noise = random.Random(0).randbytes(contents.PACK_SIZE)
    stored = {}
    for data in (text, noise, b"short" * 3):
        key = contents.put(db, 1, data)
        assert contents.get(db, key) == data
        stored[data] = db.execute("SELECT packed, length(data) FROM content WHERE key = ?", (key,)).get
    assert stored[text][0] == "zstd"
    assert stored[text][1] < len(text) / 5
    assert stored[noise] == (None, len(noise))
    assert stored[b"short" * 3] == (None, 15)


@given(st.binary(max_size=600), st.integers(1, 40))
def test_what_is_packed_is_read_as_it_was(data, times):
    packed, stored = contents.pack(data * times)
    assert contents.unpack(packed, stored) == data * times


def test_what_an_older_version_packed_is_read():
    assert contents.unpack("zlib", b"x\x9cKL$\x06\x00\x00\x18\xfa\x0eg") == b"a" * 38


@pytest.mark.parametrize("n", [0, 1, 4, 5, 100])
def test_those_that_are_there_are_found_however_many_are_asked_for(db, n):
    names = [digest(b"%d" % at) for at in range(n)]
    keys = {name: contents.put(db, 1, b"%d" % at) for at, name in enumerate(names) if at % 2}
    found = contents.known(db, names)
    assert found == keys


def test_a_list_is_content_under_the_digest_of_its_elements_digests(db):
    elements = [b'"%d"' % n for n in range(9)]
    name = digest(b"".join(digest(element) for element in elements))
    array = b"[" + b",".join(elements) + b"]"
    keys: dict[bytes, int] = {}
    contents.add(db, keys, {b"one": b"1"}, lists={name: array})
    assert contents.get(db, keys[name]) == array
    assert contents.known(db, [name, b"one", b"two"]) == keys
    assert query.every(db, "SELECT packed FROM content ORDER BY key") == [(None,), ("list",)]


@given(st.lists(st.dictionaries(st.binary(max_size=2), st.none(), max_size=40), max_size=4))
def test_whatever_is_put_at_once_comes_back_and_is_stored_once(puts):
    db = in_memory()
    seen: dict[bytes, int] = {}
    for at, values in enumerate(puts):
        wanted = {digest(data * 400): data * 400 for data in values}
        keys = contents.known(db, list(wanted))
        assert keys.keys() == wanted.keys() & seen.keys()
        contents.add(db, keys, wanted, lists={})
        contents.claim(db, 1 + at % 2, keys.values())
        for name, data in wanted.items():
            assert contents.get(db, keys[name]) == data
            assert seen.setdefault(name, keys[name]) == keys[name]
    assert count(db, "content") == len(seen)
    unused = "SELECT count(*) FROM content WHERE NOT EXISTS (SELECT 1 FROM use WHERE use.content = content.key)"
    assert query.value(db, unused) == 0
    db.close()


@pytest.mark.parametrize("size", [1, contents.SMALL_SIZE, contents.SMALL_SIZE + 1, 100_000])
def test_what_is_compressed_comes_back_whichever_table_it_was_compressed_with(size):
    data = (b"the cat sat on the mat; " * (size // 24 + 1))[:size]
    for _ in range(2):
        packed = contents.compressed(data)
        assert contents.decompressed(packed) == data
    assert size < 100 or len(packed) < size / 4
