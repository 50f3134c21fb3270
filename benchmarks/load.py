"""The load: so many connections, each sending its calls one after the other, as agents do.

Measured for each call, from just before its first byte is sent: the time to the first token and to the last byte; and
of a stream the gaps between a token and the next, as the agent sees them: of tokens that came with one read all but the
first follow at once.
A connection is a bare protocol, since the load shares the machine with what is measured: of a reply it counts bytes
and looks for the first token, nothing else. Whether replies are right is looked at before (`Client.ask(keep=True)`).
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Sequence
from zlib import crc32

import msgspec

from benchmarks.upstream import Flow
from benchmarks.wire import EVENT_END, FIRST_TOKEN

ROUND_LIMIT_S = 300.0
"""For one round of calls: past this something hangs."""


class Sample(msgspec.Struct, frozen=True):
    """One call as it was seen."""

    total_ms: float
    # None for a reply that was not streamed.
    first_token_ms: float | None
    n_bytes: int
    # Milliseconds from one event of a stream to the next.
    gaps_ms: array[float] = array("d")


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What a round of calls took."""

    seconds: float
    samples: list[Sample]

    @property
    def rps(self) -> float:
        """Calls a second."""
        return len(self.samples) / self.seconds


class Marks(msgspec.Struct, frozen=True):
    """By what a stream's progress is seen."""

    # Counted: stands once in each event that answers one of the engine's.
    event: bytes
    first_token: bytes
    # Events of the engine's that bring none of those.
    ahead: int = 0


CHAT = Marks(EVENT_END, FIRST_TOKEN)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One call, ready to be sent."""

    # By which the upstream is told what has been seen of its reply.
    call: int
    head: bytes
    body: bytes
    marks: Marks = CHAT


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection sends; `warm` before the clock starts."""

    warm: list[Request]
    measured: list[Request]


class Chunks:
    """Takes the transfer coding off a body (RFC 9112, section 7.1). Sans-I/O."""

    def __init__(self) -> None:
        self.ended = False
        self._buffer = b""
        # Bytes still to come of the chunk under way, with its line end.
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those of the body. Raises ValueError."""
        data = self._buffer + data if self._buffer else data
        out: list[bytes] = []
        at = 0
        while not self.ended:
            if not self._left:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                size = int(data[at:end], 16)
                self._left, at = size + 2, end + 2
                if not size:
                    # No proxy here sends trailers.
                    self.ended = data[at : at + 2] == b"\r\n"
                    if not self.ended:
                        self._left, at = 0, end - 1
                        break
            piece = data[at : at + self._left]
            out.append(piece[: max(0, self._left - 2)])
            at += len(piece)
            self._left -= len(piece)
            if self._left:
                break
        self._buffer = data[at:]
        return b"".join(out) if len(out) != 1 else out[0]


class Reply:
    """Reads one reply as it comes. Sans-I/O."""

    def __init__(self, *, keep: bool = False, marks: Marks = CHAT, check: bool = False) -> None:
        self.status = 0
        # Of the body, None unless asked for.
        self.crc: int | None = 0 if check else None
        self.streamed = False
        self.first_token_at: float | None = None
        self.n_bytes = 0
        # Seconds from one event to the next.
        self.gaps = array("d")
        self._last_event_at: float | None = None
        # Of a stream, so far: the engine's events of which the agent knows.
        self.n_events = marks.ahead
        self.kept: list[bytes] | None = [] if keep else None
        self._head: bytes | None = b""
        self._left = 0
        self._chunks: Chunks | None = None
        self._tail = b""
        self._marks = marks
        self._tail_size = max(len(marks.event), len(marks.first_token)) - 1

    def feed(self, data: bytes, now: float) -> bool:
        """Take the next bytes at a time; return True when the reply is whole. Raises ValueError for what is none."""
        if self._head is not None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._start(self._head[:end].lower())
            data, self._head = self._head[end + 4 :], None
        if self._chunks is not None:
            data = self._chunks.feed(data)
        else:
            self._left -= len(data)
        if self.streamed and data:
            self._look(data, now)
        self.n_bytes += len(data)
        if self.kept is not None:
            self.kept.append(data)
        if self.crc is not None:
            self.crc = crc32(data, self.crc)
        return self._chunks.ended if self._chunks is not None else self._left <= 0

    def _look(self, data: bytes, now: float) -> None:
        """Count a stream's events, and see when they came."""
        seen = self._tail + data
        # A mark may have come in two pieces; one that came whole in the tail was counted there.
        more = seen.count(self._marks.event) - self._tail.count(self._marks.event)
        if self.first_token_at is None and self._marks.first_token in seen:
            self.first_token_at = now
        if more > 0:
            self.n_events += more
            if self._last_event_at is not None:
                self.gaps.append(now - self._last_event_at)
            self.gaps.extend([0.0] * (more - 1))
            self._last_event_at = now
        self._tail = seen[-self._tail_size :]

    def _start(self, head: bytes) -> None:
        lines = head.split(b"\r\n")
        self.status = int(lines[0].split(b" ")[1])
        headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
        # A proxy that holds a stream back until its end may say how long it is; one that streams has said `chunked`.
        self._chunks = Chunks() if headers.get(b"transfer-encoding") == b"chunked" else None
        self.streamed = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if self._chunks is None:
            self._left = int(headers[b"content-length"])


class Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._transport: asyncio.Transport
        self._call = 0
        self._reply = Reply()
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def connect(cls, url: str, flow: Flow) -> Client:
        """Open a connection to `http://HOST:PORT`."""
        host, _, port = url.removeprefix("http://").partition(":")
        _, client = await asyncio.get_running_loop().create_connection(lambda: cls(flow), host, int(port))
        return client

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    async def ask(self, request: Request, *, keep: bool = False, check: bool = False) -> tuple[Sample, Reply]:
        """Send a request and wait for the whole reply. Raises ConnectionError, also for a status other than 200."""
        self._call, self._reply = request.call, Reply(keep=keep, marks=request.marks, check=check)
        self._done = asyncio.get_running_loop().create_future()
        started = time.perf_counter()
        self._transport.writelines([request.head, request.body])
        await self._done
        ended, reply = time.perf_counter(), self._reply
        if reply.status != 200:
            raise ConnectionError(f"a call was answered with {reply.status}: {b''.join(reply.kept or [])[:300]!r}")
        first = None if reply.first_token_at is None else (reply.first_token_at - started) * 1000
        gaps = array("d", [gap * 1000 for gap in reply.gaps])
        return Sample((ended - started) * 1000, first, reply.n_bytes, gaps), reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are not asyncio's by class

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call that waits."""
        self._fail(exc or ConnectionError("the connection was closed in the middle of a call"))

    def data_received(self, data: bytes) -> None:
        """Read on."""
        try:
            whole = self._reply.feed(data, time.perf_counter())
        except (ValueError, KeyError, IndexError) as error:
            self._fail(ConnectionError(f"an answer that is no HTTP reply: {error!r}"))
            return
        if self._reply.streamed:
            self._flow.seen(self._call, self._reply.n_events)
        if whole and self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


async def run_round(
    url: str | Sequence[str], lanes: Sequence[Lane], flow: Flow, *, warmed: Callable[[], None]
) -> Round:
    """Send what every lane holds, all lanes at once; `warmed` is called just before the clock starts.

    With several addresses each lane has one, by turns.

    Raises TimeoutError, or an ExceptionGroup of ConnectionErrors.
    """
    async with asyncio.timeout(ROUND_LIMIT_S):
        urls = [url] if isinstance(url, str) else url
        clients = [await Client.connect(urls[i % len(urls)], flow) for i in range(len(lanes))]
        try:
            async with asyncio.TaskGroup() as group:
                for client, lane in zip(clients, lanes, strict=True):
                    group.create_task(_send(client, lane.warm))
            warmed()
            started = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_send(client, lane.measured)) for client, lane in zip(clients, lanes, strict=True)
                ]
            seconds = time.perf_counter() - started
        finally:
            for client in clients:
                client.close()
    return Round(seconds=seconds, samples=[sample for task in tasks for sample in task.result()])


async def _send(client: Client, requests: Sequence[Request]) -> list[Sample]:
    return [(await client.ask(request))[0] for request in requests]


def head_of(body: bytes, *, key: str, bench: str, target: str = "/v1/chat/completions") -> bytes:
    """Return the head of a request, with the headers that agents send."""
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: 127.0.0.1",
        "Connection: keep-alive",
        "Accept: application/json",
        "User-Agent: OpenAI/JS 6.9.0",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        "Accept-Encoding: gzip, deflate",
        f"Content-Length: {len(body)}",
        f"X-Bench: {bench}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def contents_of(body: bytes, *, streamed: bool) -> list[str]:
    """Return the texts of a reply's choice: of a whole one, or of each chunk."""
    if not streamed:
        return [msgspec.json.decode(body)["choices"][0]["message"]["content"]]
    chunks = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in msgspec.json.decode(chunk)["choices"]]
    return [choice["delta"].get("content") or "" for choice in choices]
