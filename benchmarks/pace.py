"""An engine that streams at its own pace, whoever is behind it: so many seconds to the first token, so many from one
to the next.

Its lateness is noted: how long after its time each event was written. Where that grows, the machine has no more to
give, and what is measured behind it says nothing about a proxy. What each client must have got is noted too, as a sum
over the bytes: with the ids for one who passes on all, without them for one who asked for them itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from array import array
from zlib import crc32

import msgspec

from benchmarks.upstream import Flow, Upstream
from benchmarks.wire import Ask, Wire

TICK_S = 0.002
"""Between two looks at what is due."""


class Pace:
    """The streams under way, by when their next event is due."""

    def __init__(self, wire: Wire, *, first_s: float, token_s: float, passes_ids: bool = False) -> None:
        """`passes_ids`: the client gets ids and logprobs, whoever asked for them."""
        self._wire = wire
        self.first_s = first_s
        self.token_s = token_s
        self.passes_ids = passes_ids
        self.late_ms = array("d")
        # Of each call, what its client must have got: a sum and how many bytes.
        self.expected: dict[int, tuple[int, int]] = {}
        self._due: list[tuple[float, int, Paced]] = []
        self._order = itertools.count()
        self._ticking = False

    def __repr__(self) -> str:
        return f"<Pace {len(self._due)} streams>"

    def begin(self, stream: Paced, ask: Ask, reply_id: bytes, events: list[bytes]) -> None:
        """Take a stream on."""
        loop = asyncio.get_running_loop()
        assert ask.call is not None
        seen = events
        if ask.ids and not self.passes_ids:
            seen = self._wire.events(msgspec.structs.replace(ask, ids=False), reply_id)
        body = b"".join(seen)
        self.expected[ask.call] = (crc32(body), len(body))
        heapq.heappush(self._due, (loop.time() + self.first_s, next(self._order), stream))
        if not self._ticking:
            self._ticking = True
            loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._due
        while due and due[0][0] <= now:
            at, _, stream = heapq.heappop(due)
            self.late_ms.append((now - at) * 1000)
            if stream.step():
                heapq.heappush(due, (at + self.token_s, next(self._order), stream))
        if due:
            loop.call_later(TICK_S, self._tick)
        else:
            self._ticking = False


class Paced(Upstream):
    """One connection of that engine."""

    def __init__(self, wire: Wire, pace: Pace, ids: itertools.count[int]) -> None:
        super().__init__(wire, Flow(), ids)
        self._pace = pace

    def _stream(self, ask: Ask, events: list[bytes], reply_id: bytes, *, opens_at_once: bool) -> None:
        if ask.call is None:
            super()._stream(ask, events, reply_id, opens_at_once=opens_at_once)
            return
        self._open(events)
        self._pace.begin(self, ask, reply_id, events)

    def step(self) -> bool:
        """Write the next event; return whether there is another. Nothing is written once the client has gone."""
        if self._sent == 0:
            # The role comes with the first token.
            self._write()
        if self._sent < len(self._events) - N_LAST:
            self._write()
            return True
        while self._sent < len(self._events):
            self._write()
        self._close()
        return False


N_LAST = 3
"""The last token with the finish, usage and `[DONE]`: written at once."""


async def serve(wire: Wire, pace: Pace) -> tuple[asyncio.Server, str]:
    """Start the engine on a free port of this loop; return it and its address."""
    ids = itertools.count()
    server = await asyncio.get_running_loop().create_server(
        lambda: Paced(wire, pace, ids), "127.0.0.1", 0, backlog=1024
    )
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
