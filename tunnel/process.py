"""A tunnel's program: started on a leash, listened to, and ended with all that it started.

Its output is read to its end, line by line, and the last lines are kept: a program whose pipe is full stands still, and
an error without its program's own words says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tunnel.errors import TunnelError

KEPT = 40
"""Lines kept of what a program printed."""

LINE = 500
"""Characters kept of a line."""

GRACE_S = 5.0
"""Between asking a program to end, and ending it."""

FOR_PROGRAMS = ("TREERING_FRPC",)
"""Variables of ours that a tunnel's program reads."""

_SAID = "docs/tunnels.md says what to do about what its program said"
_LEASH = Path(__file__).with_name("leash.py")

T = TypeVar("T")


def _environment() -> dict[str, str]:
    """Return a program's variables: none of our settings, of which one may be the admin key, but what is for it."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("TREERING_") or name in FOR_PROGRAMS
    }


class Program:
    """One program, running or ended."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, hidden: tuple[str, ...]) -> None:
        self._name = name
        self._process = process
        self._hidden = hidden
        self._lines: deque[str] = deque(maxlen=KEPT)
        self._news = asyncio.Event()
        self._readers = [
            asyncio.get_running_loop().create_task(self._read(stream), name=f"read {name}")
            for stream in (process.stdout, process.stderr)
            if stream is not None
        ]

    @classmethod
    async def start(cls, name: str, argv: Iterable[str], *, hidden: Iterable[str] = ()) -> Program:
        """Start a program. `hidden` are texts that no line may show: tokens, passwords."""
        made = asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_LEASH),
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        starting = asyncio.get_running_loop().create_task(made, name=f"start {name}")
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Cancelled itself, asyncio would kill the leash alone, and leave what it has just started.
            await cls(name, await starting, ()).close()
            raise
        return cls(name, process, tuple(hidden))

    def __repr__(self) -> str:
        return f"<Program {self._name} {'running' if self.ended is None else 'ended'}>"

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines that it printed, on either output."""
        return tuple(self._lines)

    @property
    def ended(self) -> str | None:
        """That it has ended, and how, as a sentence; None while it runs."""
        code = self._process.returncode
        if code is None:
            return None
        last = f": {self._lines[-1]}" if self._lines else ""
        return f"{self._name} ended with {code}{last}"

    async def find(self, look: Callable[[str], T | None], *, limit_s: float, what: str) -> T:
        """Return the first thing that `look` finds in a line, as lines come.

        Raises `TunnelError`, with all lines, when the program ends before, or when the time is over.
        """
        seen = 0
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    self._news.clear()
                    lines = self.lines
                    for line in lines[min(seen, len(lines)) :] if len(lines) < KEPT else lines:
                        if (found := look(line)) is not None:
                            return found
                    seen = len(lines)
                    if all(reader.done() for reader in self._readers):
                        await self._process.wait()
                        raise TunnelError(f"{self.ended}", hint=_SAID, lines=self.lines)
                    await self._news.wait()
        except TimeoutError:
            message = f"{self._name} did not {what} within {limit_s:g} s"
            raise TunnelError(message, hint=_SAID, lines=self.lines) from None

    async def close(self) -> None:
        """End it and all that it started; a second time does nothing."""
        if self._process.returncode is None:
            self._kill(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await self._process.wait()
        # The leash's group has the program's children too, and a leash may end before them.
        self._kill(signal.SIGKILL)
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _kill(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        try:
            while True:
                try:
                    text = await stream.readuntil(b"\n")
                except asyncio.IncompleteReadError as rest:
                    text = rest.partial
                except asyncio.LimitOverrunError as error:
                    text = await stream.readexactly(error.consumed)
                if not text:
                    return
                if line := self._clean(text.decode("utf-8", "replace")):
                    self._lines.append(line)
                    self._news.set()
        finally:
            self._news.set()

    def _clean(self, line: str) -> str:
        for text in self._hidden:
            line = line.replace(text, "***")
        return re.sub(r"\x1b\[[0-9;]*m|[\x00-\x08\x0b-\x1f]", "", line).strip()[:LINE]
