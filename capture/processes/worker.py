"""A worker: the data plane of one appliance, in a process of its own.

    python -m capture.processes.worker CHANNEL PARENT SOCKET...

CHANNEL and the SOCKETs are descriptors that the supervisor handed over: its end of the socket pair, and the listening
sockets, which all workers share. PARENT is the supervisor's process id. A worker ends when it is told to, at SIGTERM,
and at once when its supervisor is gone; SIGINT is the supervisor's business, since a terminal sends it to all.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import msgspec
from aiohttp import web

from capture import logs
from capture.app import BACKLOG, Appliance
from capture.errors import StoreError, TreeringError
from capture.fleet import Fleet
from capture.processes.channel import Channel, GoneError, unpack
from capture.processes.hello import Hello, Told, adopt, settings
from capture.processes.lines import stderr
from capture.processes.parent import die_with
from capture.processes.remote import RemoteStore
from capture.store import open_store
from capture.tasks import spawn
from capture.upstream import Engine

LOAD_EVERY_S = 1.0
"""Between two words to the supervisor of how many calls are at each engine."""

ENGINE_LIMIT_S = 120.0
"""For the supervisor to open and probe a rollout's own engine."""

CLOSE_GRACE_S = 10.0
"""Beyond `shutdown_timeout`, for records to be written."""


class Worker(Appliance):
    """The data plane alone, on sockets that are open already."""

    # The supervisor does.
    keeps_house = False

    def __init__(self, channel: Channel, hello: Hello, sockets: list[socket.socket]) -> None:
        mine = settings(hello.settings)
        self.remote = None if hello.store is None else RemoteStore(channel, where=hello.store)
        store = open_store(mine.store, durability=mine.durability) if self.remote is None else self.remote
        super().__init__(mine, store=store)
        self.nonce = hello.nonce
        self._hello = hello
        self._channel = channel
        self._sockets = sockets

    async def _start_fleet(self) -> Fleet:
        engines = [await adopt(self.settings, known) for known in self._hello.engines]
        return Fleet(engines, allowed=self.settings.allow_engine, open_engine=self._open_guest)

    async def _open_guest(self, url: str) -> Engine:
        answer = await self._channel.ask("engine", url, limit_s=ENGINE_LIMIT_S)
        return await adopt(self.settings, unpack(answer, Told))

    def _find_admin_key(self) -> str | None:
        return None

    async def _open_planes(self) -> None:
        self.data_url = self._hello.data_url
        runner = await self._data_runner()
        for sock in self._sockets:
            await web.SockSite(runner, sock, backlog=BACKLOG, ssl_context=self.tls).start()

    async def retire(self) -> None:
        """Take no more requests, and tell the supervisor when none is served any more."""
        await self.leave()
        await self._served()
        self._channel.tell("served")

    async def report(self) -> None:
        """Tell the supervisor how many calls are at each engine, for ever."""
        while True:
            await asyncio.sleep(LOAD_EVERY_S)
            self._channel.tell("load", {engine.name: engine.in_flight for engine in self.fleet.all})
            self.metrics.look(self)
            self._channel.tell("numbers", self.metrics.numbers(), may_drop=True)


async def work(channel_fd: int, socket_fds: list[int]) -> int:
    """Serve until told to stop; return the exit code."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    worker: Worker | None = None

    def failure(body: msgspec.Raw) -> None:
        if worker is not None and worker.remote is not None:
            worker.remote.told = msgspec.msgpack.decode(body, type=str | None)

    def leave(_: msgspec.Raw) -> None:
        if worker is not None:
            spawn(worker.retire(), name="take no more requests")

    channel = Channel(
        socket.socket(fileno=channel_fd), name="the supervisor",
        hears={"stop": lambda _: stop.set(), "failure": failure, "leave": leave},
    )  # fmt: skip
    await channel.start()
    bond = spawn(_bond(channel), name="channel to the supervisor")
    hello = unpack(await channel.ask("hello", os.getpid()), Hello)
    given = settings(hello.settings)
    stop_logs = logs.setup(given.log_format, given.log_level, stream=stderr())
    try:
        try:
            worker = Worker(channel, hello, [socket.socket(fileno=each) for each in socket_fds])
            await worker.start()
        except TreeringError as error:
            channel.tell("failed", error.message)
            return 1
        reports = spawn(worker.report(), name="report the load")
        channel.tell("ready")
        await stop.wait()
        reports.cancel()
        try:
            async with asyncio.timeout(worker.settings.shutdown_timeout + CLOSE_GRACE_S):
                await worker.close()
            channel.tell("numbers", worker.metrics.numbers())
        except (TimeoutError, StoreError):
            return 1
        return 0
    finally:
        bond.cancel()
        stop_logs()


async def _bond(channel: Channel) -> None:
    """End the process when the supervisor is gone: its store is, and an agent is better off with a broken stream."""
    await channel.run()
    os._exit(1)


def main(words: list[str]) -> int:
    """Run a worker."""
    # Here, so that whoever only starts workers imports no command.
    from capture.commands.serve import run

    channel, parent, *sockets = map(int, words)
    if not die_with(parent):
        return 1
    try:
        return run(work(channel, sockets))
    except GoneError:
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
