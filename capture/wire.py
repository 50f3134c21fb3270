"""HTTP/1.1 to one engine, in the clear: connections that are kept, and answers that are read where they come in.

Rules
1. What is read here is what every engine sends: a head in one piece, then a body with a length, or in chunks. Of any
   other answer (a coding, no length, a head in two pieces or with odd line ends, 1xx before it) aiohttp's own parser
   reads all, from its first byte; each head is read by that parser anyway.
2. A connection is used again only when its answer ended where it said, with nothing behind it, and all of the request
   had left by then.

aiohttp's client makes some forty objects a request, and as many awaits; here a request is one write, and one future.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp import StreamReader
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser, RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError

from capture.chunks import Chunks, maybe_one
from capture.content import HIGH_BYTES, Answer, Content, Rush, incomplete

_END = b"\r\n\r\n"


class Link(BaseProtocol):
    """One connection; of aiohttp's kind, for its parser holds it back by that."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._wire = wire
        self.idle_since = 0.0
        self._read: Callable[[bytes], None] = self._read_nothing
        self._head: asyncio.Future[Answer] | None = None
        self._content: Content | None = None
        self._long: StreamReader | None = None
        self._chunks = Chunks()
        self._left = 0
        self._reusable = False
        self._held = False
        # Of the body that comes in chunks, while the next thing to come begins one.
        self._rush: Rush | None = None

    def __repr__(self) -> str:
        return f"<Link {'closed' if self.transport is None else self._read.__name__}>"

    @property
    def usable(self) -> bool:
        """Whether it is open."""
        return self.transport is not None and not self.transport.is_closing()

    async def ask(self, head: bytes, body: bytes) -> Answer:
        """Write a request; return the answer when its head has come.

        Raises `aiohttp.ServerDisconnectedError` where the connection closes before a byte of it, OSError where it
        breaks, `HttpProcessingError` for what is no HTTP.
        """
        assert self.transport is not None
        mine: asyncio.Future[Answer] = self._loop.create_future()
        self._head = mine
        self._read = self._read_head
        if body:
            self.transport.writelines((head, body))
        else:
            self.transport.write(head)
        # An answer that came in one piece is over before who asked for it runs again, and by then another may ask here.
        try:
            return await mine
        except BaseException:  # cancelled or not, nothing of it may run on
            if self._head is mine:
                self.shut()
            raise
        finally:
            if self._head is mine:
                self._head = None

    def drop(self, content: Content | StreamReader) -> None:
        """Close the connection if it still brings that body."""
        if content is self._content or content is self._long:
            self.shut()

    def forget(self, content: Content | StreamReader) -> None:
        """Do the same a little later; may be called on any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it all connections
            self._loop.call_soon_threadsafe(self.drop, content)

    def shut(self) -> None:
        """Close the connection, at once if it still holds some of a request."""
        self._read, self._rush = self._read_nothing, None
        closed = aiohttp.ClientConnectionError("Connection closed")
        # Whoever waits is told here: of what was closed on purpose nothing else is said later.
        if self._head is not None and not self._head.done():
            self._head.set_exception(closed)
        if self._content is not None:
            self._content.fail(closed)
        if self._long is not None and not self._long.is_eof() and self._long.exception() is None:
            self._long.set_exception(closed)
        self._content = self._long = self._parser = None
        self._hang_up()

    def _hang_up(self) -> None:
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size():
            # A close would wait until the engine has read it, which it need not ever do.
            self.transport.abort()
        else:
            self.transport.close()

    def offer(self, rush: Rush | None) -> None:
        """Offer each chunk of the body that comes to `rush` first, as it came; None: no more."""
        border = self._read == self._read_chunks and self._chunks.at_border
        self._rush = rush if border else None

    def hold(self) -> None:
        """Let the engine wait."""
        if not self._held:
            self._held = True
            self._pause_transport_reading()

    def go_on(self) -> None:
        """Let the engine go on."""
        if self._held:
            self._held = False
            self._resume_transport_reading()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        rush = self._rush
        if rush is not None:
            # A token of a stream passes this one function of ours.
            try:
                if rush(data):
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the pouring is awaited
                assert self._content is not None
                self._content.stop(error)
                return
        self._read(data)

    def eof_received(self) -> None:
        """Take the end of what the engine says: what it has not read of a request is for nobody."""
        if self.transport is not None and self.transport.get_write_buffer_size():
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take the end of the connection, tidy or not."""
        self._wire.lost(self)
        head, content, parser = self._head, self._content, self._parser
        if parser is not None:
            self._end_long(exc)
        elif head is not None and not head.done():
            head.set_exception(exc if exc is not None else aiohttp.ServerDisconnectedError())
        elif content is not None:
            content.fail(incomplete(exc))
        self._content = self._long = self._rush = None
        self._read = self._read_nothing
        super().connection_lost(exc)

    # Reading

    def _read_nothing(self, data: bytes) -> None:
        """Close a connection on which something comes that nobody asked for."""
        if data and self.transport is not None:
            self._wire.lost(self)
            self.transport.close()

    def _read_head(self, data: bytes) -> None:
        end = data.find(_END)
        head = data[: end + 4]
        lines = head.count(b"\r\n")
        if end < 0 or head.count(b"\n") != lines or head.count(b"\r") != lines:
            self._read_longer(data)
            return
        try:
            messages, _, _ = self._parse(head)
        except HttpProcessingError as error:
            self._fail_head(error)
            return
        if len(messages) != 1 or not self._is_short(messages[0][0]):
            self._read_longer(data)
            return
        message: RawResponseMessage = messages[0][0]
        content = self._content = Content(self)
        self._reusable = not message.should_close
        if message.chunked:
            self._chunks = Chunks()
            self._read = self._read_chunks
        else:
            self._left = int(message.headers["Content-Length"])
            self._read = self._read_sized
        self._tell(Answer(message.code, message.headers, content, self))
        if rest := data[end + 4 :]:
            self._read(rest)
        elif not message.chunked and not self._left:
            self._end()

    def _is_short(self, message: RawResponseMessage) -> bool:
        """Say whether an answer is one of those that are read here."""
        if message.version != (1, 1) or message.upgrade or message.compression or not 200 <= message.code < 600:
            return False
        if "Content-Encoding" in message.headers or message.code in (204, 304):
            return False
        if message.chunked:
            return message.headers.getall("Transfer-Encoding", None) == ["chunked"]
        length = message.headers.get("Content-Length", "")
        return "Transfer-Encoding" not in message.headers and length.isascii() and length.isdigit()

    def _read_sized(self, data: bytes) -> None:
        assert self._content is not None
        if len(data) > self._left:
            # More than it said: the connection is good for nothing more.
            self._reusable, data = False, data[: self._left]
        self._left -= len(data)
        if data:
            self._content.feed(data)
        if not self._left:
            self._end()

    def _read_chunks(self, data: bytes) -> None:
        content = self._content
        assert content is not None
        if self._chunks.at_border:
            one = maybe_one(data)
            if one is not None:
                content.feed(one)
                return
        for piece in self._chunks.feed(data):
            content.feed(piece)
        self.offer(content.rush)
        if self._chunks.broken is not None:
            content.fail(incomplete(self._chunks.broken))
            self.shut()
        elif self._chunks.ended:
            self._reusable = self._reusable and not self._chunks.rest
            self._end()

    def _end(self) -> None:
        """End the answer, and keep the connection if it may be used again. Nothing here is woken before it returns."""
        content, self._content = self._content, None
        if content is None:
            # It was dropped while its last piece was poured.
            return
        self._read, self._rush = self._read_nothing, None
        self.go_on()
        if self._reusable and self.usable and self.transport is not None and not self.transport.get_write_buffer_size():
            self._wire.keep(self)
        else:
            self._hang_up()
        content.end()

    def _tell(self, answer: Answer) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_result(answer)

    def _fail_head(self, error: BaseException) -> None:
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self.shut()

    # The long way: aiohttp's parser reads head and body, as in its own client.

    def _parse(self, data: bytes) -> tuple[list[tuple[RawResponseMessage, StreamReader]], bool, bytes]:
        parsed: tuple[list[tuple[RawResponseMessage, StreamReader]], bool, bytes] = self._new_parser().feed_data(data)
        return parsed

    def _new_parser(self) -> Any:
        return HttpResponseParser(
            self,
            self._loop,
            HIGH_BYTES // 2,
            max_line_size=self._wire.max_line,
            max_field_size=self._wire.max_line,
            payload_exception=aiohttp.ClientPayloadError,
            response_with_body=True,
            read_until_eof=True,
            auto_decompress=True,
        )

    def _read_longer(self, data: bytes) -> None:
        self._parser = self._new_parser()
        self._read = self._read_long
        self._read_long(data)

    def _read_long(self, data: bytes) -> None:
        if self._parser is None:
            return
        try:
            messages, _, _ = self._parser.feed_data(data)
        except Exception as error:  # noqa: BLE001 - a parser's error is the answer's, whatever it is
            if self._long is None:
                self._parser = None
                self._fail_head(error if isinstance(error, HttpProcessingError) else HttpProcessingError())
            elif self.transport is not None:
                # The parser told the body why.
                self.transport.close()
            return
        for message, payload in messages:
            if self._long is not None or (100 <= message.code < 200 and message.code != 101):
                continue
            self._long = payload
            self._tell(Answer(message.code, message.headers, payload, self))
        if self._long is not None and self._long.is_eof():
            # Read to its end; such a connection is not used again.
            self._hang_up()

    def _end_long(self, exc: BaseException | None) -> None:
        assert self._parser is not None
        payload = self._long
        if exc is None:
            try:
                self._parser.feed_eof()
            except Exception as error:  # noqa: BLE001 - as above
                if payload is not None and not payload.is_eof():
                    payload.set_exception(incomplete(error))
        # A connection that broke ends no body, not even one that goes on to the close.
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(incomplete(exc))
        if self._head is not None and not self._head.done():
            # No `ServerDisconnectedError`, upon which a request is sent again: some of an answer had come.
            closed = aiohttp.ClientConnectionError("Connection closed in the head of an answer")
            self._head.set_exception(exc if exc is not None else closed)
        self._parser = None


