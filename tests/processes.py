"""The processes that this one has started, however deep: to see that none is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable


def descendants(root: int | None = None, word: str = "") -> dict[int, str]:
    """Return the processes below one (this one), the deepest first, whose command line has the word."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True, timeout=20
    )
    below: dict[int, list[int]] = {}
    lines: dict[int, str] = {}
    for line in listed.stdout.splitlines():
        pid, parent, args = line.split(None, 2)
        below.setdefault(int(parent), []).append(int(pid))
        lines[int(pid)] = args
    found: list[int] = []

    def walk(pid: int) -> None:
        for child in below.get(pid, []):
            walk(child)
            found.append(child)

    walk(os.getpid() if root is None else root)
    return {pid: lines[pid] for pid in found if word in lines[pid] and not lines[pid].startswith("ps ")}


def alive(word: str) -> dict[int, str]:
    """Return all processes of this machine whose command line has the word: whoever their parent has become."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True, timeout=20
    )
    found = {}
    for line in listed.stdout.splitlines():
        pid, state, args = line.split(None, 2)
        if word in args and not state.startswith("Z") and not args.startswith("ps "):
            found[int(pid)] = args
    return found


async def until(holds: Callable[[], object], *, limit_s: float = 20.0) -> None:
    """Return when it holds, looked at every 20 ms: what another process does sends no event here."""
    async with asyncio.timeout(limit_s):
        while not holds():  # noqa: ASYNC110 - the other process has no event of ours
            await asyncio.sleep(0.02)
