"""Texts known again by themselves or by their hashes: each byte counts, and a value ends behind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture import beginnings
from capture.beginnings import BLOCK, Beginning, Texts, beginning

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


@given(st.binary(max_size=40), st.binary(max_size=60), st.integers(0, 20), st.integers(0, 20))
def test_whether_its_text_is_kept_changes_nothing(one: bytes, other: bytes, start: int, at: int) -> None:
    """Of texts that have nothing in common, and of one that begins with the other but for a byte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "BLOCK", 8)
        patch.setattr(beginnings, "TAIL", 4)
        data = b"x" * start + one + b"]"
        hashed, kept = (beginning(data, start, start + len(one)) for _ in range(2))
        Texts().keep(kept, data, start)
        assert kept.text is not None
        damaged = bytearray(one)
        if damaged:
            damaged[at % len(damaged)] ^= 1
        for text in (other, one, one + other, one + b"," + other, bytes(damaged) + b"]"):
            written = b"y" * at + text
            for place in {0, at, len(written)}:
                found = hashed.begins(written, place)
                assert kept.begins(written, place) == found
                behind = written[place + len(one) : place + len(one) + 1]
                assert found == (written.startswith(one, place) and behind in (b",", b"]"))


def test_the_texts_room_is_bounded_and_the_least_recently_used_goes_first() -> None:
    a, b, c = (beginning(text, 0, len(text)) for text in (b"1,2,", b"3,4,", b"5,6,"))
    texts = Texts(kept_bytes=10)
    texts.keep(a, b"1,2,]", 0)
    texts.keep(b, b"3,4,]", 0)
    texts.keep(a, b"1,2,]", 0)
    assert (repr(texts), a.kept_bytes) == ("<Texts 2 kept, room for 0 bytes>", 5)
    texts.keep(c, b"5,6,]", 0)
    assert [one.text is not None for one in (a, b, c)] == [True, False, True]
    texts.let_go(a)
    texts.let_go(a)
    texts.let_go(b)
    assert (a.text, a.kept_bytes, texts._room) == (None, 0, 5)
    # One that is larger than all the room.
    large = beginning(LONG, 0, len(LONG))
    texts.keep(large, LONG, 0)
    assert (large.text, c.text, texts._room) == (None, None, 10)
    assert large.begins(LONG + b"]")


def test_what_is_little_of_what_was_read_is_copied_out_of_it() -> None:
    known = beginning(b"..1,22]..", 2, 6)
    Texts().keep(known, b"..1,22]..", 2)
    assert known.text == (b"1,22", 0)
    Texts().keep(known, b"1,22]", 0)
    assert known.text == (b"1,22]", 0)


def test_a_text_that_grew_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is what it stands in, which Python does to hash a view of it."""
    known = beginning(LONG, 0, len(LONG))
    hashed: list[int] = []

    def noted(data: bytes) -> int:
        hashed.append(len(data))
        return hash(bytes(data))

    monkeypatch.setattr(beginnings, "hash", noted, raising=False)
    grown = LONG + b",7,8"
    Texts().keep(known, LONG, 0)
    assert known.begins(grown + b"]")
    assert hashed == []
    assert beginning(grown, 0, len(grown), known) == beginning(grown, 0, len(grown))
    assert hashed[0] == len(grown) % BLOCK
    assert sum(hashed) == hashed[0] + len(grown)


def test_it_can_be_seen() -> None:
    assert repr(beginning(b"1,2", 0, 0)) == "Beginning(length=0, hashes=(), tail=b'')"
    assert Beginning(0, (), b"").begins(b"]")
