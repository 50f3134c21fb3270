"""Messages read once, as long as there is room."""

import pytest

from capture.digests import digest
from capture.store.canonical import EACH_BYTES, Canonical
from graph.messages import from_chat


def test_a_message_is_read_once():
    raw = b'{"role": "user", "content": "hi"}'
    canonical = Canonical()
    first = canonical.read(digest(raw), raw)
    assert first == from_chat({"role": "user", "content": "hi"})
    assert canonical.read(digest(raw), raw) is first
    assert canonical.read(digest(raw), None) is first


def test_what_left_for_want_of_room_has_to_be_brought_again():
    one, two = b'{"role":"user","content":"1"}', b'{"role":"user","content":"2"}'
    canonical = Canonical(kept_bytes=len(one) + EACH_BYTES)
    canonical.read(digest(one), one)
    canonical.read(digest(two), two)
    with pytest.raises(KeyError):
        canonical.read(digest(one), None)
    assert canonical.read(digest(two), None) == from_chat({"role": "user", "content": "2"})
    assert repr(canonical) == "<Canonical 1 messages, room for 0 bytes>"


def test_the_least_recently_used_leaves_first():
    raws = [b'{"role":"user","content":"%d"}' % n for n in range(3)]
    canonical = Canonical(kept_bytes=2 * (len(raws[0]) + EACH_BYTES))
    canonical.read(digest(raws[0]), raws[0])
    canonical.read(digest(raws[1]), raws[1])
    canonical.read(digest(raws[0]), None)
    canonical.read(digest(raws[2]), raws[2])
    assert canonical.read(digest(raws[0]), None) == from_chat({"role": "user", "content": "0"})
    with pytest.raises(KeyError):
        canonical.read(digest(raws[1]), None)


def test_what_has_no_canonical_form_is_none():
    assert Canonical().read(digest(b'{"a":NaN}'), b'{"a":NaN}') is None


def test_a_reader_s_pass_pushes_nothing_out():
    one, two = b'{"role":"user","content":"1"}', b'{"role":"user","content":"2"}'
    canonical = Canonical(kept_bytes=len(one) + EACH_BYTES)
    canonical.read(digest(one), one)
    assert canonical.read(digest(two), two, keep=False) == from_chat({"role": "user", "content": "2"})
    assert canonical.read(digest(one), None) == from_chat({"role": "user", "content": "1"})
    with pytest.raises(KeyError):
        canonical.read(digest(two), None)
