"""Pieces of a stream, written to the agent's connection itself: the agent can't tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from capture.outlet import maybe_outlet

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(handler, access_log=None))  # type: ignore[arg-type]  # a request, of a server alone
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def raw(port: int, head: bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    async with asyncio.timeout(5):
        got = await reader.read()
    writer.close()
    await writer.wait_closed()
    return got


async def test_what_goes_out_by_either_way_is_one_stream_of_chunks() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        outlet = maybe_outlet(response)
        assert outlet is not None
        assert outlet.write(b"one")
        await response.write(b"two")
        assert outlet.write(b"x" * 17)
        await response.write_eof()
        return response

    async with serving(handler) as port:
        got = await raw(port)
    assert got.partition(b"\r\n\r\n")[2] == b"3\r\none\r\n3\r\ntwo\r\n11\r\n" + b"x" * 17 + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("why", ["HTTP/1.0", "a length", "a coding"])
async def test_a_response_in_another_form_has_none(why: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if why == "a length":
            response.content_length = 0
        if why == "a coding":
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        assert maybe_outlet(response) is None
        await response.write_eof()
        return response

    version = b"1.0" if why == "HTTP/1.0" else b"1.1"
    async with serving(handler) as port:
        got = await raw(port, b"GET / HTTP/%b\r\nHost: a\r\nConnection: close\r\n\r\n" % version)
    assert got.startswith(b"HTTP/%b 200" % version)


async def test_one_that_has_not_begun_has_none() -> None:
    assert maybe_outlet(web.StreamResponse()) is None


async def test_a_connection_that_takes_no_more_is_left_to_the_other_way() -> None:
    said: list[bool] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        outlet = maybe_outlet(response)
        assert outlet is not None
        while outlet.write(b"x" * 65_536):
            said.append(True)
        assert "full" in repr(outlet)
        taking.set()
        await response.write(b"y" * 100_000)
        await response.write_eof()
        return response

    taking = asyncio.Event()
    async with serving(handler) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(10):
            await taking.wait()
            got = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert got.count(b"x") == 65_536 * len(said)
    assert got.endswith(b"y\r\n0\r\n\r\n")


async def test_a_connection_that_closed_takes_nothing() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        outlet = maybe_outlet(response)
        assert outlet is not None
        assert request.transport is not None
        request.transport.close()
        assert not outlet.write(b"x")
        with pytest.raises(ConnectionError):
            await response.write(b"x")
        seen.set()
        raise ConnectionError("gone")

    seen = asyncio.Event()
    async with serving(handler) as port:
        await raw(port)
    assert seen.is_set()
