"""An engine's answer as it comes: its head, and a body that is read, or poured into whoever is to have it.

Rules
1. What came is given out before what ended it: a body that broke off is an error behind its last byte, never an end.
2. Nobody is woken for a piece who wants the whole (`rest`), and nobody at all is woken for one that is poured (`pour`):
   it goes from the socket to the sink in one call. Waking a task for each piece is half the price of a token.
3. What nobody takes is bounded: the engine is let wait (`Source.hold`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import aiohttp
import msgspec
from aiohttp import StreamReader
from multidict import CIMultiDictProxy

HIGH_BYTES = 2**19
"""Of an answer that nobody takes, after which the engine is let wait: two of the event loop's largest reads."""

Sink = Callable[[bytes], bool]
"""Takes a piece; False asks for no more of them."""

Rush = Callable[[bytes], bool]
"""Takes a piece as it came, in one whole chunk; False, and nothing is changed, where it is for the sink."""


class Source(Protocol):
    """Where a body comes from."""

    def hold(self) -> None:
        """Let the engine wait."""

    def go_on(self) -> None:
        """Let the engine go on."""

    def offer(self, rush: Rush | None) -> None:
        """Offer what comes in a chunk of its own to `rush` first; None: no more."""

    def drop(self, content: Content | StreamReader) -> None:
        """Close the connection if it still brings that body."""

    def forget(self, content: Content | StreamReader) -> None:
        """Do the same a little later; may be called on any thread."""


class Content:
    """The body of one answer, as it comes."""

    def __init__(self, source: Source) -> None:
        self._source: Source | None = source
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._ended = False
        self._broken: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        # While it is poured, who may take a piece before it is unwrapped.
        self.rush: Rush | None = None
        self._stopped = False
        # Who waits wants all of it, and is not woken for less.
        self._whole = False

    def __repr__(self) -> str:
        return f"<Content {self._size} bytes{' at most' if self._ended else ''}{', poured' if self._sink else ''}>"

    @property
    def ended(self) -> bool:
        """Whether the engine is through with it, or it broke off."""
        return self._ended or self._broken is not None

    async def readany(self) -> bytes:
        """Return what came, at least a byte; nothing at the end. Raises `aiohttp.ClientPayloadError`."""
        while not self._pieces and not self.ended:
            await self._wait()
        if self._pieces:
            return self._take()
        if self._broken is not None:
            raise self._broken
        return b""

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Yield what comes, as `readany` does."""
        while piece := await self.readany():
            yield piece

    async def rest(self, limit: int) -> bytes | None:
        """Return all that is left of it; None where that is more than `limit`. Raises as `readany` does."""
        pieces: list[bytes] = []
        size = 0
        while True:
            self._whole = True
            try:
                while self._size <= HIGH_BYTES and not self.ended:
                    await self._wait()
            finally:
                self._whole = False
            if self._pieces:
                pieces.append(self._take())
                size += len(pieces[-1])
                if size > limit:
                    return None
            elif self._broken is not None:
                raise self._broken
            else:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pour(self, sink: Sink, rush: Rush | None = None) -> bool:
        """Hand each piece to `sink` in the step that read it, until it says False (return True), or to the end (False).

        What comes in a chunk of its own is offered to `rush` first. Raises as `readany` does, and what they raise.
        """
        while self._pieces:
            if not sink(self._take()):
                return True
        if not self.ended:
            self._sink, self._stopped = sink, False
            self._offer(rush)
            try:
                await self._wait()
            finally:
                self._sink = None
                self._offer(None)
            if self._stopped:
                return True
        if self._broken is not None:
            raise self._broken
        return False

    # What the connection says.

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        sink = self._sink
        if sink is not None:
            try:
                more = sink(piece)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the pouring is awaited
                self.stop(error)
            else:
                if not more:
                    self.stop()
            return
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > HIGH_BYTES:
            if self._source is not None:
                self._source.hold()
            self._wake()
        elif not self._whole:
            self._wake()

    def stop(self, error: Exception | None = None) -> None:
        """Pour no more; the error is raised where the pouring is awaited."""
        self._sink, self._stopped = None, True
        self._offer(None)
        self._wake(error)

    def _offer(self, rush: Rush | None) -> None:
        if rush is not self.rush:
            self.rush = rush
            if self._source is not None:
                self._source.offer(rush)

    def end(self) -> None:
        """Take the end."""
        self._ended, self._source = True, None
        self._wake()

    def fail(self, error: Exception) -> None:
        """Take a break."""
        if not self.ended:
            self._broken, self._source = error, None
            self._wake()

    def _take(self) -> bytes:
        if len(self._pieces) == 1:
            taken = self._pieces.popleft()
        else:
            taken = b"".join(self._pieces)
            self._pieces.clear()
        self._size = 0
        if self._source is not None:
            self._source.go_on()
        return taken

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self, error: Exception | None = None) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class Answer:
    """An engine's answer, whose head is here."""

    def __init__(
        self, status: int, headers: CIMultiDictProxy[str], content: Content | StreamReader, source: Source
    ) -> None:
        self.status = status
        self.headers = headers
        self.content = content
        self._source: Source | None = source

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.content!r}>"

    @property
    def content_type(self) -> str:
        """The type without its parameters."""
        return self.headers.get("Content-Type", "application/octet-stream").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([piece async for piece in self.content.iter_any()])

    async def json(self) -> Any:
        """Return the whole body, decoded."""
        return msgspec.json.decode(await self.read())

    def close(self) -> None:
        """Let the answer go; what has not come of it never will."""
        source, self._source = self._source, None
        if source is not None:
            source.drop(self.content)

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # One that nobody closed must not keep its connection, and with it the engine's work. The collector runs on
        # whatever thread it likes.
        if self._source is not None and not (self.content.ended if isinstance(self.content, Content) else False):
            self._source.forget(self.content)


def incomplete(error: BaseException | None) -> aiohttp.ClientPayloadError:
    """Return the error of a body that broke off, and why, where that is known."""
    said = aiohttp.ClientPayloadError("Response payload is not completed" + ("" if error is None else f": {error!r}"))
    said.__cause__ = error
    return said
