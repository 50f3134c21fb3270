"""The graphs of rollouts that were asked for lately, each grown by what came since.

Of an open rollout only later calls are fetched, and those whose record may have changed: running ones, and those that
are not known to be delivered. What else a change may be (a notice, a reward, a verdict) is read each time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from capture import elsewhere
from capture.store.base import Entry, Store
from graph import graph
from graph.forest import Growing
from graph.records import Notice

MOST_ASKED = 8
"""Stretches of calls that are fetched one by one; more are fetched as one, with what lies between."""

MOST_GRAPHS = 64
"""Kept for readers that ask again: a page of rollouts, a trainer that polls."""


class Graphs:
    """Graphs by rollout; the one that was asked for the longest time ago goes first."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._grown: OrderedDict[str, _Grown] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Graphs of {len(self._grown)} rollouts>"

    async def of(self, entry: Entry, *, lost: Sequence[int] = ()) -> graph.Graph:
        """Return a rollout's graph as of `entry`, or later; `lost` are calls that the store doesn't know were lost."""
        name = entry.rollout.id
        grown = self._grown.get(name)
        if grown is None or grown.created_at != entry.rollout.created_at or entry.version < grown.version:
            # Deleted, and registered again under the same id; or asked for by one who read the entry before another.
            grown = self._grown[name] = _Grown(entry.rollout.created_at)
        self._grown.move_to_end(name)
        grown.used_at = asyncio.get_running_loop().time()
        while len(self._grown) > MOST_GRAPHS:
            self._grown.popitem(last=False)
        async with grown.lock:
            if grown.graph is None or grown.version != entry.version or lost:
                await self._grow(grown, entry, lost)
            assert grown.graph is not None
            return grown.graph

    def rest(self, after_s: float) -> bool:
        """Forget graphs that nobody asked for in so many seconds; say whether there were any."""
        before = asyncio.get_running_loop().time() - after_s
        unused = [name for name, grown in self._grown.items() if grown.used_at < before and not grown.lock.locked()]
        for name in unused:
            del self._grown[name]
        return bool(unused)

    def forget(self, name: str) -> None:
        """Forget a rollout's graph."""
        self._grown.pop(name, None)

    async def _grow(self, grown: _Grown, entry: Entry, lost: Sequence[int]) -> None:
        """Fetch what came or changed since the graph was made, and make it anew."""
        name = entry.rollout.id
        growing = grown.growing
        calls = await self._store.calls(name, after=growing.last)
        now = asyncio.get_running_loop().time()
        # A number that was skipped belongs to a call that is recorded later: it has not begun yet, or is a choice of
        # one that runs.
        for n in range(growing.last):
            if n not in growing:
                grown.skipped.setdefault(n, now)
        skipped = [n for n, since in grown.skipped.items() if n not in growing and since > now - elsewhere.FORGET_S]
        asked = elsewhere.stretches({*growing.unsettled, *skipped})
        if len(asked) > MOST_ASKED:
            asked = [(asked[0][0], asked[-1][1])]
        for first, last in asked:
            again = await self._store.calls(name, after=first - 1, limit=last - first + 1)
            calls += [call for call in again if call.n <= last]
        notices = await self._store.notices(name)
        if lost:
            notices.append(Notice(code="capture_incomplete", calls=tuple(lost), data={}))

        def make() -> graph.Graph:
            for call in calls:
                growing.put(call)
            starts = [call.started_at for call in growing.calls if call.started_at]
            rollout = msgspec.structs.replace(
                entry.rollout, first_call_at=min(starts, default=None), last_call_at=max(starts, default=None)
            )
            return graph.of_forest(growing.forest(rollout, notices))

        # Who asked may hang up; the next must not put calls in while this thread still does.
        making = asyncio.get_running_loop().run_in_executor(None, make)
        try:
            grown.graph = await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait([making])
            raise
        # Calls may have come since the entry was read: then its version is another the next time.
        grown.version = entry.version


class _Grown:
    """A rollout's graph as far as it was made, and what it is made on from."""

    def __init__(self, created_at: str) -> None:
        self.created_at = created_at
        self.growing = Growing()
        self.graph: graph.Graph | None = None
        # Numbers below the last of which no call is known, and since when that is so.
        self.skipped: dict[int, float] = {}
        # Of the entry that the graph was made for.
        self.version = -1
        # By the loop's clock.
        self.used_at = 0.0
        # A graph is made in another thread, and one at a time.
        self.lock = asyncio.Lock()
