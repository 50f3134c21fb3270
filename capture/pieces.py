"""Large bodies on their way to an engine: written piece by piece, and never copied."""

from __future__ import annotations

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

PIECE_BYTES = 2**18
"""Of one write: so many does a slow engine leave in the socket's buffer, beyond what that waits for itself."""


class Pieces(Payload):
    """A body for aiohttp's client (3.14), which has nothing for one that is large and in memory.

    It writes bytes in one piece, of which the socket's buffer then holds a second copy, and warns of that. What it
    names instead, `io.BytesIO`, it asks for its buffer, and that is when a `BytesIO` copies the bytes that it was made
    of: for 200 MiB a quarter of a second in which no other call was served.
    """

    _value: bytes
    # Nothing to be closed.
    _autoclose = True

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self._size = len(body)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text; aiohttp's own tools ask for it."""
        return self._value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body, waiting where the engine does."""
        with memoryview(self._value) as body:
            for at in range(0, len(body), PIECE_BYTES):
                await writer.write(body[at : at + PIECE_BYTES])
