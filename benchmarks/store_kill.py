"""Killed 500 times: what agents saw end, and what of it is missing.

The driver is the tests' (`tests.kills`), with other seeds and more of them: 32 streaming agents, SIGKILL at instants
drawn from the seed, and every reply whose finish was seen looked for id by id. Three in five kills hit the appliance
over SQLite, one the PostgreSQL server under it, one a replica of two.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import kills, postgres
from tests.kills_shared import Database, Replicas

KILLS = {"appliance": 300, "database": 100, "replica": 100}
QUICK = {"appliance": 24, "database": 8, "replica": 8}
BATCH = 50
"""Kills over one store; then a new one."""

FIRST_SEED = 1_000

Row = dict[str, Any]


def rows(*, quick: bool) -> list[Row]:
    """Kill, and return a row for each sort of victim; say on stderr how far it is."""
    wanted = dict(QUICK if quick else KILLS)
    if (reason := postgres.missing()) is not None:
        sys.stderr.write(f"no PostgreSQL: {reason}; all kills hit the appliance over SQLite\n")
        wanted = {"appliance": sum(wanted.values())}
    return [_row(victim, count) for victim, count in wanted.items()]


def table(made: Sequence[Row]) -> str:
    """Return rows as a table in Markdown."""
    lines = ["| killed | store | kills | of them while starting | calls seen to end | changes seen | lost | minutes |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {row['killed']} | {row['store']} | {row['kills']} | {row['kills_while_starting']} | "
        f"{row['calls_seen_ended']:,} | {row['changes_seen']:,} | {row['calls_lost']} | {row['minutes']} |"
        for row in made
    ]
    return "\n".join(lines)


def _row(victim: str, wanted: int) -> Row:
    began = time.monotonic()
    outcomes: list[kills.Outcome] = []
    done = 0
    while done < wanted:
        seed = FIRST_SEED + done
        outcome = asyncio.run(_batch(victim, min(BATCH, wanted - done), seed))
        sys.stderr.write(f"{victim}: {outcome}\n")
        outcomes.append(outcome)
        done += outcome.kills
    return {
        "killed": victim,
        "store": "sqlite" if victim == "appliance" else "postgresql",
        "durability": "process",
        "workers": 2 if victim == "replica" else 1,
        "kills": sum(each.kills for each in outcomes),
        "kills_while_starting": sum(each.starting for each in outcomes),
        "calls_seen_ended": sum(each.calls_seen_ended for each in outcomes),
        "changes_seen": sum(each.changes_seen for each in outcomes),
        "calls_lost": sum(len(each.lost) for each in outcomes),
        "seeds": [each.seed for each in outcomes],
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


async def _batch(victim: str, wanted: int, seed: int) -> kills.Outcome:
    engine = kills.engine()
    url = await engine.start()
    try:
        with tempfile.TemporaryDirectory(prefix="treering-kills-") as folder:
            if victim == "appliance":
                return await _run(kills.Appliance(Path(folder), url), wanted, seed)
            with postgres.Server.running() as server:
                database = await server.database()
                site: kills.Site
                if victim == "database":
                    site = Database(server, Path(folder), url, database)
                else:
                    site = Replicas(Path(folder), url, database)
                return await _run(site, wanted, seed)
    finally:
        await engine.close()


async def _run(site: kills.Site, wanted: int, seed: int) -> kills.Outcome:
    try:
        return await kills.run(site, kills=wanted, seed=seed)
    finally:
        await site.close()
