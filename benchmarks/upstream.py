"""The static upstream: an engine that has all its replies ready.

The header `x-bench` says which reply (`wire.Ask`), and the path whether it is chat's or Completions'. A proxy that
passes no headers on gets the same told in the body's first field, `user`, and then the body says whether to stream. A
chat request without either, such as a proxy's own probe, gets a tiny reply that agrees with what it asked for.

A stream is written one event a write, and no event follows before the client has seen the one before it. A plain loop
of writes would be faster than any proxy, which then reads a dozen events at once: a pass-through would relay a reply in
three pieces, and what an event costs, which an engine sends every few milliseconds, would not be measured at all. To
know what its client has seen the upstream runs in the load's own process (`Flow`). Only the finish and what follows it
wait for nothing, since a proxy may hold them back until the end.

A bare protocol and not aiohttp, since it shares the machine with what is measured. It reads what the proxies here
send, requests with a Content-Length, and closes the connection on anything else.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.wire import Ask, Wire, read_header
from benchmarks.wire_completions import CompletionsWire

_SMALL = {
    b"/v1/models": b'{"object":"list","data":[{"id":"bench","object":"model","created":1795991571,"owned_by":"vllm",'
    b'"max_model_len":262144}]}',
    b"/version": b'{"version":"0.32.0"}',
    b"/health": b"",
}

COMPLETIONS = b"/v1/completions"

_TOLD = re.compile(rb'\{"user": ?"([0-9,]+)"')

N_UNSEEN = 3
"""Events at a stream's end that wait for nothing: the finish, usage, `[DONE]`."""


class Request(msgspec.Struct, frozen=True):
    """A request: its target, headers by lower-case name, and body."""

    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


class Requests:
    """Cuts a connection's bytes into requests. Sans-I/O."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0
        # Bytes that the next request has at the least.
        self._needed = 0

    def feed(self, data: bytes) -> Request | None:
        """Take the next bytes and return the request that ended with them.

        Raises ValueError for a request without Content-Length that has a body, and for pipelined ones.
        """
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return None
        buffer = b"".join(self._pieces)
        head_end = buffer.find(b"\r\n\r\n")
        if head_end >= 0:
            lines = buffer[:head_end].split(b"\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])}
            if b"transfer-encoding" in headers:
                raise ValueError("a body without Content-Length")
            self._needed = head_end + 4 + int(headers.get(b"content-length", b"0"))
            if self._size > self._needed:
                raise ValueError("a request before the answer to the last one")
            if self._size == self._needed:
                self._pieces, self._size, self._needed = [], 0, 0
                return Request(lines[0].split(b" ")[1], headers, buffer[head_end + 4 :])
        self._pieces = [buffer]
        return None


def ask_of(request: Request) -> Ask:
    """Return which reply a chat request gets."""
    told = request.headers.get(b"x-bench")
    if told:
        return read_header(told.decode())
    if (told_within := _TOLD.match(request.body)) is not None:
        # A proxy may ask for a whole reply and make a stream of it.
        streamed = b'"stream":true' in request.body or b'"stream": true' in request.body
        return msgspec.structs.replace(read_header(told_within[1].decode()), streamed=streamed)
    body: dict[str, Any] = msgspec.json.decode(request.body)
    allowed = tuple(body.get("allowed_token_ids") or ())[:1]
    n_sampled = max(1, min(int(body.get("max_tokens") or 4), 16))
    return Ask(
        start=0,
        n_prompt=8,
        streamed=bool(body.get("stream")),
        n_sampled=n_sampled,
        allowed=allowed * n_sampled,
        finish="length",
    )


class Flow:
    """What the clients have seen of each stream, by the call's number."""

    def __init__(self) -> None:
        self._streams: dict[int, Callable[[int], None]] = {}

    def __repr__(self) -> str:
        return f"<Flow {len(self._streams)} streams>"

    def open(self, call: int, seen: Callable[[int], None]) -> None:
        """Have `seen` called with the number of events that the client has seen."""
        self._streams[call] = seen

    def close(self, call: int) -> None:
        """Forget a stream."""
        self._streams.pop(call, None)

    def seen(self, call: int, n_events: int) -> None:
        """Tell that a client has seen so many events."""
        if (stream := self._streams.get(call)) is not None:
            stream(n_events)


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(
        self, wire: Wire, flow: Flow, ids: itertools.count[int], *, completions: CompletionsWire | None = None
    ) -> None:
        """Without `completions` every path gets a chat reply."""
        self._wire = wire
        self._completions = completions
        self._flow = flow
        self._ids = ids
        self._requests = Requests()
        self._transport: asyncio.Transport
        # The stream under way: its events, how many were sent, the call's number.
        self._events: list[bytes] = []
        self._sent = 0
        self._call: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop what is left of a stream."""
        del exc
        self._end()

    def data_received(self, data: bytes) -> None:
        """Answer the request that ends with these bytes."""
        try:
            request = self._requests.feed(data)
        except ValueError:
            self._transport.close()
            return
        if request is None:
            return
        small = _SMALL.get(request.target)
        if small is not None:
            self._whole([small])
            return
        ask = ask_of(request)
        reply_id = b"%016x" % next(self._ids)
        completing = self._completions if request.target == COMPLETIONS else None
        wire = completing or self._wire
        if not ask.streamed:
            self._whole(wire.whole(ask, reply_id))
            return
        self._stream(ask, wire.events(ask, reply_id), reply_id, opens_at_once=completing is None)

    def _stream(self, ask: Ask, events: list[bytes], reply_id: bytes, *, opens_at_once: bool) -> None:
        """Begin a stream; `opens_at_once`: its first event, the role, brings no token."""
        del reply_id
        self._open(events)
        self._call = ask.call
        self._write()
        if self._call is None:
            self._rest()
        else:
            if opens_at_once:
                # An engine sends the role when it has the first token, so that doesn't wait either.
                asyncio.get_running_loop().call_soon(self._write)
            self._flow.open(self._call, self._seen)

    def _whole(self, pieces: list[bytes]) -> None:
        length = sum(map(len, pieces))
        self._transport.writelines([_WHOLE_HEAD % length, *pieces])

    def _seen(self, n_events: int) -> None:
        if n_events < self._sent:
            return
        if self._sent < len(self._events) - N_UNSEEN:
            self._write()
        else:
            self._rest()

    def _rest(self) -> None:
        """Write what is left, one event in each turn of the loop."""
        if self._sent < len(self._events):
            self._write()
            asyncio.get_running_loop().call_soon(self._rest)
        else:
            self._close()

    def _open(self, events: list[bytes]) -> None:
        self._events, self._sent = events, 0
        self._transport.write(_STREAM_HEAD)

    def _close(self) -> None:
        """End a stream, unless its client has gone."""
        if self._events:
            self._transport.write(b"0\r\n\r\n")
            self._end()

    def _write(self) -> None:
        if self._sent < len(self._events):
            event = self._events[self._sent]
            self._sent += 1
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def _end(self) -> None:
        self._events = []
        if self._call is not None:
            self._flow.close(self._call)
            self._call = None


_WHOLE_HEAD = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


async def serve(wire: Wire, flow: Flow, *, completions: CompletionsWire | None = None) -> tuple[asyncio.Server, str]:
    """Start the upstream on a free port of this loop; return it and its address."""
    ids = itertools.count()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Upstream(wire, flow, ids, completions=completions), "127.0.0.1", 0, backlog=1024
    )
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
