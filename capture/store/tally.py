"""What several processes have to agree on: numbers and order of calls, what is spent, seals, holds.

Functions of a connection inside a transaction that the writer opened, under the rules of `writes`. A call runs if it
stands in `arrival` (it has its number, and no row of its own yet) or if its row says so.

Costs. What is spent is counted up as calls end, so an arrival costs the same whatever came before it.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw
import msgspec

from capture.store import query, rows
from capture.store.base import Arrival, EngineState, Spent
from graph.records import Rollout, Stop


class Counted(NamedTuple):
    """What one ended call counts as."""

    sampled: int
    new_tokens: int


NOTHING = Counted(0, 0)

# As `base.new_tokens` says, of what is stored; fields at their default aren't in the record.
_COUNTED = (
    "SELECT status IN ('complete', 'aborted') AND json_extract(record, '$.choice') IS NULL,"
    " coalesce(n_sampled, json_extract(record, '$.usage_sampled'), 0)"
    " + iif(json_extract(record, '$.choice') IS NULL, coalesce(n_prompt, 0) - coalesce(shared, 0), 0)"
    " FROM call WHERE rollout = ? AND n = ? AND status <> 'running'"
)


def counted(db: apsw.Connection, key: int, n: int) -> Counted:
    """Return what a call is counted as at present: nothing while it runs, or isn't there."""
    row = query.first(db, _COUNTED, (key, n))
    return NOTHING if row is None else Counted(*row)


def spend(db: apsw.Connection, key: int, *, sampled: int, new_tokens: int) -> None:
    """Add to what a rollout has spent."""
    db.execute(
        "UPDATE rollout SET sampled = sampled + ?, new_tokens = new_tokens + ? WHERE key = ?",
        (sampled, new_tokens, key),
    )


def arrive(db: apsw.Connection, rollout: str, *, choices: int, started_at: str) -> Arrival | None:
    """Give out a number and a place in time; None when the rollout takes no more calls."""
    row = query.first(
        db,
        "UPDATE rollout SET next = next + ?2, tick = tick + 1,"
        " first_call_at = min(coalesce(first_call_at, ?3), ?3), last_call_at = max(coalesce(last_call_at, ?3), ?3)"
        " WHERE id = ?1 AND state = 'open' AND sealed = 0"
        " RETURNING key, next - ?2, tick - 1, sampled, new_tokens, first_call_at",
        (rollout, max(1, choices), started_at),
    )
    if row is None:
        return None
    key, n, arrived, sampled, tokens, first_call_at = row
    db.execute("INSERT INTO arrival (rollout, n) VALUES (?, ?)", (key, n))
    entry = query.first(db, rows.SELECT_ENTRY + " WHERE key = ?", (key,))
    assert entry is not None
    runs = (
        "SELECT (SELECT count(*) FROM arrival WHERE rollout = ?1)"
        " + (SELECT count(*) FROM call WHERE rollout = ?1 AND status = 'running')"
    )
    return Arrival(
        n=n,
        arrived=arrived,
        entry=rows.entry(entry),
        spent=Spent(
            sampled=sampled, running=query.value(db, runs, (key,)), new_tokens=tokens, first_call_at=first_call_at
        ),
        engines=engines(db),
    )


def seal(db: apsw.Connection, rollout: str, *, cut: bool) -> None:
    """Let no more calls arrive; with `cut` what runs is to be cut. A weaker seal never takes a stronger one's place."""
    db.execute("UPDATE rollout SET sealed = max(sealed, ?) WHERE id = ?", (1 + cut, rollout))


def sealed(db: apsw.Connection) -> dict[str, bool]:
    """Return the open rollouts that are sealed, and whether what runs of them is to be cut."""
    found = query.every(db, "SELECT id, sealed FROM rollout WHERE sealed > 0 AND state = 'open' ORDER BY key")
    return {name: seal > 1 for name, seal in found}


def running(db: apsw.Connection, rollout: str | None, *, engine: str | None) -> list[tuple[str, int]]:
    """Return the calls that run, of one rollout or of all, in order."""
    found = query.every(
        db,
        "SELECT id, n FROM (SELECT rollout, n FROM arrival UNION ALL SELECT rollout, n FROM call"
        " WHERE status = 'running' AND (?2 IS NULL OR coalesce(json_extract(record, '$.engine'), ?2) = ?2)) AS runs"
        " JOIN rollout ON rollout.key = runs.rollout WHERE (?1 IS NULL OR id = ?1) ORDER BY rollout.key, n",
        (rollout, engine),
    )
    return [(name, n) for name, n in found]


def stop(db: apsw.Connection, rollout: str, n: int, limit: str) -> Stop:
    """Count a call that met a limit; of a rollout that is gone it is the first."""
    row = query.first(db, "SELECT key, record FROM rollout WHERE id = ?", (rollout,))
    if row is None:
        return Stop(limit=limit, at_call=n, stops=1)
    key, record = row
    old = rows.load(record, Rollout)
    before = old.stopped
    after = Stop(limit=limit, at_call=before.at_call if before else n, stops=before.stops + 1 if before else 1)
    new = msgspec.structs.replace(old, stopped=after)
    db.execute("UPDATE rollout SET version = version + 1, record = ? WHERE key = ?", (rows.dump_rollout(new), key))
    return after


def engines(db: apsw.Connection) -> dict[str, EngineState]:
    """Return what the operator said of each engine."""
    return {
        name: EngineState(held=bool(held), version=version)
        for name, held, version in query.every(db, "SELECT name, held, version FROM engine ORDER BY name")
    }


def set_engine(db: apsw.Connection, name: str, *, held: bool | None, version: str | None) -> None:
    """Note a hold or a version; None leaves what there is."""
    db.execute(
        "INSERT INTO engine (name, held, version) VALUES (?1, coalesce(?2, 0), ?3) ON CONFLICT (name)"
        " DO UPDATE SET held = coalesce(?2, held), version = coalesce(?3, version)",
        (name, None if held is None else int(held), version),
    )
