"""A real PostgreSQL under a test's hand: Debian's 15, on a free port, in a temporary folder, for as long as the test.

    async with Server.running() as server:      one server: killed, started again, stopped
        url = await server.database()           a database of its own, copied from `template`

Where the programs are missing, the test skips with the reason (and fails with TREERING_REQUIRE_REAL=1, see
tests/conftest.py). PostgreSQL refuses to run as root, so root starts it as another user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capture.store.postgres.driver import asyncpg

BINARIES = ("/usr/lib/postgresql/15/bin", "/usr/lib/postgresql/16/bin", "/usr/lib/postgresql/17/bin")
PASSWORD = "p@ss/word-of-postgres"
QUOTED = "p%40ss%2Fword-of-postgres"

START_S = 30.0


def folder_of_programs() -> Path | None:
    """Return where `initdb` and `postgres` are, None if nowhere."""
    for folder in (*BINARIES, *os.environ.get("PATH", "").split(os.pathsep)):
        if folder and (Path(folder) / "initdb").exists() and (Path(folder) / "postgres").exists():
            return Path(folder)
    return None


def missing() -> str | None:
    """Return why no PostgreSQL can be had, None if one can."""
    if folder_of_programs() is None:
        return "PostgreSQL 15 is not installed; apt-get install postgresql"
    if os.geteuid() == 0 and _other_user() is None:
        return "PostgreSQL doesn't run as root, and there is no user postgres or nobody"
    return None


def _other_user() -> pwd.struct_passwd | None:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


class Server:
    """One PostgreSQL server."""

    def __init__(self, *, fsync: bool = False, **settings: str | int) -> None:
        """`settings` go to postgresql.conf."""
        programs = folder_of_programs()
        assert programs is not None, missing()
        self._programs = programs
        # Not in pytest's own folder, which none but its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="treering-pg-"))
        self._user = _other_user() if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(self.folder, self._user.pw_uid, self._user.pw_gid)
        self._data = self.folder / "data"
        self._settings = {
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self.folder}'",
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
            "max_connections": 100,
            "shared_buffers": "'32MB'",
            "log_min_messages": "warning",
            "max_wal_senders": 0,
            "wal_level": "minimal",
            **settings,
        }
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._template: str | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls, *, fsync: bool = False, **settings: str | int) -> Iterator[Server]:
        """Make a server, start it, and in the end stop it and remove all that it wrote."""
        server = cls(fsync=fsync, **settings)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self.folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres") -> str:
        """Return the URL of a database, with the password."""
        return f"postgresql://treering:{QUOTED}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Make its folder."""
        word = self.folder / "password"
        word.write_text(PASSWORD + "\n")
        if self._user is not None:
            os.chown(word, self._user.pw_uid, self._user.pw_gid)
        self.run(
            "initdb", "-D", str(self._data), "-U", "treering", "-A", "scram-sha-256", "--pwfile", str(word),
            "--no-sync", "-E", "UTF8", "--locale", "C.UTF-8",
        )  # fmt: skip
        self.configure()

    def configure(self, **settings: str | int) -> None:
        """Change its settings; they hold from the next start."""
        self._settings |= settings
        lines = [f"{name} = {value}\n" for name, value in self._settings.items()]
        (self._data / "postgresql.auto.conf").write_text("".join(lines))

    def start(self) -> None:
        """Start it, on the port that it had, and wait until it answers."""
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-p", str(self.port)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self._as_user(),
            )
        until = time.monotonic() + START_S
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        ).returncode:
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it and all of its processes at once, as a power cut would but for the disk's cache."""
        assert self._process is not None
        # Its backends are in sessions of their own; the postmaster's death alone would let them finish.
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        self._process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        self._process.wait()
        self._process = None
        for child in children:
            # It may not start again while one of them is there.
            while _lives(child):
                time.sleep(0.01)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop all of its processes where they are: it holds its connections and answers nobody."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop it, whatever is connected."""
        if self._process is None:
            return
        self.resume()
        # "Fast": ends sessions, then writes all out.
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(START_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    async def database(self, *, template: str | None = None) -> str:
        """Make a database, a copy of another if one is named; return its URL."""
        name = f"t{secrets.token_hex(6)}"
        db = await asyncpg.connect(self.url())
        try:
            await db.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        finally:
            await db.close()
        return self.url(name)

    async def drop(self, url: str) -> None:
        """Drop a database, whoever is connected to it."""
        db = await asyncpg.connect(self.url())
        try:
            await db.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")
        finally:
            await db.close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        found = ["ps", "-o", "pid=", "--ppid", str(self._process.pid)]
        children = subprocess.run(found, capture_output=True, text=True, check=False).stdout.split()
        for pid in (self._process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def run(self, program: str, *arguments: str) -> str:
        """Run one of PostgreSQL's programs as the server's user; return what it says."""
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            **self._as_user(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _lives(pid: str) -> bool:
    """Whether a process is there and more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
