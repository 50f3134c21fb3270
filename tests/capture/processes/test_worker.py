"""A worker alone, with the supervisor's part played by the test: told to stop, left alone, refused its start.

What workers do together is seen in test_supervisor.
"""

import asyncio
import os
import signal
import socket
import sys

import pytest

from capture.processes.channel import Channel
from capture.processes.hello import Hello, pack_settings
from capture.processes.supervisor import listening
from capture.settings import Settings
from capture.tasks import spawn


class Played:
    """A worker's process, its supervisor's end of the channel, and what it said."""

    def __init__(self, folder) -> None:
        self.hello = Hello(
            settings=pack_settings(Settings(store=f"sqlite:///{folder}/own.db", shutdown_timeout=0.2)),
            nonce="n0", data_url="http://127.0.0.1:1", engines=(), store=None,
        )  # fmt: skip
        self.said: asyncio.Queue[str] = asyncio.Queue()
        self.process: asyncio.subprocess.Process
        self.channel: Channel

    async def start(self, parent: int) -> None:
        mine, its = socket.socketpair()
        (listener,) = listening("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def hello(_) -> Hello:
            return self.hello

        words = ("ready", "failed", "load", "served")
        hears = {word: lambda _, word=word: self.said.put_nowait(word) for word in words}
        self.channel = Channel(mine, name="worker", answers={"hello": hello}, hears=hears)
        await self.channel.start()
        self.running = spawn(self.channel.run(), name="run")
        files = [its.fileno(), listener.fileno()]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "capture.processes.worker", str(files[0]), str(parent), str(files[1]),
            pass_fds=files,
        )  # fmt: skip
        its.close()
        listener.close()

    async def word(self) -> str:
        async with asyncio.timeout(60):
            return await self.said.get()

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            code = await self.process.wait()
            self.channel.close()
            await self.running
        return code


@pytest.fixture
async def played(tmp_path):
    one = Played(tmp_path)
    yield one
    if one.process.returncode is None:
        one.process.kill()
    await one.ended()


async def test_it_serves_until_it_is_told_to_stop(played):
    await played.start(os.getpid())
    assert await played.word() == "ready"
    host, port = played.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await reader.readline()
    played.process.send_signal(signal.SIGINT)
    assert await played.word() == "load", "a terminal's Ctrl-C is the supervisor's business"
    played.channel.tell("stop")
    assert await played.ended() == 0
    writer.close()
    await writer.wait_closed()


async def test_it_says_when_it_serves_nobody_any_more(played):
    await played.start(os.getpid())
    assert await played.word() == "ready"
    played.channel.tell("leave")
    while (word := await played.word()) != "served":
        assert word == "load"
    played.channel.tell("stop")
    assert await played.ended() == 0


async def test_it_ends_at_once_when_its_supervisor_goes(played):
    await played.start(os.getpid())
    assert await played.word() == "ready"
    played.channel.close()
    assert await played.ended() == 1


async def test_it_does_not_begin_for_a_supervisor_that_is_gone(played):
    await played.start(1)
    assert await played.ended() == 1
    assert played.said.empty()


async def test_it_says_why_it_does_not_start(played):
    played.hello = Hello(
        settings=pack_settings(Settings(store="sqlite:////nowhere/at/all.db")), nonce="n0", data_url="http://127.0.0.1:1",
        engines=(), store=None,
    )  # fmt: skip
    await played.start(os.getpid())
    assert await played.word() == "failed"
    assert await played.ended() == 1
