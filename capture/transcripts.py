"""What a running call has said so far, kept for a retry that takes it over.

Rules
1. Every byte that leaves for an agent stands here too, in order, until the call is over. What is kept is the very
   object that was written, so keeping it copies nothing.
2. All transcripts together have a budget. Where it is spent, the one that grows next is dropped: a retry of that call
   waits for its end, and is answered from the record.
3. Who follows reads at its own pace, and is told of each change. A transcript that is read is never dropped. Who writes
   it for those who follow alone waits for the slowest (`LAG`), as it would for an agent's own connection.
"""

from __future__ import annotations

import asyncio

from multidict import CIMultiDict

from capture.errors import TreeringError

BUDGET = 32 * 2**20
"""Bytes that all transcripts together keep: some 150,000 tokens of streams that run at this moment."""

LAG = 2**20
"""Bytes that one who follows may be behind."""


class _Total:
    """Bytes that all transcripts of the process keep together, read as an attribute of their class.

    Not an attribute itself: a class that is written to loses the interpreter's caches of all its methods, and it is
    written to with every token.
    """

    def __init__(self) -> None:
        self.bytes = 0

    def __get__(self, instance: object, owner: type) -> int:
        return self.bytes


_total = _Total()


class Transcript:
    """One call's reply as it goes out."""

    # Of all transcripts of the process together, in bytes.
    kept = _total

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        # Status and headers of the reply; None until they go out.
        self.head: tuple[int, CIMultiDict[str]] | None = None
        # The whole of it is one body, and no stream.
        self.whole = False
        # Something of it is missing here.
        self.dropped = False
        self.over = False
        # It ended as it should; and, whatever came then, the reply's end went out.
        self.clean = False
        self.through = False
        # What the agent gets instead of a reply.
        self.failure: TreeringError | None = None
        self.followers = 0
        self._size = 0
        self._closed = False
        self._changed: asyncio.Future[None] | None = None
        # By who follows: how many pieces it has written.
        self._read: dict[object, int] = {}
        self._moved: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "over" if self.over else "dropped" if self.dropped else "running"
        return f"<Transcript {state}, {self._size} bytes, followed by {self.followers}>"

    def begin(self, status: int, headers: CIMultiDict[str], *, whole: bool = False) -> None:
        """Note the reply's head."""
        self.head, self.whole = (status, headers), whole
        self._tell()

    def add(self, piece: bytes) -> None:
        """Keep what goes out."""
        if self.dropped:
            return
        self.pieces.append(piece)
        if self.followers:
            self._tell()
        self.count(len(piece))

    def count(self, size: int) -> None:
        """Count pieces that were put behind the others without a word, while nobody followed."""
        self._size += size
        _total.bytes += size
        if _total.bytes > BUDGET and not self._read:
            self.dropped = True
            self.close()

    def end(self, *, clean: bool, through: bool) -> None:
        """Note that all has been said: with a clean end, and with the reply's end in it."""
        self.over, self.clean, self.through = True, clean, through
        self._tell()

    def fail(self, error: TreeringError) -> None:
        """Note that an error comes instead."""
        self.failure, self.over = error, True
        self._tell()

    def close(self) -> None:
        """Let go of what is kept, once nobody can join any more; who follows still reads it to its end."""
        _total.bytes -= self._size
        self._size = 0
        self._closed = True
        self._let_go()

    async def changed(self) -> None:
        """Return when something has been added since this was called."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def follow(self, who: object, *, reads: bool = True) -> None:
        """Note one who follows; one that doesn't read waits for the end alone."""
        self.followers += 1
        if reads:
            self._read[who] = 0

    def unfollow(self, who: object) -> None:
        """Note that one who followed has left."""
        self.followers -= 1
        self._read.pop(who, None)
        self._let_go()
        self._move()

    def has_read(self, who: object, pieces: int) -> None:
        """Note how far one who follows has come."""
        self._read[who] = pieces
        if self._moved is not None:
            self._move()

    async def caught_up(self) -> None:
        """Return when nobody who follows is far behind."""
        while self._read and sum(map(len, self.pieces[min(self._read.values()) :])) > LAG:
            self._moved = asyncio.get_running_loop().create_future()
            await self._moved

    def _let_go(self) -> None:
        if self._closed and not self.followers:
            # Not left to the collector: a reply may have megabytes, and an error holds its whole call.
            self.pieces, self.failure = [], None

    def _tell(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _move(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)
