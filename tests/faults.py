"""A fault proxy: TCP bytes pass through it, and go wrong at a byte offset that the test names.

Deterministic, since faults hang on offsets and on the test's word, never on time. `down` is what the server sends, `up`
what the client sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Literal

Way = Literal["close", "reset", "stall", "half_close"]


class FaultProxy:
    """Listens on a free port of loopback and forwards to `port`."""

    def __init__(
        self,
        port: int,
        *,
        down_after: int | None = None,
        up_after: int | None = None,
        way: Way = "close",
        garbage: bytes = b"",
    ) -> None:
        """`down_after`/`up_after`: bytes that pass before the fault; None for no fault.

        `way`: close the connection, reset it, stall it (until `release`), or close the faulty direction alone.
        `garbage` is sent to the client at the fault.
        """
        self._port = port
        self._limits = {"down": down_after, "up": up_after}
        self._way = way
        self._garbage = garbage
        self._server: asyncio.Server | None = None
        self._gate = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        # Set when the fault has happened.
        self.struck = asyncio.Event()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self.release()
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()

    def release(self) -> None:
        """Let what is stalled go on."""
        self._gate.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._open |= {writer, far_writer}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump("up", reader, far_writer, writer))
                both.create_task(self._pump("down", far_reader, writer, far_writer))
        except* (ConnectionError, _StruckError):
            pass
        finally:
            for one in (writer, far_writer):
                self._open.discard(one)
                one.close()
                with contextlib.suppress(ConnectionError):
                    await one.wait_closed()

    async def _pump(
        self,
        way: Literal["up", "down"],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
    ) -> None:
        limit, passed = self._limits[way], 0
        while data := await reader.read(65536):
            if limit is not None and passed + len(data) >= limit:
                writer.write(data[: limit - passed])
                await writer.drain()
                await self._strike(writer, other)
                rest = data[limit - passed :]
                limit = None
                if rest:
                    writer.write(rest)
                    await writer.drain()
                continue
            passed += len(data)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()

    async def _strike(self, writer: asyncio.StreamWriter, other: asyncio.StreamWriter) -> None:
        self.struck.set()
        if self._garbage:
            writer.write(self._garbage)
            await writer.drain()
        if self._way == "stall":
            await self._gate.wait()
            return
        if self._way == "half_close":
            writer.write_eof()
            await self._gate.wait()
            return
        if self._way == "reset":
            for one in (writer, other):
                sock = one.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise _StruckError


class _StruckError(Exception):
    """Ends both directions."""


@contextlib.asynccontextmanager
async def faulty(url: str, **options):
    """A fault proxy in front of `url` for a block."""
    proxy = FaultProxy(int(url.rsplit(":", 1)[1]), **options)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()