class Wire:
    """The connections to one engine."""

    def __init__(self, host: str, port: int, *, keepalive_s: float, connect_s: float, max_line: int) -> None:
        self._host = host
        self._port = port
        self._keepalive_s = keepalive_s
        self._connect_s = connect_s
        # Of a head, in bytes.
        self.max_line = max_line
        # Free ones, the one used last at the end.
        self._idle: list[Link] = []
        self._links: set[Link] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Wire to {self._host}:{self._port}, {len(self._idle)} of {len(self._links)} idle>"

    async def ask(self, head: bytes, body: bytes = b"", *, anew: bool = False) -> Answer:
        """Send a request; return the answer when its head has come. Raises as `Link.ask`, TimeoutError, OSError.

        `anew`: on a new connection, whatever is kept; behind one that an engine had closed others are as dead.
        """
        since = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle and not anew:
            link = self._idle.pop()
            if link.usable and link.idle_since > since:
                return await link.ask(head, body)
            link.shut()
        link = await self._connect()
        if not link.usable:
            # Closed again before we ran: by an engine that is full, or something else that listens there.
            self.lost(link)
            raise aiohttp.ServerDisconnectedError
        return await link.ask(head, body)

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._idle.clear()
        for link in list(self._links):
            link.shut()

    def keep(self, link: Link) -> None:
        """Take a connection back."""
        if self._closed:
            link.shut()
            return
        link.idle_since = asyncio.get_running_loop().time()
        self._idle.append(link)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._keepalive_s, self._tidy)

    def lost(self, link: Link) -> None:
        """Forget a connection that closed."""
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)

    async def _connect(self) -> Link:
        """Open a connection to the first of the host's addresses that takes one."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            errors: list[Exception] = []
            for family, _, protocol, _, address in found:
                try:
                    # One that swallows everything leaves time for the others.
                    async with asyncio.timeout(self._connect_s / len(found)):
                        _, link = await loop.create_connection(
                            lambda: Link(self, loop), str(address[0]), int(address[1]), family=family, proto=protocol
                        )
                except (OSError, TimeoutError) as error:
                    errors.append(error)
                    continue
                if self._closed:
                    link.shut()
                    raise aiohttp.ClientConnectionError("Connection closed")
                self._links.add(link)
                return link
        raise errors[-1] if errors else OSError(f"{self._host} has no address")

    def _tidy(self) -> None:
        """Close what was idle for too long."""
        loop = asyncio.get_running_loop()
        self._timer = None
        before = loop.time() - self._keepalive_s + 0.001
        while self._idle and self._idle[0].idle_since <= before:
            link = self._idle.pop(0)
            link.shut()
        if self._idle:
            delay = self._idle[0].idle_since + self._keepalive_s - loop.time()
            self._timer = loop.call_later(max(0.01, delay), self._tidy)
