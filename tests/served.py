"""`treering serve` as a process of its own: started, asked, signalled, killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEY = "the-admin-key-of-this-test"
START_S = 60.0
_FIRST = {"data": re.compile(r"^agents\s+(\S+)/v1$"), "control": re.compile(r"^control\s+(\S+) ")}


class Served:
    """One process; it may be started again after its end, over the same store."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`words` follow `serve`; ports are free ones unless they say otherwise. `before` runs in the child."""
        self._folder = folder
        self._words = words
        self._env = dict(env or {})
        self._before = before
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._up: asyncio.Event = asyncio.Event()
        # What it said on stderr since it was last started, a line each.
        self.lines: list[str] = []
        self.data_url = ""
        self.control_url = ""

    def __repr__(self) -> str:
        return f"<Served {' '.join(self._words)} pid {self.pid}>"

    @property
    def pid(self) -> int | None:
        """The process's number, None when none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def headers(self) -> dict[str, str]:
        """What the control plane asks for."""
        return {"Authorization": f"Bearer {KEY}"}

    async def spawn(self) -> None:
        """Start the process and return at once."""
        self.lines, self._up = [], asyncio.Event()
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TREERING_")}
        environ |= {"PYTHONPATH": str(ROOT), "TREERING_ADMIN_KEY": KEY, **self._env}
        words = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", *self._words]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "capture.cli", "serve", *words, cwd=self._folder, env=environ,
            stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, preexec_fn=self._before,
        )  # fmt: skip
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))

    async def start(self) -> None:
        """Start the process and wait until it serves; fails with what it said if it ends instead."""
        await self.spawn()
        await self.up()

    async def up(self) -> None:
        """Wait until it serves."""
        async with asyncio.timeout(START_S):
            await self._up.wait()
        assert self.control_url, self.said

    @property
    def said(self) -> str:
        return "\n".join(self.lines[-50:])

    def signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def kill(self) -> None:
        """Kill it at once, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def ended(self, within_s: float = 60.0) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        assert self._reading is not None
        async with asyncio.timeout(within_s):
            code = await self._process.wait()
            await self._reading
        return code

    async def close(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            await self.kill()

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        found: dict[str, Any] = {}
        while line := await process.stderr.readline():
            text = line.decode("utf-8", "replace").rstrip("\n")
            self.lines.append(text)
            # A long run says a line a call.
            del self.lines[:-2_000]
            for name, pattern in _FIRST.items():
                if name not in found and (match := pattern.match(text)):
                    found[name] = match[1]
            if len(found) == len(_FIRST) and not self._up.is_set():
                self.data_url, self.control_url = found["data"], found["control"]
                self._up.set()
        if not self._up.is_set():
            self.data_url = self.control_url = ""
            self._up.set()
