"""The states of rollouts' tool servers on PostgreSQL; as `capture.store.states`, with the rollout's row locked."""

from __future__ import annotations

from capture.store.base import State
from capture.store.postgres.driver import Connection
from capture.store.states import changed


async def get(db: Connection, rollout: str) -> State | None:
    """Return a rollout's state, which is `null` until one is set; None if there is no such rollout."""
    row = await db.fetchrow(
        "SELECT coalesce(state.version, 0), coalesce(state.data, 'null'::bytea), state.changed_at"
        " FROM rollout LEFT JOIN state ON state.rollout = rollout.key WHERE rollout.id = $1",
        rollout,
    )
    return None if row is None else State(version=row[0], body=row[1], changed_at=row[2])


async def put(
    db: Connection, rollout: str, body: bytes, *, at: str, owner: bytes | None, expected: frozenset[int] | None
) -> State | None:
    """Set a state, if it is as expected; see `Store.set_state`."""
    # Locked, so that it stays open, and nobody else sets it, until this is committed.
    key = await db.fetchval(
        "SELECT key FROM rollout WHERE id = $1"
        " AND ($2::bytea IS NULL OR (tools_secret = $2 AND rollout.state = 'open' AND sealed = 0))"
        " FOR NO KEY UPDATE",
        rollout,
        owner,
    )
    if key is None:
        return None
    version = await db.fetchval("SELECT version FROM state WHERE rollout = $1", key) or 0
    if expected is not None and version not in expected:
        raise changed(version)
    await db.execute(
        "INSERT INTO state (rollout, version, changed_at, data) VALUES ($1, $2, $3, $4) ON CONFLICT (rollout)"
        " DO UPDATE SET version = excluded.version, changed_at = excluded.changed_at, data = excluded.data",
        key,
        version + 1,
        at,
        body,
    )
    return State(version=version + 1, body=body, changed_at=at)
