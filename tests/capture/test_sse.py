"""The decoder against the specification, against httpx-sse, and against every place the network may cut."""

import importlib
import importlib.util
import itertools
import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.sse import Decoder, Event, encode, with_data


def _oracle() -> Any:
    """httpx-sse 0.4's decoder, without the rest of its package, which wants httpx itself."""
    spec = importlib.util.find_spec("httpx_sse")
    assert spec is not None
    bare = types.ModuleType("httpx_sse_bare")
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["httpx_sse_bare"] = bare
    return importlib.import_module("httpx_sse_bare._decoders").SSEDecoder


SSEDecoder = _oracle()

SAMPLE = (
    b"\xef\xbb\xbf: hello\n\n"
    b"data: one\n\n"
    b"data:two\r\n\r\n"
    b"event: named\rdata: three\r\r"
    b"id: 7\ndata: first\ndata:  second\n: between\ndata\n\n"
    b"\n\r\n"
    b"retry: 10\n\n"
    b"data:\n\n"
    b"data: \xe9\x9d\x92\xe2\x80\xa8\xf0\x9f\x98\x80\xc2\x85\n\n"
)


def decoded(*reads: bytes) -> tuple[list[Event], bytes]:
    decoder = Decoder()
    events = [event for read in reads for event in decoder.feed(read)]
    return events + decoder.end(), decoder.rest


def told(events: list[Event]) -> list[tuple[bytes, str | None]]:
    """What a client is told: events with data."""
    return [(event.data, event.name) for event in events if event.data]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [(b"a", None)]),
        (b"data:a\n\n", [(b"a", None)]),
        (b"data:  a\n\n", [(b" a", None)]),
        (b"data: a\r\rdata: b\r\r", [(b"a", None), (b"b", None)]),
        (b"data: a\r\n\r\n", [(b"a", None)]),
        (b"data: a\n\r\n", [(b"a", None)]),
        (b"data: a\r\n\n", [(b"a", None)]),
        (b"data: a\ndata: b\n\n", [(b"a\nb", None)]),
        (b"data\n\n", [(b"", None)]),
        (b"data:\n\n", [(b"", None)]),
        (b": only a comment\n\n", [(None, None)]),
        (b"event: ping\n\n", [(None, "ping")]),
        (b"\n", [(None, None)]),
        (b"dataset: a\n\n", [(None, None)]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"a", None)]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"a", None), (None, None)]),
        (b"data: a\xe2\x80\xa8b\n\n", [(b"a\xe2\x80\xa8b", None)]),
        (b"event: \xff\ndata: a\n\n", [(b"a", "\ufffd")]),
    ],
)
def test_events(stream: bytes, expected: list[tuple[bytes | None, str | None]]) -> None:
    events, rest = decoded(stream)
    assert [(event.data, event.name) for event in events] == expected
    assert rest == b""


def test_every_cut_of_a_stream_gives_the_same_events_and_loses_no_byte() -> None:
    whole, rest = decoded(SAMPLE)
    assert b"".join(event.raw for event in whole) + rest == SAMPLE
    assert [event.data for event in whole if event.data is not None][:4] == [
        b"one",
        b"two",
        b"three",
        b"first\n second\n",
    ]
    for at in range(len(SAMPLE) + 1):
        assert decoded(SAMPLE[:at], SAMPLE[at:]) == (whole, rest), at
    assert decoded(*[SAMPLE[at : at + 1] for at in range(len(SAMPLE))]) == (whole, rest)


pieces = st.sampled_from(
    [b"data", b"data:", b": ", b":", b"event:", b"id", b"\n", b"\r", b"\r\n", b"x", b" ", b"\xc3\xa9"]
)
streams = st.lists(pieces, max_size=24).map(b"".join)


@given(streams, st.lists(st.integers(0, 60), max_size=5))
def test_wherever_it_is_cut_the_events_are_the_same(stream: bytes, cuts: list[int]) -> None:
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reads = [stream[a:b] for a, b in itertools.pairwise(at)]
    whole = decoded(stream)
    assert decoded(*reads) == whole
    assert b"".join(event.raw for event in whole[0]) + whole[1] == stream


@given(streams)
def test_a_second_decoder_agrees(stream: bytes) -> None:
    """httpx-sse 0.4 decodes lines of text; only events that a client is told of are compared."""
    text = stream.decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    oracle, expected = SSEDecoder(), []
    # What follows the last line end is no line yet.
    for line in lines[:-1]:
        event = oracle.decode(line)
        if event is not None and event.data:
            expected.append((event.data.encode(), event.event))
    assert [(data, name or "message") for data, name in told(decoded(stream)[0])] == expected


