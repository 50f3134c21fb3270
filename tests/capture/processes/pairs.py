"""Both ends of a channel in one process: a worker's store, and behind it the supervisor's."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from capture.processes.channel import Channel
from capture.processes.desk import Desk
from capture.processes.remote import RemoteStore
from capture.store.canonical import Canonical
from capture.store.sqlite import SqliteStore
from capture.tasks import spawn
from tests.capture.store.samples import NOW


class PairedStore(RemoteStore):
    """A worker's store that brings the supervisor's along: `behind`, and the desk between them."""

    def __init__(self, path: Path, **options) -> None:
        self.behind = SqliteStore(path, shared=True, now=lambda: NOW, **options)
        self.desk = Desk(self.behind, Canonical())
        mine, its = socket.socketpair()
        self.far = Channel(its, name="worker 1", answers=self.desk.answers, hears=self.desk.hears)
        self.near = Channel(mine, name="the supervisor")
        self._running: list[asyncio.Task[None]] = []
        super().__init__(self.near, where=self.behind.where)

    @property
    def recovered(self) -> tuple[tuple[str, int], ...]:
        return self.behind.recovered

    async def open(self) -> None:
        await self.behind.open()
        for channel in (self.far, self.near):
            await channel.start()
            self._running.append(spawn(channel.run(), name="channel"))

    async def close(self) -> None:
        try:
            if self.near.open:
                await super().close()
        finally:
            self.near.close()
            await asyncio.gather(*self._running)
            await self.far.settled()
            await self.behind.close()
