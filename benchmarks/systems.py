"""The systems measured: each a process of its own in front of the same upstream, and what it costs, read from /proc.

`direct` is no proxy at all: its process is the benchmark's own, which is load and upstream in one. What these two take
is in every figure, and its row tells how much.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.load import CHAT

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 60.0
KEPT_S = 2.0
"""For which a connection to the control plane is used again."""

STOP_LIMIT_S = 20.0

UNRECORDED = "/v1/unrecorded"
"""No route of anyone's; the upstream answers by what the request names, wherever it is asked."""

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


_cores: set[int] | None = None
"""On which each system runs; None: on any."""


@contextlib.contextmanager
def one_core() -> Iterator[bool]:
    """Give the systems started within one core, the same for all, and this process the others.

    Yields False, and does nothing, where there is but one.
    """
    global _cores
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        yield False
        return
    _cores = {max(mine)}
    os.sched_setaffinity(0, mine - _cores)
    try:
        yield True
    finally:
        os.sched_setaffinity(0, mine)
        _cores = None


class System:
    """One process that answers agents' calls at `url`."""

    target = "/v1/chat/completions"
    """The path that agents call."""

    marks = CHAT
    """By which a stream's progress is seen."""

    streams = True
    """Whether a reply that the agent wants streamed is worth measuring."""

    def __init__(self, name: str, process: subprocess.Popen[bytes] | int, url: str, *, ids: bool = True) -> None:
        """`process` may be an id, of a process that is not to be stopped.

        With `ids` false its upstream answers without ids and logprobs.
        """
        self.name = name
        self.url = url
        self.ids = ids
        self._process = process

    def told(self, body: bytes, bench: str) -> bytes:
        """Return the body of a call whose reply `bench` names, for a system that passes no header of that kind on."""
        del bench
        return body

    def __repr__(self) -> str:
        return f"<System {self.name} {self.url}>"

    def without_ids(self) -> System:
        """Return the same process, asked for replies without ids and logprobs."""
        other = copy.copy(self)
        other.name, other.ids = f"{self.name}, no ids", False
        return other

    def open(self, conversations: int) -> list[str]:
        """Return an API key for each conversation of a round."""
        return ["none"] * conversations

    def close_round(self, calls: dict[int, int]) -> None:
        """End a round of so many calls in each conversation."""

    def stop(self) -> None:
        """Stop the process."""
        if not isinstance(self._process, int):
            stop(self._process)

    def cpu_ms(self) -> float:
        """Return the CPU time used so far by the process and its children, in milliseconds."""
        return sum(map(_cpu_ms, self._pids()))

    def reset_peak(self) -> None:
        """Begin anew to note the most memory."""
        for pid in self._pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """Return the most memory held since `reset_peak`, summed over the processes, in MiB."""
        return sum(_memory_mib(pid, "VmHWM:") for pid in self._pids())

    def rss_mib(self) -> float:
        """Return the memory held now, summed over the processes, in MiB; what they share is counted once each."""
        return sum(_memory_mib(pid, "VmRSS:") for pid in self._pids())

    def _pids(self) -> list[int]:
        if isinstance(self._process, int):
            return [self._process]
        return _family(self._process.pid)


