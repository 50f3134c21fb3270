"""A look at a PostgreSQL store without opening it: is it there, of which version, how large, with whose clock?"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from capture.checks import Check, fail, ok, warn
from capture.errors import StoreError, TreeringError

LOOK_S = 10.0
"""For the whole look; a connection alone may take five."""

SKEW_S = 2.0
"""Between two machines' clocks. Order is by counters, and no lease is cut short by it; times that people read are."""

NAME = "store"


async def look(url: str) -> list[Check]:
    """Connect, read, and change nothing."""
    try:
        # Only here: who has SQLite alone needs no asyncpg.
        from capture.store.postgres import link, schema
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        todo = "pip install 'treering[postgres]'"
        return [fail(NAME, "a PostgreSQL store needs asyncpg, which isn't installed", todo)]
    try:
        address = link.Address(url)
    except TreeringError as error:
        return [fail(NAME, error.message, error.hint)]
    db: Any = None
    try:
        async with asyncio.timeout(LOOK_S):
            db = await link.Link(address, "process").connect(climbing=True)
            found = await schema.version(db)
            server, size, now, limit = await db.fetchrow(
                "SELECT current_setting('server_version'), pg_database_size(current_database()), clock_timestamp(),"
                " current_setting('max_connections')"
            )
            skew = abs((datetime.now(UTC) - now).total_seconds())
    except StoreError as error:
        return [fail(NAME, f"{address.shown}: {error.message}", error.hint or "see docs/store.md")]
    except Exception as error:  # noqa: BLE001  the driver's errors have no common parent; each is named without secrets
        todo = "is it running, and does it let this user in from here? psql connects with the same URL"
        return [fail(NAME, f"{address.shown} can't be used: {address.sentence(error)}", todo)]
    finally:
        await link.discard(db)
    older = "made at start" if found == 0 else f"brought to {schema.VERSION} at start" if found < schema.VERSION else ""
    told = f"{address.shown}, PostgreSQL {server}, version {found}{f', {older}' if older else ''}"
    checks = [
        ok(NAME, told),
        ok(
            "space",
            f"the database has {size / 2**20:,.1f} MiB; {limit} connections may be open, some 7 a process",
        ),
    ]
    if skew > SKEW_S:
        checks.append(warn("clock", f"{skew:.1f} s between this machine's and the database's", "run NTP on both"))
    else:
        checks.append(ok("clock", f"within {skew:.1f} s of the database's"))
    return checks
