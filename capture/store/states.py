"""The states of rollouts' tool servers in a SQLite file: one small text a rollout, exchanged as a whole.

Rule: reading the version, comparing it and writing are one step of the one writer, so of two who go on from the same
version one wins and the other is told.
"""

from __future__ import annotations

import apsw

from capture.errors import ClientError
from capture.store import query
from capture.store.base import State


def get(db: apsw.Connection, rollout: str) -> State | None:
    """Return a rollout's state, which is `null` until one is set; None if there is no such rollout."""
    row = query.first(
        db,
        "SELECT coalesce(state.version, 0), coalesce(state.data, x'6e756c6c'), state.changed_at"
        " FROM rollout LEFT JOIN state ON state.rollout = rollout.key WHERE rollout.id = ?",
        (rollout,),
    )
    return None if row is None else State(version=row[0], body=row[1], changed_at=row[2])


def put(
    db: apsw.Connection, rollout: str, body: bytes, *, at: str, owner: bytes | None, expected: frozenset[int] | None
) -> State | None:
    """Set a state, if it is as expected; see `Store.set_state`."""
    row = query.first(
        db,
        "SELECT rollout.key, coalesce(state.version, 0) FROM rollout LEFT JOIN state ON state.rollout = rollout.key"
        " WHERE rollout.id = ?1 AND (?2 IS NULL OR (tools_secret = ?2 AND rollout.state = 'open' AND sealed = 0))",
        (rollout, owner),
    )
    if row is None:
        return None
    key, version = row
    if expected is not None and version not in expected:
        raise changed(version)
    db.execute(
        "INSERT INTO state (rollout, version, changed_at, data) VALUES (?, ?, ?, ?) ON CONFLICT (rollout)"
        " DO UPDATE SET version = excluded.version, changed_at = excluded.changed_at, data = excluded.data",
        (key, version + 1, at, body),
    )
    return State(version=version + 1, body=body, changed_at=at)


def changed(version: int) -> ClientError:
    """Return the error for a state that has been changed since it was read."""
    return ClientError(
        "state_changed",
        f'The state has changed: its ETag is now "{version}".',
        hint="GET /state again, and send what you make of it with its ETag in If-Match.",
        status=412,
    )
