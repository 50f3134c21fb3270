"""The chunked coding, taken off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.chunks import MOST_SIZE_LINE, MOST_TRAILER, Chunks, framed, maybe_one


def read(chunks: Chunks, *pieces: bytes) -> bytes:
    return b"".join(b"".join(chunks.feed(piece)) for piece in pieces)


def wired(pieces: list[bytes], form: str = "%x") -> bytes:
    return b"".join((form % len(piece)).encode() + b"\r\n" + piece + b"\r\n" for piece in pieces) + b"0\r\n\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from(["%x", "%X", "%04x", "%x ;a=b"]),
    st.data(),
)
def test_however_the_network_cuts_it_the_body_is_the_same(pieces: list[bytes], form: str, data: st.DataObject) -> None:
    raw = wired(pieces, form) + b"behind"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    chunks = Chunks()
    got = b""
    for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        if chunks.ended:
            chunks.rest += raw[a:b]
        else:
            got += b"".join(chunks.feed(raw[a:b]))
    assert (got, chunks.ended, chunks.rest) == (b"".join(pieces), True, b"behind")


@given(st.binary(max_size=300), st.binary(max_size=10))
def test_one_whole_chunk_is_seen_at_once_and_means_what_the_decoder_says(piece: bytes, behind: bytes) -> None:
    raw = b"%x\r\n%b\r\n%b" % (len(piece), piece, behind)
    one = maybe_one(raw)
    if one is not None:
        assert one == read(Chunks(), raw) != b""
    if piece and not behind:
        assert one == piece


@pytest.mark.parametrize(
    "raw", [b"", b"\r\n", b"0\r\n\r\n", b"3\r\nab\r\n", b"03\r\nabc\r\n", b"+3\r\nabc\r\n", b"1_0\r\n", b"3\r\nabc"]
)
def test_what_is_not_one_whole_chunk_is_left_to_the_decoder(raw: bytes) -> None:
    assert maybe_one(raw) is None


def test_within_a_chunk_nothing_is_one() -> None:
    chunks = Chunks()
    assert chunks.at_border
    assert chunks.feed(b"a\r\n12345") == [b"12345"]
    assert not chunks.at_border
    assert chunks.feed(b"1\r\nx\r") == [b"1\r\nx\r"]
    assert not chunks.at_border
    assert chunks.feed(b"\r\n1\r\nx\r\n") == [b"x"]
    assert chunks.at_border
    assert chunks.feed(b"0\r\n\r\n") == []
    assert chunks.ended


@pytest.mark.parametrize("raw", [b"1\r\nx\r", b"1", b"1\r\nx\r\n0\r\n", b"1\r\nx\r\nzz\r\n"])
def test_behind_a_cut_or_a_fault_nothing_begins(raw: bytes) -> None:
    chunks = Chunks()
    chunks.feed(raw)
    assert not chunks.at_border


@given(st.binary(max_size=5000))
def test_a_chunk_that_is_written_is_read_at_once(piece: bytes) -> None:
    assert (maybe_one(framed(piece)) if piece else framed(piece)) == (piece or b"")


def test_fields_behind_the_last_chunk_are_thrown_away() -> None:
    chunks = Chunks()
    assert read(chunks, b"1\r\nx\r\n0\r\nA: b\r\n", b"C: d\r\n\r\nnext") == b"x"
    assert (chunks.ended, chunks.rest) == (True, b"next")


@pytest.mark.parametrize(
    "raw",
    [
        b"x\r\n",
        b"-1\r\nab",
        b"+3\r\nabc\r\n",
        b"1_0\r\n",
        b"0x5\r\nabcde\r\n",
        b"\r\n",
        b"2\r\nabc\r\n",
        b"2\r\nab\nc",
        b"fffffffffffffffff\r\n",
        b"a" * (MOST_SIZE_LINE + 1),
        b"0\r\n" + b"A: b\r\n" * MOST_TRAILER,
    ],
)
def test_what_is_no_chunk_is_an_error(raw: bytes) -> None:
    chunks = Chunks()
    read(chunks, raw)
    assert isinstance(chunks.broken, ValueError)


@given(st.integers(0, 14))
def test_what_stands_before_it_is_given_out_wherever_the_network_cuts(cut: int) -> None:
    raw = b"3\r\nabc\r\nzz\r\n1\r\n"
    chunks = Chunks()
    assert read(chunks, raw[:cut], raw[cut:], b"1\r\nx\r\n") == b"abc"
    assert "zz" in str(chunks.broken)
    assert not chunks.ended
