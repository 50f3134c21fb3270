"""The wire itself: an engine that keeps each request as it came, and a client that writes bytes to a socket.

For what a client library would hide or mend: header lines in their order, duplicates, codings, a body that waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from aiohttp import web

from tests.engine import Engine, whole

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Seen(NamedTuple):
    """A request as the engine got it; `headers` in order, duplicates too, names in lower case."""

    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def names(self) -> set[str]:
        """The names of its headers."""
        return {name for name, _ in self.headers}


async def says_hi(request: web.Request) -> web.StreamResponse:
    """Answer whole."""
    return web.json_response(whole([5, 6, 7]))


class WireEngine(Engine):
    """An engine that notes each request of an agent and answers it by `reply`; probes are answered as ever."""

    def __init__(self, reply: Reply = says_hi) -> None:
        super().__init__()
        self.reply = reply
        self.seen: list[Seen] = []

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if b'"Say hi."' in body[:200]:
            return await super()._chat(request)
        self._note(request, body)
        return await self.reply(request)

    async def _tokenize(self, request: web.Request) -> web.Response:
        self._note(request, await request.read())
        return web.json_response({"count": 2, "tokens": [1, 2], "asked": await request.json()})

    def _note(self, request: web.Request, body: bytes) -> None:
        headers = [(name.decode().lower(), value.decode()) for name, value in request.raw_headers]
        self.seen.append(Seen(request.raw_path, headers, body))


class Answer(NamedTuple):
    """An answer as a client's socket got it; `headers` in order, names in lower case, `body` without its framing."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Wire:
    """A client's socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(10):
            await self._writer.drain()

    async def ask(self, method: str, path: str, *headers: tuple[str, str], body: bytes = b"") -> Answer:
        """Write a request with exactly these headers; return its answer."""
        await self.write(head(method, path, *headers) + body)
        return await self.answer()

    async def line(self) -> str:
        """Read one line of an answer's head."""
        async with asyncio.timeout(10):
            return (await self._reader.readuntil(b"\r\n")).decode().removesuffix("\r\n")

    async def answer(self) -> Answer:
        """Read one answer."""
        status = int((await self.line()).split(" ")[1])
        headers = []
        while line := await self.line():
            name, _, value = line.partition(":")
            headers.append((name.lower(), value.strip()))
        framing = dict(headers)
        async with asyncio.timeout(10):
            if framing.get("transfer-encoding") == "chunked":
                body = b""
                while size := int(await self.line(), 16):
                    body += (await self._reader.readexactly(size + 2))[:-2]
                await self.line()
            else:
                body = await self._reader.readexactly(int(framing.get("content-length", 0)))
        return Answer(status, headers, body)

    async def closed(self) -> bool:
        """Wait until the other side has closed the connection."""
        async with asyncio.timeout(10):
            return await self._reader.read(1) == b""


def head(method: str, path: str, *headers: tuple[str, str]) -> bytes:
    """A request's head."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode()


@contextlib.asynccontextmanager
async def wire(url: str) -> AsyncIterator[Wire]:
    """A connection for a block."""
    parts: Any = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def wired(reply: Reply = says_hi) -> AsyncIterator[WireEngine]:
    """An engine that runs for a block."""
    engine = WireEngine(reply)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
