"""What a process sees by itself and tells for all: engines and tunnels that come and go, and what closed rollouts show.

Rules
1. Nothing here is on an agent's path. A closed rollout is examined behind its close, one at a time; where too many
   wait, the oldest go unexamined, and the log counts them. Their findings are read with the rollout all the same.
2. What capture itself noticed was told when it happened (`finding` events that the store writes); what is told at the
   close is the rest, once.
3. What a closed rollout shows is kept as its summary, and made anew when a reward or a role came, so that a list of
   many reads no graph. One that is late or lost costs whoever lists it a graph (`capture.summaries`).
4. Each process tells what it sees of engines and tunnels. Two replicas may disagree, and that is worth knowing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from capture import clock, summaries
from capture.errors import StoreError, TreeringError
from capture.events import KEPT_S
from capture.store.base import Telling
from capture.store.summary import Look
from graph import view
from graph.graph import Graph

if TYPE_CHECKING:
    from capture.app import Appliance

_log = logging.getLogger("treering")

LOOK_S = 1.0
"""Between two looks at engines and tunnels, which are themselves looked at every few seconds."""

DROP_EVERY_S = 300.0
"""Between two looks at whether events are too old."""

MOST_WAITING = 10_000
"""Closed rollouts that wait to be examined; as many may wait for their summary."""

PAUSE_S = 0.05
"""Between two rollouts that were closed before this process began: agents' calls come first."""


class Lookout:
    """Tells the store of what no write of a record implies."""

    def __init__(self, appliance: Appliance, *, closed: Callable[[Graph], None]) -> None:
        """`closed` is handed the graph of each rollout that this process has closed."""
        self._appliance = appliance
        self._closed = closed
        self._waiting: deque[str] = deque()
        # Whose summaries are behind, in order; the values say nothing.
        self._behind: dict[str, None] = {}
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._seen: dict[tuple[str, str], bool] = {}
        # Closed rollouts that were never examined.
        self.skipped = 0

    def __repr__(self) -> str:
        return f"<Lookout {len(self._waiting)} rollouts to examine>"

    def examine(self, rollout: str) -> None:
        """Have a rollout examined that has just closed."""
        self._waiting.append(rollout)
        if len(self._waiting) > MOST_WAITING:
            self._waiting.popleft()
            if self.skipped == 0:
                _log.warning("rollouts close faster than they can be examined: the findings of some are not counted")
            self.skipped += 1
        self._came.set()
        self._idle.clear()

    def refresh(self, names: Iterable[str]) -> None:
        """Have summaries made anew, behind what has closed."""
        for name in names:
            if len(self._behind) < MOST_WAITING:
                self._behind[name] = None
                self._came.set()
                self._idle.clear()

    async def examined(self) -> None:
        """Return when nothing waits to be examined."""
        await self._idle.wait()

    async def watch(self) -> NoReturn:
        """Tell of engines and tunnels that change, for ever."""
        self._look()
        while True:
            await asyncio.sleep(LOOK_S)
            if told := self._look():
                await self._tell(told)

    async def read(self) -> NoReturn:
        """Examine what closes, for ever."""
        while True:
            await self._came.wait()
            self._came.clear()
            while self._waiting or self._behind:
                try:
                    if self._waiting:
                        await self._examine(self._waiting.popleft())
                    else:
                        await self._refresh(next(iter(self._behind)))
                except TreeringError:
                    # Deleted meanwhile; or the store is down, which is said elsewhere.
                    continue
            self._idle.set()

    async def catch_up(self) -> None:
        """Make the summaries of rollouts that were closed without one: by an older version, or by one that died."""
        look = Look(state="closed", behind=True)
        while True:
            try:
                sheet = await self._appliance.store.sheet(look)
            except StoreError:
                # Said elsewhere. Who lists them reads their graphs.
                return
            for line in sheet.lines:
                await asyncio.sleep(PAUSE_S)
                with contextlib.suppress(TreeringError):
                    await self._refresh(line.id)
            if sheet.next is None:
                return
            look = msgspec.structs.replace(look, after=sheet.next)

    async def drop(self) -> NoReturn:
        """Drop events that are too old, for ever."""
        while True:
            before = clock.text(clock.parse(clock.now()) - timedelta(seconds=KEPT_S))
            try:
                while await self._appliance.store.drop_events(before):
                    pass
            except StoreError:
                # Said elsewhere; it is tried again at the next look.
                pass
            await asyncio.sleep(DROP_EVERY_S)

    def _look(self) -> list[Telling]:
        """Return what has changed since the last look; the first time nothing."""
        now = clock.now()
        found: dict[tuple[str, str], tuple[bool, dict[str, Any]]] = {}
        for engine in self._appliance.fleet.all:
            healthy, reason = engine.healthy and engine.changed is None, engine.changed or engine.reason or None
            found["engine", engine.name] = healthy, {"engine": engine.name, "healthy": healthy, "reason": reason}
        for one in self._appliance.reach.health:
            if one.opened:
                said = {"tunnel": one.name, "url": one.url, "healthy": one.healthy, "reason": one.reason or None}
                found["tunnel", one.name] = one.healthy, said
        # An engine is there from the start; a tunnel is news when it is opened.
        told = [
            Telling(at=now, name=kind, data=data)
            for (kind, name), (healthy, data) in found.items()
            if self._seen.get((kind, name), healthy if kind == "engine" else None) != healthy
        ]
        self._seen = {at: healthy for at, (healthy, _) in found.items()}
        return told

    async def _examine(self, name: str) -> None:
        rollouts, store = self._appliance.rollouts, self._appliance.store
        # What is read now holds all that was said of it until now.
        self._behind.pop(name, None)
        entry, graph = await rollouts.seen(name)
        self._closed(graph)
        if not rollouts.owes(name):
            with contextlib.suppress(StoreError):
                # Said elsewhere; it is made when it is asked for.
                await summaries.keep(store, entry, graph)
        noticed = {notice.code for notice in await store.notices(name)}
        now = clock.now()
        await self._tell(
            [
                Telling(at=now, name="finding", rollout=name, data=finding)
                for finding in view.findings_json(graph)
                if finding["code"] not in noticed
            ]
        )

    async def _refresh(self, name: str) -> None:
        self._behind.pop(name, None)
        await summaries.refresh(self._appliance.rollouts, self._appliance.store, name)

    async def _tell(self, told: list[Telling]) -> None:
        if told:
            try:
                await self._appliance.store.tell(told)
            except StoreError:
                # Said elsewhere; what is told is for whoever looks on, and the record has it all.
                return
