"""A real sshd (Debian's openssh-server) on a free port of loopback, with throw-away keys, for one test or module."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

from tests.netns import Machine
from tests.processes import descendants, until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
MISSING = None if Path(SSHD).exists() and shutil.which("ssh") else "sshd and ssh are needed (openssh-server)"


LOOPBACK = Machine("127.0.0.1", (), "on this machine's loopback")


class Sshd:
    """A running server: `options` are what `tunnel.ssh.Ssh` needs to log in to it."""

    def __init__(self, folder: Path, port: int, machine: Machine) -> None:
        self.folder = folder
        self.port = port
        self.machine = machine
        self.where = f"{getpass.getuser()}@{machine.host}"
        self.process: asyncio.subprocess.Process | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return (
            f"IdentityFile={self.folder}/key",
            "IdentitiesOnly=yes",
            f"UserKnownHostsFile={self.folder}/known_hosts",
            "StrictHostKeyChecking=yes",
        )

    @property
    def spec(self) -> str:
        """How `--tunnel` names it."""
        return f"ssh={self.where}:{self.port}"

    def program(self, **changes: str) -> str:
        """Return a PATH on which `ssh` logs in here, as a user's own configuration would; `changes` are options."""
        options = {option.partition("=")[0]: option.partition("=")[2] for option in self.options} | changes
        config = self.folder / "config"
        config.write_text("Host *\n" + "".join(f"  {name} {value}\n" for name, value in options.items()))
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        real = shutil.which("ssh")
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {config} "$@"\n')
        (folder / "ssh").chmod(0o755)
        return f"{folder}{os.pathsep}{os.environ['PATH']}"

    async def start(self) -> None:
        """Start it, and return when it takes connections."""
        argv = [
            *self.machine.prefix,
            SSHD,
            "-D",
            "-E",
            str(self.folder / "log"),
            "-f",
            str(self.folder / "sshd_config"),
        ]
        self.process = await asyncio.create_subprocess_exec(*argv, start_new_session=True)
        await until(self._listens)

    def _listens(self) -> bool:
        assert self.process is None or self.process.returncode is None, (self.folder / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection((self.machine.host, self.port), timeout=5):
            return True
        return False

    async def stop(self) -> None:
        """End it with every connection that it serves: a session's process is in a session of its own."""
        if self.process is None:
            return
        for child in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, 9)
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self.process = None


@contextlib.asynccontextmanager
async def sshd(folder: Path, *, extra: str = "", machine: Machine = LOOPBACK) -> AsyncIterator[Sshd]:
    """An sshd for a block. `extra` goes into its configuration; `machine` is where it runs."""
    server = Sshd(folder, _prepare(folder, extra, machine.host), machine)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def _prepare(folder: Path, extra: str, host: str) -> int:
    """Make keys and configuration; return the port."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in ("host", "key"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True, timeout=30)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
    (folder / "authorized_keys").chmod(0o600)
    host_key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[{host}]:{port} {host_key}\n")
    if os.geteuid() == 0:
        # Where it drops privileges to; the package's start script makes it.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress {host}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n"
        # Off by default, and a test opens more than ten connections at once.
        f"MaxStartups 100:30:200\nMaxSessions 100\n{extra}\n"
    )
    return port
