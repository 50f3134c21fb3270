import asyncio
import itertools
import json
from typing import Any

import pytest

from benchmarks.corpus import Corpus
from benchmarks.upstream import Flow, Request, Requests, Upstream, ask_of
from benchmarks.wire import Ask, Wire

WIRE = Wire(Corpus(2_000))
POST = b"POST /v1/chat/completions HTTP/1.1\r\nX-Bench: %b\r\nContent-Length: 2\r\n\r\n{}"


def test_requests_are_the_same_however_they_are_cut() -> None:
    raw = POST % b"1,600,0,1,5"
    for size in range(1, len(raw)):
        requests = Requests()
        seen = [requests.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
        assert seen[:-1] == [None] * (len(seen) - 1)
        assert seen[-1] == Request(
            b"/v1/chat/completions", {b"x-bench": b"1,600,0,1,5", b"content-length": b"2"}, b"{}"
        )
        assert requests.feed(raw) == seen[-1]


@pytest.mark.parametrize(
    "raw", [POST % b"" + b"POST", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
def test_what_no_proxy_here_sends_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"request before|without Content-Length"):
        Requests().feed(raw)


def test_a_request_without_the_header_is_a_probe() -> None:
    body = b'{"stream":true,"max_tokens":1,"allowed_token_ids":[7,8]}'
    ask = ask_of(Request(b"/v1/chat/completions", {}, body))
    assert ask == Ask(start=0, n_prompt=8, streamed=True, n_sampled=1, allowed=(7,), finish="length")


@pytest.mark.parametrize(
    ("body", "streamed"), [(b'"stream": true}', True), (b'"stream":false}', False), (b'"n":1}', False)]
)
def test_a_reply_may_be_named_in_the_body(body: bytes, streamed: bool) -> None:
    request = Request(b"/v1/chat/completions", {}, b'{"user":"7,600,1,1,","messages":[],' + body)
    assert ask_of(request) == Ask(start=7, n_prompt=600, streamed=streamed)


class Wires(asyncio.Transport):
    """Notes what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written.append(b"".join(list_of_data))

    def close(self) -> None:
        self.written.append(b"closed")


def connected(flow: Flow) -> tuple[Upstream, Wires]:
    upstream, wires = Upstream(WIRE, flow, itertools.count()), Wires()
    upstream.connection_made(wires)
    return upstream, wires


async def turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_event_waits_until_the_one_before_it_was_seen() -> None:
    flow = Flow()
    upstream, wires = connected(flow)
    upstream.data_received(POST % b"1,600,1,1,5")
    await turns_of_the_loop(3)
    # The head, the role and the first token.
    assert len(wires.written) == 3
    flow.seen(5, 1)
    flow.seen(6, 200)
    await turns_of_the_loop(3)
    assert len(wires.written) == 3
    for seen in range(2, 200):
        flow.seen(5, seen)
        assert len(wires.written) == seen + 2
    flow.seen(5, 200)
    await turns_of_the_loop(5)
    # The finish, usage and `[DONE]` wait for nothing, and each is a write of its own.
    assert len(wires.written) == 1 + 203 + 1
    assert wires.written[-1] == b"0\r\n\r\n"
    assert b'"finish_reason":"stop"' in wires.written[-4]


async def test_a_probe_of_the_proxy_is_answered_whole() -> None:
    upstream, wires = connected(Flow())
    upstream.data_received(b"GET /version HTTP/1.1\r\n\r\n")
    assert wires.written[-1].endswith(b'{"version":"0.32.0"}')
    upstream.data_received(b'POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 16\r\n\r\n{"max_tokens":4}')
    reply = json.loads(wires.written[-1].partition(b"\r\n\r\n")[2])
    assert len(reply["choices"][0]["token_ids"]) == reply["usage"]["completion_tokens"] == 4


async def test_a_broken_request_closes_the_connection() -> None:
    upstream, wires = connected(Flow())
    upstream.data_received(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert wires.written == [b"closed"]
