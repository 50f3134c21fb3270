"""A probe through a public URL: it led to this very process, or says what it did instead."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from tunnel.errors import TunnelError
from tunnel.health import Prober


@contextlib.asynccontextmanager
async def answering(answer):
    """A server with one answer for all; its URL."""

    async def serve(reader, writer):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def prober(*nonces, **options):
    made = Prober(nonces or ("mine",), **options)
    try:
        yield made
    finally:
        await made.close()
        await made.close()


def reply(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


async def test_the_right_nonce_is_this_process():
    async with answering(reply('{"ok": true, "nonce": "mine"}')) as url, prober("other", "mine") as look:
        await look.probe(url)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (reply('{"ok": true, "nonce": "theirs"}'), "another Treering"),
        (reply("<html>This share link has expired</html>"), "no Treering"),
        (reply('{"ok": true}'), "no Treering"),
        (reply("[1]"), "no Treering"),
        (reply("", "404 Not Found"), "answers 404"),
        (reply("", "302 Found\r\nLocation: http://127.0.0.1:9/"), "answers 302"),
        (b"SSH-2.0-OpenSSH\r\n", "can't be reached"),
        (b"", "can't be reached"),
    ],
)
async def test_anything_else_is_said(answer, says):
    async with answering(answer) as url, prober() as look:
        with pytest.raises(TunnelError, match=says):
            await look.probe(url)


async def test_one_that_takes_connections_and_carries_nothing_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with prober(limit_s=0.2) as look:
            with pytest.raises(TunnelError, match="carries nothing"):
                await look.probe(f"http://127.0.0.1:{mute.getsockname()[1]}")


async def test_nothing_there_and_no_such_name():
    async with prober() as look:
        with pytest.raises(TunnelError, match="can't be reached"):
            await look.probe("http://127.0.0.1:9")
        with pytest.raises(TunnelError, match="can't be looked up"):
            await look.probe("http://no-such-host.invalid")


async def test_proxy_variables_count_only_when_told(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with answering(reply('{"nonce": "mine"}')) as url:
        async with prober() as look:
            await look.probe(url)
        async with prober(trust_env=True) as look:
            with pytest.raises(TunnelError):
                await look.probe(url)
