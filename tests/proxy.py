"""A forward proxy for plain HTTP (RFC 9112, 3.2.2) that counts: to see who goes through one, and who doesn't."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Proxy:
    """A proxy; `asked` are the targets of the requests that came, the first of each connection."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            line = await reader.readuntil(b"\r\n")
            target = line.split(b" ")[1].decode()
            self.asked.append(target)
            parts = urlsplit(target)
            back, forth = await asyncio.open_connection(parts.hostname, parts.port)
            with contextlib.closing(forth):
                forth.write(line)
                async with asyncio.TaskGroup() as group:
                    group.create_task(_carry(reader, forth))
                    group.create_task(_carry(back, writer))


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


@contextlib.asynccontextmanager
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy for a block."""
    made = Proxy()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()
