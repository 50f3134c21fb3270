"""Run a program as a stranger does: with another appliance's settings, and a proxy, in its environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LIMIT_S = 100


class Done(NamedTuple):
    """How it ended, and what it printed."""

    code: int
    out: str
    err: str


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return a stranger's environment, whose home is `folder`."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    return env | {"TREERING_STORE": "sqlite:///other.db", "HTTP_PROXY": "http://127.0.0.1:9"} | more


async def run(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, *, limit_s: float = LIMIT_S
) -> Done:
    """Run it to its end in a folder."""
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=env or environment(folder), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())
