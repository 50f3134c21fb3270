import json

import pytest

from benchmarks.corpus import Corpus
from benchmarks.load import Reply, contents_of, head_of
from benchmarks.wire import Ask, Wire

CORPUS = Corpus(2_000)
WIRE = Wire(CORPUS)
EVENTS = WIRE.events(Ask(start=1, n_prompt=600, streamed=True), b"0f")
WHOLE = b"".join(WIRE.whole(Ask(start=1, n_prompt=600), b"0f"))
STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in EVENTS)
    + b"0\r\n\r\n"
)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(WHOLE) + WHOLE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 300, 100_000])
def test_a_stream_is_read_the_same_however_it_is_cut(size: int) -> None:
    reply = Reply(keep=True)
    ends = [reply.feed(STREAM[at : at + size], at) for at in range(0, len(STREAM), size)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert (reply.status, reply.streamed, reply.n_events) == (200, True, 203)
    # The piece in which the first token's chunk names it.
    at = STREAM.index(b'"delta":{"content":') + len(b'"delta":{"content":') - 1
    assert reply.first_token_at == at // size * size
    assert "".join(contents_of(b"".join(reply.kept or []), streamed=True)) == CORPUS.text(601, 801)


@pytest.mark.parametrize("size", [1, 5, 4_096])
def test_a_proxy_may_cut_chunks_where_it_likes(size: int) -> None:
    body = b"".join(EVENTS)
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    reply = Reply(keep=True)
    assert not reply.feed(STREAM[: STREAM.index(b"\r\n\r\n") + 4], 0.0)
    for piece in pieces:
        assert not reply.feed(b"%X\r\n%b\r\n" % (len(piece), piece), 0.0)
    assert reply.feed(b"0\r\n\r\n", 0.0)
    assert b"".join(reply.kept or []) == body
    assert reply.n_events == 203


def test_a_stream_may_say_how_long_it_is() -> None:
    body = b"".join(EVENTS)
    reply = Reply(keep=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert reply.feed(head + body, 2.0)
    assert (reply.streamed, reply.n_events, reply.first_token_at) == (True, 203, 2.0)


def test_a_whole_reply_may_come_in_chunks() -> None:
    reply = Reply(keep=True)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert reply.feed(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE), 0.0)
    assert (reply.streamed, b"".join(reply.kept or [])) == (False, WHOLE)


def test_gaps_are_between_one_event_and_the_next() -> None:
    reply = Reply()
    reply.feed(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", 1.0)
    pieces = [(EVENTS[:2], 1.0), (EVENTS[2:3], 4.0), (EVENTS[3:6], 9.0)]
    for events, at in pieces:
        body = b"".join(events)
        reply.feed(b"%x\r\n%b\r\n" % (len(body), body), at)
    # Two came at once, one three seconds later, and three more at once five seconds after that.
    assert list(reply.gaps) == [0.0, 3.0, 5.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [1, 300, 100_000])
def test_a_whole_reply_ends_with_its_last_byte(size: int) -> None:
    reply = Reply(keep=True)
    ends = [reply.feed(PLAIN[at : at + size], at) for at in range(0, len(PLAIN), size)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert (reply.status, reply.streamed, reply.first_token_at, reply.n_bytes) == (200, False, None, len(WHOLE))
    assert contents_of(b"".join(reply.kept or []), streamed=False) == [CORPUS.text(601, 801)]


def test_what_is_no_reply_is_an_error() -> None:
    with pytest.raises((ValueError, KeyError)):
        Reply().feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", 0.0)


def test_a_request_head_names_its_reply() -> None:
    head = head_of(json.dumps({"a": 1}).encode(), key="sk-1", bench="1,2,0,1,3")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /v1/chat/completions HTTP/1.1"
    assert {"Authorization: Bearer sk-1", "Content-Length: 8", "X-Bench: 1,2,0,1,3"} <= set(lines)
    assert head.endswith(b"\r\n\r\n")
