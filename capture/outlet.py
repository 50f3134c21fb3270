"""An agent's stream, written to where it leaves: a chunk for each piece, on the connection itself.

aiohttp's way to it is three awaits and two size counts a piece, 4 us of the 16 that a token costs a proxy that looks at
nothing. What it does for a stream in chunks, without a coding, is one write; that is done here, and nothing else.
A connection that takes no more at present, or has closed, is left to that other way, which waits, or says so.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_writer import StreamWriter

from capture.chunks import framed


class Outlet:
    """One agent's connection, while a stream in chunks goes out on it."""

    def __init__(self, transport: asyncio.Transport, protocol: BaseProtocol) -> None:
        # Writes a whole chunk, where it `is_open`.
        self.send = transport.write
        self.is_closing = transport.is_closing
        self.protocol = protocol

    def __repr__(self) -> str:
        return f"<Outlet {'full' if self.protocol.writing_paused else 'open'}>"

    def write(self, piece: bytes) -> bool:
        """Write a piece that is not empty; False, and nothing is written, where the other way must be gone."""
        if not self.is_open():
            return False
        self.send(framed(piece))
        return True

    def is_open(self) -> bool:
        """Say whether the connection takes a chunk at present."""
        return not (self.protocol.writing_paused or self.is_closing())


def maybe_outlet(response: web.StreamResponse) -> Outlet | None:
    """Return the outlet of a response that has been prepared; None where its bytes go out in another form."""
    writer = response._payload_writer  # noqa: SLF001 -- aiohttp shows it nowhere
    if type(writer) is not StreamWriter or not writer.chunked or writer.length is not None:
        return None
    if writer._compress is not None or writer._headers_buf is not None:  # noqa: SLF001 -- nor how far it is
        return None
    transport, protocol = writer.transport, writer.protocol
    return None if transport is None else Outlet(transport, protocol)