class Treering(System):
    """The appliance, with its store in a folder of the run."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, control_url: str, key: str) -> None:
        super().__init__("treering", process, url)
        self._control = control_url.removeprefix("http://")
        self._key = key
        self._rollouts: list[str] = []
        # Of all rollouts that were ever registered here.
        self.ids_by_secret: dict[str, str] = {}
        self._connection = http.client.HTTPConnection(self._control, timeout=60)
        self._asked = 0.0

    def unrecorded(self) -> System:
        """Return the same process, asked at a path that it relays without recording (`--allow-path`)."""
        return _Unrecorded(self)

    def open(self, conversations: int) -> list[str]:
        """Register a rollout for each conversation; return their secrets."""
        return [each["secret"] for each in self.register({"n": conversations})]

    def register(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Register rollouts, those of the round; return what their owner is told."""
        made = self.ask("POST", "/rollouts", body)
        listed: list[dict[str, Any]] = made.get("rollouts", [made])
        self._rollouts = [each["id"] for each in listed]
        self.ids_by_secret |= {each["secret"]: each["id"] for each in listed}
        return listed

    def stop(self) -> None:
        """Stop the process."""
        self._connection.close()
        super().stop()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._pids()[0]

    def close_round(self, calls: dict[int, int]) -> None:
        """Wait until all is recorded, and drop it. Raises RuntimeError if a call is missing."""
        for conversation, rollout in enumerate(self._rollouts):
            sound = sum(each["status"] == "complete" and bool(each["n_sampled"]) for each in self.recorded(rollout))
            if sound != calls[conversation]:
                raise RuntimeError(f"{calls[conversation]} calls were made and {sound} recorded")
            self.ask("DELETE", f"/rollouts/{rollout}")

    def recorded(self, rollout: str) -> Iterator[dict[str, Any]]:
        """Yield the calls of a rollout, without their ids."""
        after: Any = ""
        while after is not None:
            page = self.ask("GET", f"/rollouts/{rollout}/calls?limit=1000" + (f"&after={after}" if after != "" else ""))
            yield from page["calls"]
            after = page["next"]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the control plane. Raises RuntimeError unless it does as it is asked."""
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        # One connection for all that is asked in a moment: a round of 512 rollouts asks twice for each.
        if time.monotonic() - self._asked > KEPT_S:
            self._connection.close()
        payload = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, payload, headers)
            answer = self._connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            # It was closed before a byte of the answer: once more, on another.
            self._connection.close()
            self._connection.request(method, path, payload, headers)
            answer = self._connection.getresponse()
        text = answer.read()
        self._asked = time.monotonic()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {text[:300]!r}")
        return json.loads(text) if text else None


class _Unrecorded(System):
    """A Treering with its capture off: the listener, the secret, the engine's choice and the relay, and no record.

    Nothing is asked of the engine and nothing taken out of the reply, which is relayed whole: of a stream it says
    nothing.
    """

    target = UNRECORDED
    streams = False

    def __init__(self, treering: Treering) -> None:
        super().__init__("treering, unrecorded", treering.pid, treering.url)
        self._treering = treering

    def open(self, conversations: int) -> list[str]:
        """Register a rollout for each conversation; return their secrets."""
        return self._treering.open(conversations)

    def close_round(self, calls: dict[int, int]) -> None:
        """Drop the rollouts. Raises RuntimeError if anything was recorded."""
        self._treering.close_round(dict.fromkeys(calls, 0))

    def _pids(self) -> list[int]:
        return _family(self._treering.pid)


def direct(upstream_url: str) -> System:
    """Return the upstream without a proxy."""
    return System("direct", os.getpid(), upstream_url)


def start_bare(upstream: str, folder: Path) -> System:
    """Start the bare pass-through."""
    process = start("bare", [sys.executable, "-m", "benchmarks.bare", upstream], folder)
    return System("bare", process, addresses(process, folder / "bare.log", 1)[0])


class Least(System):
    """The least recorder (`least.py`), with its database in a folder of the run."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, path: Path) -> None:
        super().__init__("least", process, url)
        self._path = path
        self._opened = self._calls = 0

    def open(self, conversations: int) -> list[str]:
        """Return a key for each conversation, by which it is known again."""
        first, self._opened = self._opened, self._opened + conversations
        return [f"key-{n}" for n in range(first, self._opened)]

    def close_round(self, calls: dict[int, int]) -> None:
        """Raises RuntimeError if a call was not recorded."""
        self._calls += sum(calls.values())
        with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            (recorded,) = db.execute("SELECT count(*) FROM calls").fetchone()
        if recorded != self._calls:
            raise RuntimeError(f"the least recorder has {recorded} of {self._calls} calls")


def start_least(upstream: str, folder: Path) -> System:
    """Start the least recorder."""
    path = folder / "least.db"
    process = start("least", [sys.executable, "-m", "benchmarks.least", upstream, str(path)], folder)
    return Least(process, addresses(process, folder / "least.log", 1)[0], path)


def start_treering(upstream: str, folder: Path, *words: str, path: str | None = None) -> Treering:
    """Start the appliance, with more words on its command line, and another PATH."""
    command = [
        sys.executable, "-m", "capture.cli", "serve", "--engine", f"vllm={upstream}",
        "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--allow-path", UNRECORDED,
        *(() if "--store" in words else ("--store", f"sqlite:///{folder}/treering.db")),
        "--admin-key-file", str(folder / "key"),
        *words,
    ]  # fmt: skip
    (folder / "key").write_text(secrets.token_urlsafe(24))
    (folder / "key").chmod(0o600)
    process = start("treering", command, folder, path=path)
    log = folder / "treering.log"
    agents, engine, control = addresses(process, log, 3)
    assert engine == upstream
    return Treering(process, agents, control, (folder / "key").read_text())


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and end it if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start(
    name: str, command: list[str], folder: Path, *, path: str | None = None, **more: str
) -> subprocess.Popen[bytes]:
    """Start a program in a folder, with its log there; `more` are variables of its environment."""
    # Settings of the caller's must not reach the appliance, nor a treering.toml in the working folder.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TREERING_")}
    environment |= {"PYTHONPATH": str(ROOT), **more}
    if path is not None:
        environment["PATH"] = path
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    if _cores is not None:
        # Its threads, which it has not begun yet, and its children inherit that.
        os.sched_setaffinity(process.pid, _cores)
    return process


def addresses(process: subprocess.Popen[bytes], log: Path, count: int) -> list[str]:
    """Return the first so many addresses that a process prints. Raises RuntimeError with its words if it ends."""
    end = time.monotonic() + START_LIMIT_S
    while True:
        told = log.read_text(errors="replace")
        # Whole lines alone: the last one may still be on its way.
        found = _ADDRESS.findall(told[: told.rfind("\n") + 1])
        if len(found) >= count:
            return found[:count]
        if process.poll() is not None or time.monotonic() > end:
            stop(process)
            raise RuntimeError(f"{log.stem} did not start: {told[-2000:]}")
        time.sleep(0.05)


def _cpu_ms(pid: int) -> float:
    # Nanoseconds that each thread ran; `stat` counts in ticks of 10 ms, too coarse for a round.
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e6


def tree_cpu_ms(pid: int) -> float:
    """Return the CPU time used so far by a process and its children, in milliseconds."""
    return sum(map(_cpu_ms, _family(pid)))


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _memory_mib(pid: int, field: str) -> float:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return 0.0
