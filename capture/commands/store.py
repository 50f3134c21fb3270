"""`treering backup` and `treering migrate`: what is done to the store's file itself, without the control plane.

A backup reads the file beside a running Treering. A migration needs it alone, and says so when it isn't.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import apsw
import msgspec

from capture import terminal
from capture.cli import Given
from capture.errors import StoreError, UsageError
from capture.settings import Settings, store_path
from capture.store import migrations
from capture.store.backup import backup as copy_store
from capture.store.base import FORMAT_VERSION
from capture.store.check import check
from capture.store.sqlite import SqliteStore

TRIAL = ".trial"
"""At the end of the copy's name on which a dry run climbs."""


def backup(given: Given) -> int:
    """Copy the store, running or not, to `--out`."""
    path = file_of(given.settings)
    out = given.arguments["out"]
    if not out:
        raise UsageError("backup needs a file to write", hint="treering backup --out FILE")
    size = copy_store(path, Path(out))
    _tell(given, {"store": str(path), "out": str(out), "bytes": size}, f"{path} copied to {out} ({size:,} bytes)")
    return 0


def migrate(given: Given) -> int:
    """Bring the store to this version's format: a backup first; with `--dry-run` on a copy alone, which then goes."""
    path = file_of(given.settings)
    found = _standing(path)
    told: dict[str, Any] = {"store": str(path), "from": found, "to": FORMAT_VERSION, "backup": None}
    if found == FORMAT_VERSION:
        _tell(given, told, f"{path} is of version {found} already; there is nothing to do")
        return 0
    kept = Path(given.arguments["backup"] or f"{path}.v{found}")
    if given.arguments["dry_run"]:
        _try(path)
        _tell(
            given,
            told | {"dry_run": True},
            f"{path} would go from version {found} to {FORMAT_VERSION}: done on a copy, looked at, and found sound.\n"
            f"Without --dry-run a backup is kept first, in {kept}.",
        )
        return 0
    copy_store(path, kept)
    asyncio.run(_climb(path))
    _tell(
        given,
        told | {"backup": str(kept)},
        f"{path} went from version {found} to {FORMAT_VERSION}; as it was it lies in {kept}",
    )
    return 0


def file_of(settings: Settings) -> Path:
    """Return the store's file. Raises `UsageError` for a store that is none."""
    path = store_path(settings.store)
    if path is None:
        raise UsageError(
            "this is done to an SQLite store's file; PostgreSQL has means of its own",
            hint="pg_amcheck looks at it, pg_dump copies it in use, and it climbs by itself when Treering starts",
        )
    return path


def _standing(path: Path) -> int:
    """Return the version of a store's file. Raises `StoreError`."""
    if not path.is_file():
        raise StoreError("store_failed", f"there is no store at {path}", hint="name another with --store")
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return migrations.version(db)
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreError("store_failed", f"{path} can't be read: {error}", hint="is it a store?") from error


def _try(path: Path) -> None:
    """Climb on a copy and look at all of it. Raises `StoreError`."""
    trial = path.with_name(path.name + TRIAL)
    _remove(trial)
    try:
        copy_store(path, trial)
        asyncio.run(_climb(trial))
        if faults := check(trial).faults:
            raise StoreError(
                "store_failed",
                f"the migrated copy has {len(faults)} faults, the first: {faults[0].message}",
                hint="the store itself was not touched; please report it",
            )
    finally:
        _remove(trial)


async def _climb(path: Path) -> None:
    # Opened as by `serve`: the lock, the ladder, and the end of what ran.
    store = SqliteStore(path, durability="power")
    await store.open()
    await store.close()


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _tell(given: Given, told: dict[str, Any], text: str) -> None:
    if given.arguments["json"]:
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        lines = "".join(terminal.clean(line) + "\n" for line in text.splitlines())
        sys.stderr.write(terminal.fit(lines, sys.stderr.encoding))
