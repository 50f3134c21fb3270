"""A small disk that a test fills and frees: a tmpfs where mounting is allowed, else a limit on SQLite's pages."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from capture.store.sqlite import SqliteStore

SIZE_MIB = 8


class Disk:
    """Where a store lies. `real` says which of the two it is."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.folder = folder
        self.real = real

    def __repr__(self) -> str:
        return f"<Disk {self.folder} {'tmpfs' if self.real else 'max_page_count'}>"

    async def fill(self, store: SqliteStore) -> None:
        """Leave not a byte."""
        if not self.real:
            await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1"))
            return
        with (self.folder / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (65_536, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"x" * size):
                        pass

    async def free(self, store: SqliteStore) -> None:
        """Make room again."""
        if self.real:
            (self.folder / "filler").unlink()
        else:
            await store._writer.run(lambda db: db.execute("PRAGMA max_page_count = 1073741823"))


def _run(*words: str | Path) -> bool:
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    """A small disk for a block."""
    where = folder / "disk"
    where.mkdir()
    real = _run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m,mode=700", "tmpfs", where)
    try:
        yield Disk(where, real=real)
    finally:
        if real:
            assert _run("umount", where) or _run("umount", "-l", where)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[bool]:
    """Make a folder's content read-only for a block, even for root; False where that can't be had."""
    mounted = _run("mount", "--bind", folder, folder) and _run("mount", "-o", "remount,ro,bind", folder)
    if not mounted:
        folder.chmod(0o500)
    try:
        yield mounted or not _can_write(folder)
    finally:
        if mounted:
            assert _run("umount", folder)
        else:
            folder.chmod(0o700)


def _can_write(folder: Path) -> bool:
    try:
        (folder / "probe").touch()
        (folder / "probe").unlink()
    except OSError:
        return False
    return True
