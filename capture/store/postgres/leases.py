"""Who is alive, and the calls of those who aren't.

Each process has a row in `process` and renews it every BEAT_S. A call that runs names its process (`running`); those of
a process that is dead are ended, `aborted` with what was spooled, by whichever process sees it first, and by the next
one that starts.

When a process is dead:
- when it closed and left calls behind: at once;
- on our own machine, when there is no process with its number and its start: at once;
- elsewhere, when its row wasn't renewed for LEASE_S by the database's clock, and we were in touch with the database
  all that time ourselves. (Whoever comes back from an outage of the database would find all others late.)

Being wrong costs little: one that was thought dead is entered again with its next arrival or beat, and a call that
ends after all takes the place of the aborted one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import msgspec

from capture.store.postgres.driver import Connection
from capture.store.postgres.prepared import as_json
from capture.store.writes import CRASHED

BEAT_S = 2.0
LEASE_S = 10.0


class Self(msgspec.Struct, frozen=True, kw_only=True):
    """A process as others may judge it."""

    name: str
    # The machine's boot, and the namespace that process numbers are of; None where there is no telling.
    machine: str | None
    pid: int
    # In clock ticks since the boot: a number may be given again.
    started: str | None


def me() -> Self:
    """Return this process, under a name that it never had before."""
    pid = os.getpid()
    return Self(name=f"{pid}-{secrets.token_hex(8)}", machine=_machine(), pid=pid, started=_started(pid))


def is_gone(other: Self, mine: Self) -> bool:
    """Tell whether a process of our own machine is there no more; False where there is no telling."""
    if mine.machine is None or other.machine != mine.machine or other.started is None:
        return False
    return _started(other.pid) != other.started


def _machine() -> str | None:
    try:
        return (
            Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            + " "
            + str(Path("/proc/self/ns/pid").readlink())
        )
    except OSError:
        return None


def _started(pid: int) -> str | None:
    try:
        # The name, in brackets, may hold blanks; the start is the 22nd field.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # A zombie runs nothing any more.
    return None if fields[0] in ("Z", "X") else fields[19]


class Lease:
    """This process's row, and its eye on the others."""

    def __init__(self, mine: Self, *, lease_s: float = LEASE_S) -> None:
        self.mine = mine
        self._lease_s = lease_s
        # When, by the loop's clock, we came in touch with the database; None while we aren't.
        self._since: float | None = None
        self._last: float | None = None

    def __repr__(self) -> str:
        return f"<Lease {self.mine.name}>"

    async def beat(self, db: Connection) -> None:
        """Renew our row, or enter it."""
        now = asyncio.get_running_loop().time()
        await db.execute(
            "INSERT INTO process (name, machine, pid, started, beat) VALUES ($1, $2, $3, $4, now())"
            " ON CONFLICT (name) DO UPDATE SET machine = excluded.machine, pid = excluded.pid,"
            " started = excluded.started, beat = excluded.beat",
            self.mine.name,
            self.mine.machine,
            self.mine.pid,
            self.mine.started,
        )
        if self._since is None or self._last is None or now - self._last > self._lease_s / 2:
            self._since = now
        self._last = now

    async def dead(self, db: Connection) -> list[str]:
        """Return the names of dead processes, also of those that have no row and calls that run."""
        judging = self._since is not None and asyncio.get_running_loop().time() - self._since >= self._lease_s
        found = await db.fetch(
            "SELECT name, machine, pid, started, beat < now() - make_interval(secs => $1), beat = '-infinity'"
            " FROM process WHERE name <> $2",
            self._lease_s,
            self.mine.name,
        )
        out = []
        for name, machine, pid, started, late, left in found:
            other = Self(name=name, machine=machine, pid=pid or 0, started=started)
            if left or (late and judging) or is_gone(other, self.mine):
                out.append(name)
        if judging:
            orphans = await db.fetch(
                "SELECT DISTINCT process FROM running WHERE NOT EXISTS"
                " (SELECT FROM process WHERE process.name = running.process)"
            )
            out += [name for (name,) in orphans]
        return out

    async def leave(self, db: Connection) -> None:
        """Take our row out, or, with calls that still run, say that nobody will end them."""
        await db.execute(
            "UPDATE process SET beat = '-infinity' WHERE name = $1"
            " AND EXISTS (SELECT FROM running WHERE running.process = process.name)",
            self.mine.name,
        )
        await db.execute("DELETE FROM process WHERE name = $1 AND beat <> '-infinity'", self.mine.name)


async def recover(db: Connection, dead: str) -> list[tuple[str, int]]:
    """End the calls of a dead process, inside a transaction; return (rollout, n) of those that had begun.

    Of several survivors one does it: who comes second finds nothing.
    """
    found = await db.fetch(
        "SELECT id, n FROM running JOIN rollout ON rollout.key = running.rollout WHERE process = $1"
        " ORDER BY rollout.key, n",
        dead,
    )
    ended = await abort(db, [(name, n) for name, n in found], of=dead)
    await db.execute("DELETE FROM process WHERE name = $1", dead)
    return ended


async def abort(db: Connection, calls: list[tuple[str, int]], *, of: str | None = None) -> list[tuple[str, int]]:
    """End calls that run (with `of`, still those of that process), inside a transaction; return those that had begun.

    An arrival that never began leaves nothing.
    """
    locked = await db.fetch(
        "SELECT id, key FROM rollout WHERE id = ANY($1::text[]) ORDER BY key FOR NO KEY UPDATE",
        list({name for name, _ in calls}),
    )
    keys = {row["id"]: row["key"] for row in locked}
    ended = []
    for name, n in calls:
        key = keys.get(name)
        if key is None:
            continue
        left = await db.fetchval(
            "DELETE FROM running WHERE rollout = $1 AND n = $2 AND ($3::text IS NULL OR process = $3) RETURNING true",
            key,
            n,
            of,
        )
        if left is None:
            # Ended meanwhile, or taken over by another survivor.
            continue
        if await _abort(db, key, n):
            ended.append((name, n))
    return ended


async def _abort(db: Connection, key: int, n: int) -> bool:
    spent = await db.fetchval(
        "UPDATE call SET status = 'aborted', delivered = NULL, ended = rollout.tick,"
        " n_sampled = CASE WHEN spool.n IS NULL THEN n_sampled ELSE length(spool.sampled) / 4 END,"
        " logprobs = CASE WHEN spool.n IS NULL THEN call.logprobs ELSE spool.logprobs END,"
        " sampled = CASE WHEN spool.n IS NULL THEN call.sampled ELSE spool.sampled END,"
        " spent = coalesce(length(CASE WHEN spool.n IS NULL THEN call.sampled ELSE spool.sampled END) / 4, 0)"
        "  + coalesce(n_prompt, 0) - coalesce(shared, 0)"
        " FROM rollout LEFT JOIN spool ON spool.rollout = rollout.key AND spool.n = $2"
        " WHERE rollout.key = $1 AND call.rollout = $1 AND call.n = $2 AND status = 'running' RETURNING spent",
        key,
        n,
    )
    if spent is None:
        return False
    await db.execute("DELETE FROM spool WHERE rollout = $1 AND n = $2", key, n)
    await db.execute(
        "UPDATE exchange SET error = coalesce(error, $3) WHERE rollout = $1 AND n = $2", key, n, as_json(CRASHED)
    )
    await db.execute(
        "UPDATE rollout SET version = version + 1, tick = tick + 1, sampled = rollout.sampled + 1,"
        " new_tokens = new_tokens + $2 WHERE key = $1",
        key,
        spent,
    )
    return True
