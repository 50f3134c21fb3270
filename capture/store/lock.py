"""One writing process a store: an advisory lock on a file beside it.

A lock on the database itself was rejected: SQLite's own are POSIX locks, and closing any descriptor of the file drops
them all. The lock ends with the process, however it dies; the file stays, for removing it would race with the next.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from capture.errors import StoreError


class Lock:
    """An exclusive lock, held from `take` to `free`."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + "-lock")
        self._store = path
        self._file: int | None = None

    def __repr__(self) -> str:
        return f"<Lock {self._path} {'free' if self._file is None else 'held'}>"

    def take(self) -> None:
        """Take the lock. Raises `StoreError` naming the store when another holds it."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreError(
                "store_failed",
                f"{self._store} is in use by {who}",
                hint="stop the other Treering, or give --store another path",
            ) from None
        except BaseException:  # whatever fails, the descriptor goes
            os.close(file)
            raise
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def free(self) -> None:
        """Let go of the lock; nothing happens if it isn't held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
