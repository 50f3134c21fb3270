"""What else is killed under the agents of `tests.kills`: the database under a process, and one of two replicas over it.

While the database is down the appliance lives. With `--on-store-failure refuse` an agent is never given the end of a
call that isn't stored, so here too all that was seen to end must be there. With `relay` it is there, or a finding of
its rollout names it.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp

from tests.postgres import Server
from tests.replicas import Replica

READY_S = 30.0


class Database:
    """One process over PostgreSQL; the database server is the victim."""

    ends_at_once = False

    def __init__(self, server: Server, folder: Path, engine_url: str, url: str, *, refuse: bool = True) -> None:
        words = ("--on-store-failure", "refuse" if refuse else "relay", "--log-level", "error", "--store", url)
        self._server = server
        self._served = Replica(folder, "--engine", f"vllm={engine_url}", *words)
        self.may_name_lost = not refuse
        self.headers = self._served.headers

    def data_url(self, agent: int) -> str:
        return self._served.data_url

    @property
    def control_url(self) -> str:
        return self._served.control_url

    @property
    def said(self) -> str:
        return self._served.said

    async def start(self) -> None:
        await self._served.start()

    async def strike(self) -> None:
        await asyncio.to_thread(self._server.kill)

    async def revive(self) -> None:
        await asyncio.to_thread(self._server.start)
        await ready(self.control_url, self.headers)

    async def strike_while_starting(self, after_s: float) -> None:
        def start_and_kill() -> None:
            self._server.start()
            time.sleep(after_s / 10)
            self._server.kill()

        await asyncio.to_thread(start_and_kill)

    async def faults(self) -> list[str]:
        return []

    async def close(self) -> None:
        await self._served.close()


class Replicas:
    """Two processes over one database, agents by turns at each; the victim is one of the two, by turns."""

    may_name_lost = False
    # What the dead one ran is ended by whoever sees that its lease is over.
    ends_at_once = False

    def __init__(self, folder: Path, engine_url: str, url: str) -> None:
        words = ("--engine", f"vllm={engine_url}", "--log-level", "error", "--store", url)
        self._both = [Replica(folder / name, *words) for name in ("one", "two")]
        self._strikes = 0
        self.headers = self._both[0].headers

    @property
    def _victim(self) -> Replica:
        return self._both[self._strikes % 2]

    def data_url(self, agent: int) -> str:
        return self._both[agent % 2].data_url

    @property
    def said(self) -> str:
        return "\n".join(each.said for each in self._both)

    @property
    def control_url(self) -> str:
        return self._both[1 - self._strikes % 2].control_url

    async def start(self) -> None:
        for each in self._both:
            await each.start()

    async def strike(self) -> None:
        await self._victim.kill()

    async def revive(self) -> None:
        await self._victim.start()
        self._strikes += 1

    async def strike_while_starting(self, after_s: float) -> None:
        await self._victim.spawn()
        await asyncio.sleep(after_s)
        await self._victim.kill()

    async def faults(self) -> list[str]:
        return []

    async def close(self) -> None:
        for each in self._both:
            await each.close()


async def ready(control_url: str, headers: dict[str, str]) -> None:
    """Wait until the appliance says that it is ready."""
    async with asyncio.timeout(READY_S), aiohttp.ClientSession(headers=headers) as session:
        while True:
            async with session.get(control_url + "/ready") as answer:
                told = await answer.json()
            if told["ready"]:
                return
            await asyncio.sleep(0.05)
