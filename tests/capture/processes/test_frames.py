"""Frames, however the bytes are cut."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.processes import frames
from capture.processes.frames import Frame, Frames, encode

SENT = st.lists(
    st.builds(
        Frame,
        st.integers(-(2**40), 2**40),
        st.text(max_size=5),
        st.binary(max_size=300).map(lambda data: msgspec.Raw(msgspec.msgpack.encode(data))),
    ),
    max_size=6,
)


def plain(found: list[Frame]) -> list[tuple[int, str, bytes]]:
    return [(frame.number, frame.word, msgspec.msgpack.decode(frame.body)) for frame in found]


@given(SENT, st.lists(st.integers(0, 2_000), max_size=8))
def test_frames_come_out_whole_wherever_they_are_cut(sent, cuts):
    data = b"".join(map(encode, sent))
    reader, found = Frames(), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        found += reader.feed(data[start:end])
    assert plain(found) == plain(sent)
    assert repr(reader) == "<Frames 0 bytes kept>"


def test_what_is_no_frame_is_refused(monkeypatch):
    with pytest.raises(msgspec.DecodeError):
        Frames().feed(b"\x01\x00\x00\x00\x07")
    monkeypatch.setattr(frames, "MOST_BYTES", 8)
    with pytest.raises(ValueError, match="a frame of 9 bytes"):
        Frames().feed(b"\x09\x00\x00\x00")
    with pytest.raises(ValueError, match="a frame of"):
        encode(Frame(1, "a word too long"))
