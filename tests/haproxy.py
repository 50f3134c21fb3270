"""A real HAProxy over a configuration of the docs, with its addresses filled in, for as long as a block."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tests.real.orphans import end_with_parent

ROOT = Path(__file__).resolve().parent.parent
START_S = 20.0


def missing() -> str | None:
    """Return why no HAProxy can be had, None if one can."""
    return None if _program() else "HAProxy is not installed; apt-get install haproxy"


def _program() -> str | None:
    return shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")


def documented(page: str = "docs/scale.md") -> str:
    """Return the configuration that a page shows."""
    (found,) = re.findall(r"^```haproxy\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return found


def filled(config: str, addresses: Mapping[str, str]) -> str:
    """Return a configuration with addresses replaced; fails where one of them doesn't stand in it."""
    for old, new in addresses.items():
        config, found = re.subn(rf"(?<=\s){re.escape(old)}(?=\s)", new, config)
        assert found, f"{old} is not in the configuration"
    return config


def free_port() -> int:
    """Return a port that was free just now; HAProxy can't say which it got."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def running(folder: Path, config: str, *, ports: tuple[int, ...]) -> AsyncIterator[None]:
    """Run HAProxy over a configuration until the block ends; it listens on `ports` when the block begins."""
    program = _program()
    assert program is not None, missing()
    file, log = _written(folder, config)
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            program, "-db", "-f", str(file), stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        for port in ports:
            async with asyncio.timeout(START_S):
                await _listens(process, port)
        assert process.returncode is None, log.read_text()
        assert "WARNING" not in log.read_text(), log.read_text()
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _written(folder: Path, config: str) -> tuple[Path, Path]:
    """Write a configuration; return its file and that of the log."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "haproxy.cfg"
    file.write_text(config)
    return file, folder / "haproxy.log"


async def _listens(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until someone listens there, or the process has ended."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            await writer.wait_closed()
            return