def test_what_is_left_at_the_end_is_reported() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: a\n\ndata: b\n") == [Event(b"data: a\n\n", b"a")]
    assert decoder.end() == []
    assert decoder.rest == b"data: b\n"
    assert decoder.last() == Event(b"data: b\n", b"b")
    assert Decoder().last() is None


def test_a_carriage_return_waits_for_its_line_feed_only_where_one_may_come() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: a\r\n\r") == []
    assert decoder.feed(b"\n") == [Event(b"data: a\r\n\r\n", b"a")]
    # A stream of bare CRs: the last event must not hang until the next byte.
    assert decoder.feed(b"data: b\r\r") == [Event(b"data: b\r\r", b"b")]
    # At the end nothing more can come.
    assert decoder.feed(b"data: c\n\r") == []
    assert decoder.end() == [Event(b"data: c\n\r", b"c")]


@pytest.mark.parametrize("ending", [b"\n\n", b"\r\n\r\n"])
def test_a_huge_event_in_small_reads_is_searched_once(ending: bytes) -> None:
    class Counting(bytearray):
        """Counts the bytes that `find` looks at."""

        looked_at = 0

        def find(self, what, start=0, end=None):
            self.looked_at += len(self) - start
            return super().find(what, start)

    decoder = Decoder()
    decoder._buffer = Counting()
    decoder.feed(b"data: " + (b"\r" if b"\r" in ending else b""))
    for size in range(4096):
        assert decoder.feed(b"x" * 1024) == []
        # What has been looked at is not looked at again, but for the two bytes in which a blank line may have begun.
        assert decoder._searched >= 1024 * (size + 1)
    assert decoder._buffer.looked_at < 4 * 4096 * 1024 / 3
    (event,) = decoder.feed(ending)
    assert len(event.raw) > 4 << 20


@given(st.binary().filter(lambda data: b"\r" not in data), st.none() | st.just("named"))
def test_what_is_encoded_is_decoded(data: bytes, name: str | None) -> None:
    (event,), rest = decoded(encode(data, name))
    assert (event.data, event.name, rest) == (data, name, b"")


def test_encoded_form() -> None:
    assert encode(b"{}") == b"data: {}\n\n"
    assert encode(b"a\nb", "n") == b"event: n\ndata: a\ndata: b\n\n"
    assert encode(b"a\r\nb") == b"data: a\ndata: b\n\n"


@pytest.mark.parametrize(
    ("raw", "data", "expected"),
    [
        (b"data: a\n\n", b"b", b"data: b\n\n"),
        (b"data:a\r\n\r\n", b"b", b"data:b\r\n\r\n"),
        (b"data: a\r\r", b"b", b"data: b\r\r"),
        (b": x\nid: 1\nevent: e\ndata: a\n\n", b"b", b": x\nid: 1\nevent: e\ndata: b\n\n"),
        (b"data: a\ndata: c\nretry: 1\n\n", b"b", b"data: b\nretry: 1\n\n"),
        (b"data\n\n", b"b", b"data:b\n\n"),
        (b"\xef\xbb\xbfdata: a\n\n", b"b", b"\xef\xbb\xbfdata: b\n\n"),
        (b"data: a\n\n", None, b""),
        (b": ping\nid: 1\ndata: a\n\n", None, b": ping\n"),
    ],
)
def test_an_event_with_other_data_keeps_all_else(raw: bytes, data: bytes | None, expected: bytes) -> None:
    (event,), _ = decoded(raw)
    assert with_data(event, data) == expected


def test_repr_says_how_much_is_waiting() -> None:
    decoder = Decoder()
    decoder.feed(b"data: a")
    assert repr(decoder) == "<Decoder 7 bytes of an unfinished event>"


@given(
    st.lists(
        st.sampled_from(
            [b"data: x\n\n", b"data: \n\n", b"data: x\n", b"\n", b"data: a\r\n\r\n", b"data: y\r\r", b": c\n\n"]
        )
    )
)
def test_an_event_that_comes_alone_is_the_one_that_comes_in_company(pieces: list[bytes]) -> None:
    alone, together = Decoder(), Decoder()
    events = [event for piece in pieces for event in alone.feed(piece)]
    assert events == together.feed(b"".join(pieces))
    assert alone.rest == together.rest
