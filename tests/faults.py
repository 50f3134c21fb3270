"""A fault proxy: TCP bytes pass through it, and go wrong at a byte offset that the test names.

Deterministic, since faults hang on offsets and on the test's word, never on time. `down` is what the server sends, `up`
what the client sends. It stands between an agent and the appliance, or between the appliance and an engine.

| fault | how |
|---|---|
| delay | `stall`: what follows the offset passes when the test says `release` |
| cut | `close` |
| reset | `reset` |
| half-close | `half_close`: the direction ends, the other goes on until `release`, and then both have ended |
| slow read | `stall` stops reading too, so the sender's buffers fill; `piece` hands on so many bytes at a time |
| garbage | `garbage` is put in at the offset, before the fault, or with `way=None` instead of one |

Offsets count from a connection's beginning, or, after `arm`, from that moment over all connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Literal

Way = Literal["close", "reset", "stall", "half_close"] | None


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
        piece: int = 65536,
    ) -> None:
        """`down_after`/`up_after`: bytes that pass before the fault; None for no fault.

        `way`: close the connection, reset it, stall it (until `release`), or close the faulty direction alone; None to
        go on. `garbage` is sent on at the fault. `piece`: bytes that are handed on at a time.
        """
        self._port = port
        self._piece = piece
        # Bytes left before the fault, over all connections, once armed.
        self._armed: dict[str, int | None] | None = None
        self._limits = {"down": down_after, "up": up_after}
        self._way = way
        self._garbage = garbage
        self._server: asyncio.Server | None = None
        self._gate = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        # All that was handed on, by direction.
        self.passed = {"down": bytearray(), "up": bytearray()}
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

    def arm(
        self, *, down_after: int | None = None, up_after: int | None = None, way: Way = "close", garbage: bytes = b""
    ) -> None:
        """Count from now on, over all connections; with nothing named there is no further fault."""
        self.release()
        self._armed = {"down": down_after, "up": up_after}
        self._way, self._garbage = way, garbage
        self.struck, self._gate = asyncio.Event(), asyncio.Event()

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
        limits = {way: self._limits[way]}
        while data := await reader.read(self._piece):
            if self._armed is not None:
                limits = self._armed
            left = limits[way]
            if left is not None and len(data) >= left:
                limits[way] = None
                writer.write(data[:left])
                await writer.drain()
                await self._strike(writer, other)
                data = data[left:]
            elif left is not None:
                limits[way] = left - len(data)
            if data:
                self.passed[way] += data
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
        if self._way is None:
            return
        if self._way == "stall":
            await self._gate.wait()
            return
        if self._way == "half_close":
            writer.write_eof()
            # Nothing more can be sent this way.
            await self._gate.wait()
            raise _StruckError
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
