"""Holds and weights: what the operator says of engines, and how calls obey it.

The safe order of a trainer is pause, update, weights, resume. A hold lets no new call in; `pause` answers when none
runs any more. A call is stamped with the version of the weights that its engine has when it begins, and when it has
ended: where the two differ, it straddles a change, and a finding says so. Where an engine says by itself what drew each
token, that is what counts.

Rule 1: what is said is in the store before it is answered, so that a restart, and every other process, obeys.
Rule 2: a hold outlives a `pause` that ran out of time: what runs is named, nothing new begins, and the caller decides.
Rule 3: nothing here speaks to an engine. Treering never calls an engine's own pause.

Where several processes share the store, every arrival is told what is held at that very moment. So whoever holds waits
for the calls that had arrived by then, wherever they run; these may still begin, and all later ones know and wait. What
is said reaches the lines of other processes with their next arrival, or within LOOK_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NoReturn

from capture.errors import StoreError
from capture.queue import LONGEST, PLACES, Call, Queue
from capture.store.base import EngineState, Store

LOOK_EVERY_S = 0.1
"""Between two looks at what other processes run."""

LOOK_S = 1.0
"""Between two looks at what was said to other processes."""

BEGIN_S = 3.0
"""Within which a call that may go to its engine begins: its body is read by then, and only made ready for sending."""


class Holds:
    """The queue of each engine, and the version of its weights."""

    def __init__(self, store: Store, *, places: int = PLACES, longest: int = LONGEST) -> None:
        """`places`: calls at one engine at once; `longest`: calls that may wait for one."""
        self._store = store
        self._places = places
        self._longest = longest
        self._queues: dict[str, Queue] = {}
        self._versions: dict[str, str | None] = {}
        self._held: set[str] = set()
        # When that was asked which is obeyed, by the loop's clock.
        self._since = float("-inf")

    def __repr__(self) -> str:
        return f"<Holds {list(self._queues.values())} {self._versions}>"

    async def load(self) -> None:
        """Read what was said before this process began."""
        self.obey(await self._store.engines())

    async def look(self) -> None:
        """Read what was said to any process. Raises `StoreError`."""
        since = asyncio.get_running_loop().time()
        self.obey(await self._store.engines(), since=since)

    async def watch(self) -> NoReturn:
        """Look from time to time, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except StoreError:
                # Said elsewhere; what was said last holds on.
                continue

    @property
    def tells(self) -> bool:
        """Whether anybody told a version of any engine's weights."""
        return any(version is not None for version in self._versions.values())

    def obey(self, states: Mapping[str, EngineState], *, since: float | None = None) -> None:
        """Take over what the store says; an engine of which nobody said anything is missing there.

        `since` is when it was asked, by the loop's clock. Of what was asked before that which is obeyed, only holds are
        taken over: an old answer must let nobody in.
        """
        if since is not None and since < self._since:
            for name in [name for name, state in states.items() if state.held]:
                self._set(name, held=True)
            return
        self._since = self._since if since is None else since
        for name in {*states, *self._held}:
            state = states.get(name, EngineState())
            self._versions[name] = state.version
            self._set(name, held=state.held)

    def queue(self, name: str) -> Queue:
        """Return an engine's queue."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Queue(name, places=self._places, longest=self._longest)
            queue.held = name in self._held
        return queue

    def version(self, name: str) -> str | None:
        """Return the version of an engine's weights; None when nobody told."""
        return self._versions.get(name)

    async def pause(self, names: Iterable[str], *, wait_s: float) -> list[Call]:
        """Hold engines, and wait until nothing runs there; return what still does when the time is over."""
        names = list(names)
        for name in names:
            # At once here, so that nothing begins while the store is told.
            self._set(name, held=True)
            await self._say(name, held=True)
        end = asyncio.get_running_loop().time() + wait_s
        if self._store.shared:
            return await self._drained(names, end)
        left: list[Call] = []
        for name in names:
            await self.queue(name).empty(max(0.0, end - asyncio.get_running_loop().time()))
            left += self.queue(name).inside
        return left

    async def resume(self, names: Iterable[str]) -> None:
        """Let calls in again."""
        for name in names:
            await self._say(name, held=False)
            self._set(name, held=False)

    async def set_version(self, names: Iterable[str], version: str) -> None:
        """Note the version of engines' weights: calls that run straddle it."""
        for name in names:
            await self._say(name, version=version)
            self._versions[name] = version

    def _set(self, name: str, *, held: bool) -> None:
        (self._held.add if held else self._held.discard)(name)
        if (queue := self._queues.get(name)) is not None and queue.held != held:
            queue.hold() if held else queue.release()

    async def _say(self, name: str, *, held: bool | None = None, version: str | None = None) -> None:
        await self._store.set_engine(name, held=held, version=version)
        # What was asked before this is out of date.
        self._since = asyncio.get_running_loop().time()

    async def _running(self, names: list[str]) -> dict[Call, None]:
        return {Call(*each): None for name in names for each in await self._store.running(engine=name)}

    async def _drained(self, names: list[str], end: float) -> list[Call]:
        """Wait until no process runs a call there that had arrived before the hold; return those that are left.

        One that arrived between the hold and this look knows of it, and waits. It is told by not having begun: who
        doesn't know begins soon.
        """
        loop = asyncio.get_running_loop()
        left = await self._running(names)
        doubt_until, begun = loop.time() + BEGIN_S, set[Call]()
        while left and loop.time() < end:
            await asyncio.sleep(LOOK_EVERY_S)
            still = await self._running(names)
            left = {call: None for call in left if call in still}
            if loop.time() >= doubt_until:
                left = {call: None for call in left if call in begun or await self._has_begun(call)}
                begun = set(left)
        return list(left)

    async def _has_begun(self, call: Call) -> bool:
        found = await self._store.calls(call.rollout, after=call.n - 1, limit=1)
        return bool(found) and found[0].n == call.n and found[0].status == "running"
