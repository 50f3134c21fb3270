"""Texts known again by their hashes: each byte counts, and a value ends behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import beginnings
from capture.beginnings import BLOCK, Beginning, beginning

LONG = b"[" + b",".join(b"%d" % (i % 1000) for i in range(BLOCK))


def test_a_text_of_many_blocks_is_known_again_and_each_byte_of_it_counts() -> None:
    known = beginning(LONG, 0, len(LONG))
    assert (known.length, len(known.hashes), known.tail) == (len(LONG), len(LONG) // BLOCK + 1, LONG[-64:])
    assert known.begins(LONG + b"]")
    assert known.begins(LONG + b",7]")
    for at in (0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5, len(LONG) - 1):
        other = bytearray(LONG + b",")
        other[at] ^= 1
        assert not known.begins(bytes(other))


@pytest.mark.parametrize("behind", [b"", b"7,", b" ", b"}"])
def test_it_is_none_where_a_value_may_go_on(behind: bytes) -> None:
    assert not beginning(LONG, 0, len(LONG)).begins(LONG + behind)


def test_a_text_may_stand_anywhere() -> None:
    known = beginning(b"..1,22..", 2, 6)
    assert (known.length, known.tail) == (4, b"1,22")
    assert known.begins(b"....1,22]", 4)
    assert known.begins(b"1,22,3")
    assert not known.begins(b"....1,22]", 3)
    assert not known.begins(b",22]", -1)


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 20))
def test_what_grew_is_known_as_if_all_were_new(one: bytes, more: bytes, at: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "BLOCK", 8)
        before = beginning(one, 0, len(one))
        longer = b"x" * at + one + more
        known = beginning(longer, at, len(longer), before)
        assert known == beginning(one + more, 0, len(one + more))
        assert known.begins(longer + b"]", at)


def test_it_can_be_seen() -> None:
    assert repr(beginning(b"1,2", 0, 0)) == "Beginning(length=0, hashes=(), tail=b'')"
    assert Beginning(0, (), b"").begins(b"]")
