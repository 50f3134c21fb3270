"""Values stored once, alone and many at once."""

import random
import struct

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.store import contents, query
from tests.capture.store.samples import count, in_memory


@pytest.fixture
def db():
    db = in_memory()
    yield db
    db.close()


def put_all(db: apsw.Connection, rollout: int, values: list[bytes]) -> list[int]:
    """The keys of values that are put at once."""
    names = [contents.digest(data) for data in values]
    stored = contents.known(db, list(dict.fromkeys(names)))
    contents.add(db, stored, dict(zip(names, values, strict=True)))
    contents.claim(db, rollout, stored, names)
    return [stored.keys[name] for name in names]


def how(db: apsw.Connection) -> list[str | None]:
    return [packed for (packed,) in query.every(db, "SELECT packed FROM content ORDER BY key")]


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
    names = [contents.digest(b"%d" % at) for at in range(n)]
    keys = {name: contents.put(db, 1, b"%d" % at) for at, name in enumerate(names) if at % 2}
    found = contents.known(db, names)
    assert (found.keys, found.blocks) == (keys, {})


def test_many_small_ones_are_packed_together_and_each_is_read_alone(db):
    values = [b"message %d, much like the others" % n * 20 for n in range(200)]
    large = b"a tool's result " * 1000
    keys = put_all(db, 1, [*values[:100], large, *values[100:]])
    assert how(db).count("part") == 200
    # 640 bytes each, in blocks of 64 KiB, and the one that is packed as well alone.
    assert (how(db).count("block"), how(db).count("zstd")) == (2, 1)
    assert [contents.get(db, key) for key in keys] == [*values[:100], large, *values[100:]]
    assert query.value(db, "SELECT sum(length(data)) FROM content") < sum(map(len, values)) / 8


def test_who_uses_a_part_uses_its_block(db):
    values = [b"message %d" % n for n in range(contents.MANY)]
    keys = put_all(db, 1, values)
    assert contents.put(db, 2, values[7]) == keys[7]
    (block,) = [key for (key,) in query.every(db, "SELECT key FROM content WHERE packed = 'block'")]
    claimed = [key for (key,) in query.every(db, "SELECT content FROM use WHERE rollout = 2 ORDER BY content")]
    assert claimed == sorted([block, keys[7]])
    assert count(db, "use") == contents.MANY + 1 + 2


def test_parts_that_are_there_are_no_new_ones(db):
    values = [b"message %d" % n for n in range(3 * contents.MANY)]
    first = put_all(db, 1, values[: contents.MANY])
    assert put_all(db, 2, values)[: contents.MANY] == first
    assert (how(db).count("part"), how(db).count("block")) == (3 * contents.MANY, 2)


def test_a_block_whose_parts_were_swept_takes_them_back(db):
    values = [b"message %d" % n for n in range(contents.MANY)]
    keys = put_all(db, 1, values)
    db.execute("DELETE FROM use WHERE content <> (SELECT key FROM content WHERE packed = 'block')")
    db.execute("DELETE FROM content WHERE packed = 'part'")
    assert [contents.get(db, key) for key in put_all(db, 2, values)] == values
    assert how(db).count("block") == 1
    assert keys


def test_a_part_without_its_block_is_missed(db):
    keys = put_all(db, 1, [b"message %d" % n for n in range(contents.MANY)])
    db.execute("UPDATE content SET data = CAST(data || x'00' AS BLOB) WHERE key = ?", (keys[0],))
    with pytest.raises(struct.error, match="buffer of 16 bytes"):
        contents.get(db, keys[0])
    db.execute("PRAGMA foreign_keys = OFF; DELETE FROM content WHERE packed = 'block'")
    with pytest.raises(LookupError):
        contents.get(db, keys[1])


def test_a_part_that_ends_behind_its_block_is_missed(db):
    keys = put_all(db, 1, [b"message %d" % n for n in range(contents.MANY)])
    db.execute("UPDATE content SET data = CAST(substr(data, 1, 12) || x'ffffff00' AS BLOB) WHERE key = ?", (keys[0],))
    with pytest.raises(LookupError, match="a part of content"):
        contents.get(db, keys[0])


@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([1, 30, 900])), max_size=120), max_size=4))
def test_whatever_is_put_at_once_comes_back_and_is_stored_once(lists):
    db = in_memory()
    seen = {}
    for at, numbers in enumerate(lists):
        values = [b'"%d %s"' % (number, b"xyz" * times) for number, times in numbers]
        for data, key in zip(values, put_all(db, 1 + at % 2, values), strict=True):
            assert contents.get(db, key) == data
            assert seen.setdefault(data, key) == key
    assert sum(packed != "block" for packed in how(db)) == len(seen)
    unused = "SELECT count(*) FROM content WHERE NOT EXISTS (SELECT 1 FROM use WHERE use.content = content.key)"
    assert query.value(db, unused) == 0
    db.close()
