"""The supervisor: the control plane, the engines' probes, the one writer of a SQLite store, and N workers.

Rules
1. The listening sockets are made here and inherited: agents that connect while a worker is being replaced wait in the
   kernel's queue instead of being refused. (`SO_REUSEPORT` was rejected: it gives each worker a queue of its own, and
   what stands in a dying worker's is reset. It spreads more evenly, which matters to servers of short connections;
   agents keep theirs.)
2. Workers are started by executing the same program anew, never by forking this one: a running loop, its threads and
   its connections to a database don't survive a fork.
3. A worker that dies is started again, sooner the longer it lived; the calls that it ran are aborted. What an agent saw
   end is committed before it sees it, so nothing of that is lost.
4. No worker outlives this process (`parent`, and the end of its channel).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from capture.app import BACKLOG, Appliance, shown_url
from capture.errors import CaptureError, StoreError, UsageError
from capture.metrics import Numbers
from capture.processes.channel import Channel, unpack
from capture.processes.desk import Desk
from capture.processes.hello import Hello, Told, pack_settings, told
from capture.settings import Settings, parse_address
from capture.store import open_store
from capture.store.canonical import Canonical
from capture.tasks import spawn

START_LIMIT_S = 60.0
"""For a worker to be ready: a second alone, and as much as a busy machine takes."""

FIRST_PAUSE_S, MOST_PAUSE_S = 0.1, 30.0
"""Before a worker that died is started again: doubled each time, until one has lived for `LIVED_S`."""

LIVED_S = 60.0

STOP_GRACE_S = 12.0
"""Beyond `shutdown_timeout`, before a worker that was told to stop is killed."""

HANG_S = 30.0
"""Without a word from a worker, after which it is killed: it says how it is every second, and nothing in it may hold
its loop up for long."""

TELL_EVERY_S = 0.5
"""Between two looks at whether the store can be written, of which workers are told."""

_log = logging.getLogger("treering")


class Supervisor(Appliance):
    """An appliance whose data plane is served by other processes."""

    def __init__(self, settings: Settings) -> None:
        sqlite = settings.store.startswith("sqlite:")
        options = {"shared": True} if sqlite else {}
        super().__init__(settings, store=open_store(settings.store, durability=settings.durability, **options))
        self._writes_for_all = sqlite
        self._canonical = Canonical()
        self._sockets: list[socket.socket] = []
        self._slots: list[_Slot] = []
        # (rollout, n) of calls whose worker died, and that the store has not been told of.
        self.unended: set[tuple[str, int]] = set()

    async def close(self) -> None:
        """Let the workers finish what they serve within `shutdown_timeout`, then close as any appliance."""
        await self._close_tunnels()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        slots, self._slots = self._slots, []
        await asyncio.gather(*(slot.stop() for slot in slots))
        await super().close()

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return whether any worker serves agents."""
        serving = sum(slot.serves for slot in self._slots)
        reason = f"{serving} of {self.settings.workers} serve" if serving < self.settings.workers else None
        return {"workers": {"ok": serving > 0, "reason": reason}}

    @property
    def serving(self) -> int:
        """How many workers serve agents."""
        return sum(slot.serves for slot in self._slots)

    async def _open_planes(self) -> None:
        self._sockets = listening(self.settings.listen)
        self.data_url = shown_url(self.settings.listen, self._sockets[0].getsockname()[1], tls=self.tls is not None)
        self._slots = [_Slot(self, number) for number in range(1, self.settings.workers + 1)]
        # Not a task group: whoever asked for the start wants the one error that ended it.
        for outcome in await asyncio.gather(*(slot.start() for slot in self._slots), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        await self._open_control_plane()
        self._watches.append(spawn(self._look_after(), name="look after the workers"))

    async def leave(self) -> None:
        """Have the workers take no more requests."""
        for slot in self._slots:
            slot.tell("leave")

    async def _served(self) -> None:
        # Not by what the store says: other replicas serve, too.
        for slot in self._slots:
            await slot.served.wait()

    async def end_calls(self) -> None:
        """End the calls of workers that died; while the store is down they wait for it."""
        calls = sorted(self.unended)
        if not calls:
            return
        try:
            await self.store.abort(calls)
        except StoreError:
            # Said elsewhere, and tried again.
            return
        self.unended.difference_update(calls)

    async def _look_after(self) -> None:
        """Tell workers whether the store can be written, and end those that hang, for ever."""
        before: str | None = None
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            await self.end_calls()
            for slot in self._slots:
                slot.check()
            if (failure := self.store.failure) != before:
                before = failure
                for slot in self._slots:
                    slot.tell("failure", failure)

    # What workers ask

    def hello(self) -> Hello:
        """Return what a worker is told at its start."""
        return Hello(
            settings=pack_settings(self.settings),
            nonce=self.nonce,
            data_url=self.data_url,
            engines=tuple(told(engine) for engine in self.fleet.engines),
            store=self.store.where if self._writes_for_all else None,
        )

    async def engine_for(self, body: msgspec.Raw) -> Told:
        """Open a rollout's own engine, or take the one that is open; return what there is to tell of it."""
        return told(await self.fleet.admit(unpack(body, str)))

    def desk(self) -> Desk | None:
        """Return a desk for a new worker; None where each has its own way to the store."""
        return Desk(self.store, self._canonical) if self._writes_for_all else None

    def loads(self) -> None:
        """Add up what all workers have at each engine."""
        for engine in self.fleet.all:
            engine.in_flight = sum(slot.load.get(engine.name, 0) for slot in self._slots)

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return self._sockets


class _Slot:
    """One worker's place: who is in it comes and goes."""

    def __init__(self, head: Supervisor, number: int) -> None:
        self._head = head
        self._number = number
        self._stopping = asyncio.Event()
        self._channel: Channel | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        # Set when the worker has said that it serves nobody any more, or is gone.
        self.served = asyncio.Event()
        # Engine's name → calls there, as told last.
        self.load: Mapping[str, int] = {}
        # When that was, by the monotonic clock; None while none is ready.
        self._heard: float | None = None

    def __repr__(self) -> str:
        return f"<worker {self._number} {'none' if self._process is None else self._process.pid}>"

    async def start(self) -> None:
        """Start the first worker, and keep one from then on. Raises `CaptureError` `worker_failed`."""
        life = await self._begin()
        self._keeping = spawn(self._keep(life), name=f"keep worker {self._number}")

    async def stop(self) -> None:
        """End the worker: it finishes what it serves; past its time it is killed."""
        self._stopping.set()
        self.tell("stop")
        if self._keeping is None:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            return
        try:
            async with asyncio.timeout(self._head.settings.shutdown_timeout + STOP_GRACE_S):
                await asyncio.shield(self._keeping)
        except TimeoutError:
            _log.warning("worker %d did not stop in time and is killed", self._number)
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
            await self._keeping

    def tell(self, word: str, body: object = None) -> None:
        """Tell the worker something, if there is one."""
        if self._channel is not None and self._channel.open:
            self._channel.tell(word, body)

    @property
    def serves(self) -> bool:
        """Whether there is a worker, and it is ready."""
        return self._heard is not None

    def check(self) -> None:
        """Kill the worker if it hangs."""
        if self._heard is None or time.monotonic() - self._heard < HANG_S or self._process is None:
            return
        _log.error("worker %d has not said a word for %.0f s and is killed", self._number, HANG_S)
        self._heard = None
        if self._process.returncode is None:
            self._process.kill()

    async def _keep(self, life: _Life) -> None:
        """Wait for the worker's end and start another, until it is time to stop."""
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            how = _how(await self._end(life))
            if time.monotonic() - began > LIVED_S:
                pause = FIRST_PAUSE_S
            again = None
            while again is None:
                if self._stopping.is_set():
                    return
                _log.warning("worker %d ended (%s); another is started in %.1f s", self._number, how, pause)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stopping.wait()
                pause = min(2 * pause, MOST_PAUSE_S)
                if self._stopping.is_set():
                    return
                try:
                    again = await self._begin()
                except (CaptureError, OSError) as error:
                    how = str(error)
            life = again

    async def _begin(self) -> _Life:
        head = self._head
        mine, its = socket.socketpair()
        desk = head.desk()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def hello(_: msgspec.Raw) -> Hello:
            return head.hello()

        def failed(body: msgspec.Raw) -> None:
            if not ready.done():
                ready.set_exception(_failed(self._number, unpack(body, str)))

        def is_ready(_: msgspec.Raw) -> None:
            self._heard = time.monotonic()
            if not ready.done():
                ready.set_result(None)

        def served(_: msgspec.Raw) -> None:
            self.served.set()

        def load(body: msgspec.Raw) -> None:
            self._heard = time.monotonic()
            self.load = unpack(body, dict[str, int])
            head.loads()

        def numbers(body: msgspec.Raw) -> None:
            head.metrics.take(self._number, unpack(body, Numbers))

        channel = Channel(
            mine,
            name=f"worker {self._number}",
            answers={"hello": hello, "engine": head.engine_for, **(desk.answers if desk else {})},
            hears={
                "failed": failed,
                "ready": is_ready,
                "load": load,
                "served": served,
                "numbers": numbers,
                **(desk.hears if desk else {}),
            },
        )
        await channel.start()
        files = [its.fileno(), *(sock.fileno() for sock in head.sockets)]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "capture.processes.worker", str(its.fileno()), str(os.getpid()),
                *map(str, files[1:]),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=files,
                env=_environment(),
            )  # fmt: skip
        except BaseException:  # a worker that was begun and can't be reached must not stay, cancelled or not
            channel.close()
            raise
        finally:
            its.close()
        self._channel, self._process = channel, process
        self.served.clear()
        serving = spawn(channel.run(), name=f"serve worker {self._number}")
        ended = spawn(process.wait(), name=f"wait for worker {self._number}")
        life = _Life(process, channel, desk, serving, ended)
        both: list[asyncio.Future[Any]] = [ready, ended]
        try:
            async with asyncio.timeout(START_LIMIT_S):
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    raise _failed(self._number, _how(process.returncode))
                ready.result()
        except BaseException as error:  # none that isn't ready outlives its start, cancelled or not
            if process.returncode is None:
                process.kill()
            await self._end(life)
            if isinstance(error, TimeoutError):
                raise _failed(self._number, f"it was not ready in {START_LIMIT_S:.0f} s") from None
            raise
        return life

    async def _end(self, life: _Life) -> int | None:
        """Wait until a worker has ended and all that it handed over is done; abort what it ran."""
        await life.ended
        # What it wrote before it died is in the socket still, and counts.
        await life.serving
        await life.channel.settled()
        self.load, self._heard = {}, None
        self._head.metrics.gone(self._number)
        self.served.set()
        self._head.loads()
        if life.desk is not None and life.desk.running:
            _log.warning("worker %d ran %d calls, which are aborted", self._number, len(life.desk.running))
            self._head.unended.update(life.desk.running)
            await self._head.end_calls()
        return life.process.returncode


