"""Holds and weights: what the operator says of engines, and how calls obey it.

The safe order of a trainer is pause, update, weights, resume. A hold lets no new call in; `pause` answers when none
runs any more. A call is stamped with the version of the weights that its engine has when it begins, and when it has
ended: where the two differ, it straddles a change, and a finding says so. Where an engine says by itself what drew each
token, that is what counts.

Rule 1: what is said is in the store before it is answered, so that a restart, and every other process, obeys.
Rule 2: a hold outlives a `pause` that ran out of time: what runs is named, nothing new begins, and the caller decides.
Rule 3: nothing here speaks to an engine. Treering never calls an engine's own pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from capture.queue import LONGEST, PLACES, Call, Queue
from capture.store.base import EngineState, Store

LOOK_EVERY_S = 0.1
"""Between two looks at what other processes run."""


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

    def __repr__(self) -> str:
        return f"<Holds {list(self._queues.values())} {self._versions}>"

    async def load(self) -> None:
        """Read what was said before this process began."""
        self.obey(await self._store.engines())

    def obey(self, states: Mapping[str, EngineState]) -> None:
        """Take over what the store says; an engine of which nobody said anything is missing there."""
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
            await self._store.set_engine(name, held=True)
        end = asyncio.get_running_loop().time() + wait_s
        left: list[Call] = []
        for name in names:
            await self.queue(name).empty(max(0.0, end - asyncio.get_running_loop().time()))
            left += self.queue(name).inside
        if not self._store.shared:
            return left
        return await self._drained(names, end)

    async def resume(self, names: Iterable[str]) -> None:
        """Let calls in again."""
        for name in names:
            await self._store.set_engine(name, held=False)
            self._set(name, held=False)

    async def set_version(self, names: Iterable[str], version: str) -> None:
        """Note the version of engines' weights: calls that run straddle it."""
        for name in names:
            await self._store.set_engine(name, version=version)
            self._versions[name] = version

    def _set(self, name: str, *, held: bool) -> None:
        (self._held.add if held else self._held.discard)(name)
        if (queue := self._queues.get(name)) is not None and queue.held != held:
            queue.hold() if held else queue.release()

    async def _drained(self, names: list[str], end: float) -> list[Call]:
        """Wait until no process runs a call there."""
        while True:
            left = [Call(*each) for name in names for each in await self._store.running(engine=name)]
            if not left or asyncio.get_running_loop().time() >= end:
                return left
            await asyncio.sleep(LOOK_EVERY_S)
