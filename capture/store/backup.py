"""A copy of a store that is whole, taken while Treering writes on.

Rules.
1. The copy is one snapshot: all that was committed when it began, and nothing of what came after. SQLite's backup runs
   here in one step under one read transaction, which in a write-ahead log holds up no writer; in several steps, as it
   is often used, any commit between two of them makes it start again, and under load it never ends.
2. A file under the copy's name is a whole copy: it is written under another name beside, looked at by SQLite, synced,
   and then renamed. An existing file is not overwritten.
3. It has mode 0600, like the store.

What it costs the running Treering: the log can't be copied back into the file while the snapshot is held, so it grows
by what is written meanwhile.

Calls that run at that moment are in the copy as running; whoever opens it ends them as aborted with what was spooled,
as after a crash. `VACUUM INTO` was rejected: its copy is smaller, at several times the time under the snapshot.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from capture.errors import StoreError
from capture.store import migrations, query

BUSY_MS = 5_000
"""How long a lock of SQLite's is waited for."""

PART = ".part"
"""At the end of the name under which a copy is written."""


def backup(store: Path, out: Path) -> int:
    """Copy the store's file, which may be in use, to `out`; return the copy's bytes.

    Raises `StoreError`: `store_failed` where there is no such file, it is no store, can't be read, or is damaged, or
    `out` exists or can't be written; `store_full`; `store_newer`.
    """
    if not store.is_file():
        raise StoreError("store_failed", f"there is no store at {store}", hint="name another with --store")
    if out.exists():
        raise StoreError("store_failed", f"{out} is there already", hint="name a file that isn't there yet")
    part = out.with_name(out.name + PART)
    try:
        # Made here for its mode; what an earlier try has left goes.
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        try:
            _copy(store, part)
            with part.open("rb") as file:
                os.fsync(file.fileno())
            # A link, unlike a renaming, doesn't overwrite what has come there meanwhile.
            os.link(part, out)
            _sync_folder(out.parent)
        finally:
            part.unlink(missing_ok=True)
    except apsw.FullError as error:
        raise StoreError("store_full", f"{out} can't be written: the disk is full", hint="make room there") from error
    except (apsw.Error, OSError) as error:
        hint = f"is {out.parent} there, and writable? is {store} a store?"
        raise StoreError("store_failed", f"{store} can't be copied to {out}: {error}", hint=hint) from error
    return out.stat().st_size


def _copy(store: Path, part: Path) -> None:
    source = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        source.set_busy_timeout(BUSY_MS)
        migrations.version(source)
        target = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            with target.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(-1)
            # The copy alone, in one file: no log beside it that would have to be moved with it.
            query.value(target, "PRAGMA journal_mode = DELETE")
            found = query.value(target, "PRAGMA quick_check(1)")
        finally:
            target.close()
    finally:
        source.close()
    if found != "ok":
        raise StoreError(
            "store_failed",
            f"{store} is damaged, and so is a copy of it: {found}",
            hint="treering doctor --store says what is hit",
        )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