class _Life:
    """One worker from its start to its end."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        channel: Channel,
        desk: Desk | None,
        serving: asyncio.Task[None],
        ended: asyncio.Task[int],
    ) -> None:
        self.process = process
        self.channel = channel
        self.desk = desk
        self.serving = serving
        self.ended = ended


def listening(address: str) -> list[socket.socket]:
    """Open listening sockets on every address that `HOST:PORT` means, all on one port. Raises `UsageError`."""
    host, port = parse_address(address)
    opened: list[socket.socket] = []
    try:
        for family, kind, proto, _, where in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            sock = socket.socket(family, kind, proto)
            opened.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Port 0: whichever the first address gets, the others take too.
            sock.bind((where[0], port or (opened[0].getsockname()[1] if len(opened) > 1 else 0), *where[2:]))
            sock.listen(BACKLOG)
            sock.setblocking(False)  # noqa: FBT003  the standard library's own
    except OSError as error:
        for sock in opened:
            sock.close()
        raise UsageError(
            f"Can't listen on {address}: {error.strerror or error}.", hint="Choose another port; 0 takes a free one."
        ) from error
    return opened


def _environment() -> dict[str, str]:
    """Return a worker's variables: none of ours, for it is told the settings; and the way to this very program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


def _failed(number: int, why: str) -> CaptureError:
    return CaptureError("worker_failed", f"Worker {number} did not start: {why}.", hint="The log says more.")


def _how(code: int | None) -> str:
    assert code is not None, "it has ended"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
